"""The text of `rankdad approve`: what a run would read and send, before any data are read."""

from __future__ import annotations

from collections.abc import Sequence

from rankdad.common.errors import counted
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import largest_whole, rows_sent
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.common.spec import Holdout, KFold, LeaveOneSiteOut, RunSpec
from rankdad.common.spec.asked import sites_together
from rankdad.common.spec.data import TableData
from rankdad.common.spec.series import SeriesData
from rankdad.common.spec.tasks import LanguageModel, Regression, shown
from rankdad.common.spec.text import TextData
from rankdad.common.spec.written import Tabular
from rankdad.common.user_code import origin

BINARY_ROWS = 32  # samples of a step from which columns of two values are hard to compute from its sums
MAX_NAMES = 10  # of columns, labels or sites in a line
READ_AS = {  # use of columns, by the spec's field
    "data.features": "inputs",
    "data.image": "image files",
    "data.column": "texts",
    "data.label": "outcome",
    "data.group": "patient identifier",
    "data.key": "row identifier",
    "data.dates": "reference dates",
    "preparation.harmonise.keep": "kept by harmonisation",
}
TWO_SITES = (
    "with two hospitals, each learns about the other what the aggregator learns: it can subtract its own part from "
    "the result"
)


def what_tests_send(spec: RunSpec, *, smooth: bool) -> str:
    """Return what leaves at each test; smooth scores do without `keyed_folds`."""
    if isinstance(spec.task, LanguageModel):
        return "sums of losses over texts"
    if isinstance(spec.task, Regression):
        kind = "smooth counts" if smooth else "counts, perhaps of one row,"
        return f"{kind} of rows by error and size, and exact sums of errors"
    kind = (
        "smooth curves of scores by outcome, with at most a quarter as many numbers as rows"
        if smooth
        else "histograms of scores by outcome, with bins of perhaps one row"
    )
    return f"{kind}, exact sums of losses, and exact numbers of right and wrong predictions, perhaps of one row"


def what_small_steps_send(spec: RunSpec, fewest: int) -> str:
    """Return what others can compute from steps of so few rows; "" for nothing known."""
    if spec.solver == "exact" or fewest >= BINARY_ROWS or not isinstance(spec.data, TableData):
        return ""
    return f"columns of two values, row by row, from steps of fewer than {BINARY_ROWS} rows (min_rows)"


def what_is_read(spec: RunSpec, most: int | None = MAX_NAMES) -> list[str]:
    """List the files and columns that a run reads, by use.

    Args:
        spec: the run.
        most: names in a line; None for all.
    """
    files = [name for names in spec.files.values() for name in names]
    columns = spec.columns
    if not columns:
        shape = f"samples of shape {list(spec.data.shape)} and their labels, by the reader {spec.data.reader}"
        return [f"reads {_listed(files, most)}: {shape}" if files else f"reads {shape}"]
    count = len({name for names in columns.values() for name in names})
    lines = [f"reads {counted(count, 'column')} of {_listed(files, most)}"]
    return lines + [
        f"  {what} ({len(columns[field]):,}): {_listed(columns[field], most)}"
        for field, what in READ_AS.items()
        if field in columns
    ]


def what_is_loaded(spec: RunSpec) -> list[str]:
    """List the user-defined functions that a run calls, with their packages."""
    return [f"runs code: {name} ({field}), from {origin(name)}" for field, name in spec.functions.items()]


def what_selects(spec: RunSpec) -> list[str]:
    """Describe how a run selects, changes, groups and splits rows."""
    data, training, evaluation = spec.data, spec.training, spec.evaluation
    lines = list[str]()
    if isinstance(data, Tabular):
        rule = f"{data.positive} is {data.values[1]}" if data.positive else ""
        classes = [
            name if own == (name,) else f"{name} is {' or '.join(own[:MAX_NAMES])}{' or …' * (len(own) > MAX_NAMES)}"
            for name, own in zip(data.values, data.members, strict=True)
        ]
        lines.append(
            f"outcome: {rule or _listed(classes) or ('numbers' if data.targets else 'the next token of each')}"
        )
        lines.append(
            f"rows with the same {data.group} count as one {spec.group_noun}"
            if data.group
            else f"each {'series' if isinstance(data, SeriesData) else 'row'} counts as one person"
        )
        missing = {
            "refuse": "rows with missing values are refused",
            "drop": "rows with missing values are left out",
            "carry": "missing values are carried forward; series without an outcome are left out",
            "impute": "missing inputs are replaced by the mean of all sites; rows without an outcome are left out",
        }
        lines.append(missing[getattr(data, "missing", "refuse")])
        if data.missing_values:
            tokens = data.missing_values
            own = [f"{c}: {' or '.join(some)}" for c, some in tokens.items()] if isinstance(tokens, dict) else tokens
            lines.append(f"  also treated as missing: {_listed(own)}")
    if isinstance(data, TextData):
        longer = {"refuse": "refused", "first": "cut at their end", "last": "cut at their beginning"}[data.longer]
        lines.append(f"texts of more than {data.length} tokens are {longer}")
        if used := data.tokenizer:
            lines.append(f"tokens: {used.tokens:,}, by {used.file} with the sha256 {used.sha256}")
    if isinstance(data, TableData):
        bounds = [f"{name} from {low} to {high}" for name, (low, high) in data.clip.items()]
        lines += [f"clipped: {_listed(bounds)}"] * bool(bounds)
        lines += [f"log-transformed: {_listed(data.log)}"] * bool(data.log)
        levels = sum(map(data.levels, data.categorical))
        lines += [f"levels: {levels:,}, of {_listed(list(data.categorical))}"] * bool(levels)
    tested = f"test set: {100 * training.test:g} % of the rows"
    if isinstance(evaluation, KFold):
        repeats = f", repeated {evaluation.repeats} times" * (evaluation.repeats > 1)
        tested = f"test sets: {evaluation.folds} folds{repeats}"
    elif isinstance(evaluation, LeaveOneSiteOut):
        tested = "test sets: each site, by a model of the other sites"
    validation = f"; validation set: {100 * spec.validation:g} % of the other rows" * bool(spec.validation)
    lines.append(f"{tested}{validation}")
    others = [
        f"{site} ({', '.join(f'{name} {value}' for name, value in own.model_dump(exclude_none=True).items())})"
        for site, own in spec.federation.overrides.items()
    ]
    return lines + [f"sites with other settings: {_listed(others)}"] * bool(others)


def what_may_be_learned(spec: RunSpec, policy: Policy) -> list[str]:
    """List what a malicious owner could still learn about single people."""
    least = counted(policy.min_rows, _unit(spec))
    lines = [f"  sums over {least} or more, in every step; from many steps, perhaps single rows"]
    if small := what_small_steps_send(spec, policy.min_rows):
        lines.append(f"  {small}")
    if isinstance(spec.task, LanguageModel):
        lines.append("  texts word by word: a language model remembers some, and may repeat them")
    if policy.keyed_folds:
        lines.append(
            "  the effect of one person on a fold or on another run: anyone can compute who is in which fold "
            '("keyed_folds": false in the policy prevents this)'
        )
    if free := [line for line in ("files", "columns") if getattr(policy, line) is None]:
        lines.append(f"  other {' and '.join(free)}, by further runs: the policy does not restrict them")
    if isinstance(spec.data, TableData):
        about, level = "about " * (policy.min_rows > 1), policy.min_level.count
        but = f" that {level} or more have" * (level > 1)
        lines.append(f"  {about}how many rows have each level{but}, and which columns have missing values")
    if policy.group is None and isinstance(spec.data, Tabular):
        if_ = f"{spec.data.group} does not identify a person" if spec.data.group else "one person has several rows"
        lines.append(f"  single people, if {if_}: the policy names no group")
    if spec.grouped and not policy.keyed_folds and policy.largest_share == 1:
        lines.append("  sums that are nearly one person's, if most rows of a part are theirs (largest_share)")
    return ["a determined owner could still learn:", *lines]


def what_leaves(spec: RunSpec, plan: Plan, policy: Policy, owner: str) -> list[str]:
    """Describe what a run reads at a site and what it sends, in at most 40 lines.

    Args:
        spec: the run, with the site's batch size.
        plan: of the run.
        policy: of the site.
        owner: who submitted the run.
    """
    sites = spec.federation.sites
    lines = [TWO_SITES] * (len(sites) == 2)
    lines.append(f"run: {spec.name}, submitted by {owner or 'an unnamed owner'}, with {_listed(sites)}")
    lines.append(f"a round may include as few as {counted(min(sites_together(spec).values()), 'site')}")
    lines += [*what_is_read(spec), *what_is_loaded(spec), *what_selects(spec)]
    begun = spec.model.pretrained
    if begun is not None:
        lines.append(f"starts from the weights in {begun.file}, sha256 {begun.sha256}, which the policy allows")
    data = spec.data
    rows, training = rows_sent(spec), spec.training
    lines.append(f"method: {spec.trained_by}, task: {spec.task.name}")
    what, whole = "gradient" if spec.local is None else "change of weights", largest_whole(plan)[1]
    most_rows = f"at most {counted(rows or 0, 'row')} of a layer's {what} (rank)"
    if whole > (rows or whole):
        most_rows += f", or the whole {what}, of rank {whole}, where that is smaller"
    of_rank = f"of rank {whole} at most" if spec.method.whole else "of any rank"
    sent = f"the whole {what} of each layer, {of_rank}" if rows is None else most_rows
    even = ", or two thirds of the rows here if that is less (even batches)" * (spec.batches == "even")
    if spec.solver != "exact":
        several = "several batches of " * (spec.local_steps not in (None, 1))
        rows_used = f"{several}at most {counted(training.step_size, 'row')} of data"
        lines.append(f"sends in every step {sent}, computed from {rows_used}{even}")
        lines.append(f"  smallest step: {counted(policy.min_rows, _unit(spec))}; smaller ones are refused (min_rows)")
        most = policy.rank(training.step_size)
        if rows is not None and most is not None and most < rows:
            lines.append(f"  the policy allows {most} of these rows (rows_per_rank {policy.rows_per_rank})")
    solving = Preparing(spec).solving.stages
    if prepares := [stage.name for stage in plan.stages if stage.name not in solving]:
        lines.append(f"sends sums for the preparation first: {_listed(prepares)}")
    if spec.validation:
        monitor = spec.training.monitor
        sums = f", and sums for their {shown(monitor)}" * (monitor != "loss")
        lines.append(f"sends in every epoch the loss of the validation rows{sums}")
    if not isinstance(spec.evaluation, Holdout) or training.test:
        lines.append(f"sends at each test {what_tests_send(spec, smooth=not policy.keyed_folds)}")
    if plan.references:
        lines.append(f"sends the metrics of the reference models: {', '.join(plan.references)}")
    if isinstance(data, TableData):
        rounded = ", rounded" * (policy.min_rows > 1)
        lines.append(f"sends once Table 1: counts, mean and spread of each column, or rows by level{rounded}")
    trainings = f", {spec.folds} times" if spec.folds > 1 else ""
    products = "sends sums of products of all columns, of all rows together, and slopes of each training"
    if spec.solver != "steps":
        where = " if the policies allow it, otherwise in steps" * (spec.solver == "auto")
        lines.append(f"solves the model exactly{where}: {products}")
        if policy.site_coefficients and solving:
            lines.append("  and the coefficients of this site's rows alone, if they are enough (site_coefficients)")
    elif "linear" in spec.references:
        lines.append(f"for the linear reference model, {products}")
    if spec.solver != "exact":
        up, down = step_bytes(plan, up=True), step_bytes(plan, up=False)
        lines.append(f"at most {up:,} bytes up and {down:,} down per step")
        lines.append(f"trains for at most {training.epochs} epochs{trainings}")
    return lines + what_may_be_learned(spec, policy)


def _unit(spec: RunSpec) -> str:
    """Return the noun for what `min_rows` counts."""
    return spec.group_noun if spec.grouped else "row"


def _listed(names: Sequence[str], most: int | None = MAX_NAMES) -> str:
    more = f" and {len(names) - most:,} more" if most is not None and len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
