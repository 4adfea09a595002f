"""What would leave a site in a run, in words: before anything is read, for whoever decides."""

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
from rankdad.common.spec.tasks import shown
from rankdad.common.spec.written import Tabular
from rankdad.common.user_code import origin

MAX_NAMES = 10  # of columns, labels or sites in a line
READ_AS = {  # what columns are read for, by the field of the specification
    "data.features": "inputs",
    "data.image": "files of images",
    "data.label": "outcome",
    "data.group": "what one person is",
    "data.key": "key",
    "data.dates": "days from which dates count",
    "preparation.harmonise.keep": "kept by harmonisation",
}
TWO = (
    "of two hospitals each learns of the other what the aggregator learns: it can subtract its own part from what "
    "comes back"
)


def what_is_read(spec: RunSpec, most: int | None = MAX_NAMES) -> list[str]:
    """Return lines that name the files and columns that a run reads, by use.

    Args:
        spec: the run.
        most: names in a line; None tells all.
    """
    files = [name for names in spec.files.values() for name in names]
    columns = spec.columns
    if not columns:
        shape = f"samples of shape {list(spec.data.shape)} by the reader {spec.data.reader}, and their labels"
        return [f"reads {_listed(files, most)}: {shape}" if files else f"reads {shape}"]
    count = len({name for names in columns.values() for name in names})
    lines = [f"reads {counted(count, 'column')} of {_listed(files, most)}"]
    return lines + [
        f"  {what} ({len(columns[field]):,}): {_listed(columns[field], most)}"
        for field, what in READ_AS.items()
        if field in columns
    ]


def what_is_loaded(spec: RunSpec) -> list[str]:
    """Return lines that name the functions of the users' own that a run loads here, and the packages of these."""
    return [f"runs the code of {name} ({field}), of {origin(name)}" for field, name in spec.functions.items()]


def what_selects(spec: RunSpec) -> list[str]:
    """Return lines that say by what rows are chosen, changed, put together and dealt out."""
    data, training, evaluation = spec.data, spec.training, spec.evaluation
    lines = list[str]()
    if isinstance(data, Tabular):
        rule = f"{data.positive} is {data.values[1]}" if data.positive else ""
        classes = [
            name if own == (name,) else f"{name} is {' or '.join(own[:MAX_NAMES])}{' or …' * (len(own) > MAX_NAMES)}"
            for name, own in zip(data.values, data.members, strict=True)
        ]
        lines.append(f"values of the outcome: {rule or _listed(classes) or 'numbers'}")
        lines.append(
            f"rows with the same {data.group} are one {spec.group_noun}"
            if data.group
            else f"a {'series' if isinstance(data, SeriesData) else 'row'} counts as one person"
        )
        told = {
            "refuse": "rows that lack a value are refused",
            "drop": "rows that lack a value are left out",
            "carry": "values that are missing are those before them; series without an outcome are left out",
            "impute": "inputs that are missing get the mean of all sites; rows without an outcome are left out",
        }
        lines.append(told[getattr(data, "missing", "refuse")])
        if data.missing_values:
            tokens = data.missing_values
            own = [f"{c}: {' or '.join(told)}" for c, told in tokens.items()] if isinstance(tokens, dict) else tokens
            lines.append(f"  as missing counts, too: {_listed(own)}")
    if isinstance(data, TableData):
        bounds = [f"{name} from {low} to {high}" for name, (low, high) in data.clip.items()]
        lines += [f"clipped: {_listed(bounds)}"] * bool(bounds) + [f"logarithms: {_listed(data.log)}"] * bool(data.log)
        levels = sum(map(data.levels, data.categorical))
        lines += [f"levels: {levels:,}, of {_listed(list(data.categorical))}"] * bool(levels)
    tested = f"tested on {training.test:g} of the rows"
    if isinstance(evaluation, KFold):
        repeats = f", dealt out {evaluation.repeats} times" * (evaluation.repeats > 1)
        tested = f"tested in {evaluation.folds} folds{repeats}"
    elif isinstance(evaluation, LeaveOneSiteOut):
        tested = "tested at each site by a model of the others"
    set_aside = f", {spec.validation:g} of the others set aside for validation" * bool(spec.validation)
    lines.append(f"{tested}{set_aside}")
    others = [
        f"{site} ({', '.join(f'{name} {value}' for name, value in own.model_dump(exclude_none=True).items())})"
        for site, own in spec.federation.overrides.items()
    ]
    return lines + [f"sites that do otherwise: {_listed(others)}"] * bool(others)


def what_may_be_learned(spec: RunSpec, policy: Policy) -> list[str]:
    """Return lines that say what an owner who means to could still find out of single people."""
    least = counted(policy.min_rows, _unit(spec))
    lines = [f"  of every step and sum what {least} or more add up to; over many steps maybe single rows"]
    if policy.keyed_folds:
        lines.append(
            "  of a fold, or of another run, the difference that one person makes: everybody can compute who is in "
            'which fold ("keyed_folds": false in the policy ends that)'
        )
    if free := [line for line in ("files", "columns") if getattr(policy, line) is None]:
        lines.append(f"  by more runs, other {' and '.join(free)}: the policy lists none ({', '.join(free)})")
    if isinstance(spec.data, TableData):
        about, level = "about " * (policy.min_rows > 1), policy.min_level.count
        but = f" that {level} or more have" * (level > 1)
        lines.append(f"  {about}how many rows have each level{but}, and which columns have gaps")
    if policy.group is None and isinstance(spec.data, Tabular):
        counted_as = (
            f"{spec.data.group} is not what one person is" if spec.data.group else "one person has several rows"
        )
        lines.append(f"  single people, if {counted_as} here: the policy has no group")
    if spec.grouped and not policy.keyed_folds and policy.largest_share == 1:
        lines.append("  sums of a part that are nearly one person's, who has most of its rows (largest_share)")
    return ["a determined owner could still learn:", *lines]


def what_leaves(spec: RunSpec, plan: Plan, policy: Policy, owner: str) -> list[str]:
    """Return lines that say what a run reads of a site's data, and what it sends: a screen of at most 40.

    Args:
        spec: the run, with the site's own batch size.
        plan: of the run.
        policy: of the site, which allows it.
        owner: who submitted it.
    """
    sites = spec.federation.sites
    lines = [TWO] * (len(sites) == 2)
    lines.append(f"run: {spec.name}, by {owner or 'somebody unnamed'}, with {_listed(sites)}")
    lines.append(f"rounds may be of as few as {counted(min(sites_together(spec).values()), 'site')}")
    lines += [*what_is_read(spec), *what_is_loaded(spec), *what_selects(spec)]
    begun = spec.model.pretrained
    if begun is not None:
        lines.append(f"begins with the weights in {begun.file}, sha256 {begun.sha256}, which the policy lets in")
    data = spec.data
    rows, training = rows_sent(spec), spec.training
    lines.append(f"method: {spec.trained_by}, task: {spec.task.name}")
    what, whole = "gradient" if spec.local is None else "change of weights", largest_whole(plan)[1]
    most_rows = f"at most {counted(rows or 0, 'row')} of a layer's {what} (rank)"
    if whole > (rows or whole):
        most_rows += f", whole and of rank {whole} where that is smaller"
    of_rank = f"of rank {whole} at most" if spec.method.whole else "of any rank"
    sent = f"each layer's {what} whole, {of_rank}" if rows is None else most_rows
    even = ", or two thirds of the rows here if they are fewer (batches are even)" * (spec.batches == "even")
    if spec.solver != "exact":
        each = ", after several batches, each" * (spec.local_steps not in (None, 1))
        data_rows = f"of at most {counted(training.step_size, 'row')} of data"
        lines.append(f"sends in every step {sent}{each or ','} {data_rows}{even}")
        least = counted(policy.min_rows, _unit(spec))
        lines.append(f"  the smallest step may be of {least}: of fewer it is refused (min_rows)")
        most = policy.rank(training.step_size)
        if rows is not None and most is not None and most < rows:
            lines.append(f"  the policy lets {most} of them out (rows_per_rank {policy.rows_per_rank})")
    solving = Preparing(spec).solving.stages
    if prepares := [stage.name for stage in plan.stages if stage.name not in solving]:
        lines.append(f"sends sums for preparation before that: {_listed(prepares)}")
    if spec.validation:
        monitor = spec.training.monitor
        sums = f", and sums for their {shown(monitor)}" * (monitor != "loss")
        lines.append(f"sends in every epoch the loss of the validation rows{sums}")
    if not isinstance(spec.evaluation, Holdout) or training.test:
        lines.append("sends at a test about what is predicted of each row, and its outcome, without a name")
    if plan.references:
        lines.append(f"sends how well models to compare with do: {', '.join(plan.references)}")
    if isinstance(data, TableData):
        rounded = ", rounded" * (policy.min_rows > 1)
        lines.append(f"sends once Table 1: of each column counts, mean and spread, or rows by level{rounded}")
    trainings = f", {spec.folds} times" if spec.folds > 1 else ""
    products = "sends sums of products of all columns, of all rows together, and slopes of each training"
    if spec.solver != "steps":
        where = ", if the policies allow that, else by steps" * (spec.solver == "auto")
        lines.append(f"solves the model exactly{where}: {products}")
        if policy.site_coefficients and solving:
            lines.append(
                "  and the model's coefficients for the rows here alone, if they are enough (site_coefficients)"
            )
    elif "linear" in spec.references:
        lines.append(f"for the reference linear {products}")
    if spec.solver != "exact":
        up, down = step_bytes(plan, up=True), step_bytes(plan, up=False)
        lines.append(f"at most {up:,} bytes up and {down:,} down in a step")
        lines.append(f"trains for at most {training.epochs} epochs{trainings}")
    return lines + what_may_be_learned(spec, policy)


def _unit(spec: RunSpec) -> str:
    """Return what `min_rows` counts in a run, in the singular."""
    return spec.group_noun if spec.grouped else "row"


def _listed(names: Sequence[str], most: int | None = MAX_NAMES) -> str:
    """Return names in a line, of many the first."""
    more = f" and {len(names) - most:,} more" if most is not None and len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
