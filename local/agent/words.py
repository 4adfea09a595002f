"""What would leave a site in a run, in words: before anything is read, for whoever decides."""

from __future__ import annotations

from collections.abc import Sequence

from rankdad.common.errors import counted
from rankdad.common.policy import Policy, rows_sent
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData

MAX_NAMES = 40  # of columns, labels or sites in a line


def what_leaves(spec: RunSpec, plan: Plan, policy: Policy, owner: str) -> list[str]:
    """Return lines that say what a run reads of a site's data, and what it sends.

    Args:
        spec: the run, with the site's own batch size.
        plan: of the run.
        policy: of the site, which allows it.
        owner: who submitted it.
    """
    lines = [f"run: {spec.name}, by {owner or 'somebody unnamed'}, with {_listed(spec.federation.sites)}"]
    data = spec.data
    if isinstance(data, TableData):
        named = list(data.named)
        lines.append(f"reads {len(named):,} columns: {_listed(named)}")
        lines.append(f"label: {_listed(data.targets)}")
    else:
        lines.append(f"reads samples of shape {list(data.shape)} by the reader {data.reader}, and their labels")
    rows, training = rows_sent(spec), spec.training
    lines.append(f"method: {spec.trained_by}, task: {spec.task.name}")
    most_rows = f"at most {counted(rows or 0, 'row')} of a layer's gradient (rank)"
    sent = "gradients whole, of any rank" if rows is None else most_rows
    even = ", or two thirds of the rows here if they are fewer (batches are even)" * (spec.batches == "even")
    if spec.solver != "exact":
        lines.append(f"sends in every step {sent}, of at most {counted(training.step_size, 'row')} of data{even}")
        most = policy.rank(training.step_size)
        if rows is not None and most is not None and most < rows:
            lines.append(f"  the policy lets {most} of them out (rows_per_rank {policy.rows_per_rank})")
    stages = ", ".join(stage.name for stage in plan.stages)
    if stages:
        lines.append(f"sends sums for preparation before that: {stages}")
    if plan.references:
        lines.append(f"sends how well models to compare with do: {', '.join(plan.references)}")
    if isinstance(data, TableData):
        lines.append("sends once Table 1: of each column counts, mean and spread, or rows by level")
    trainings = f", {spec.folds} times" if spec.folds > 1 else ""
    if spec.solver != "steps":
        where = ", if the policies allow that, else by steps" * (spec.solver == "auto")
        lines.append(f"solves the model exactly{where}: sends sums of products of all columns{trainings}")
    if spec.solver != "exact":
        up, down = step_bytes(plan, up=True), step_bytes(plan, up=False)
        lines.append(f"at most {up:,} bytes up and {down:,} down in a step")
        lines.append(f"trains for at most {training.epochs} epochs{trainings}")
    return lines


def _listed(names: Sequence[str]) -> str:
    """Return names in a line, of many the first."""
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"
