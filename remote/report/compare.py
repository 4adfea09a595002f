"""`rankdad compare`: runs side by side, from the files of their directories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rankdad.common.documents import Part
from rankdad.common.errors import UserError
from rankdad.common.metrics.paired import WITHIN
from rankdad.common.spec.tasks import LOWER_IS_BETTER, Metric
from rankdad.remote.report.differences import ends
from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.narrative import STATUS, summed
from rankdad.remote.report.references import REFERENCES
from rankdad.remote.report.rendering import render
from rankdad.remote.report.verdict import verdict
from rankdad.remote.report.words import NAMES, count, duration, number, with_interval
from rankdad.remote.results.comparison import measure, told, value
from rankdad.remote.results.run_results import RunResults, damage_named, read_results
from rankdad.remote.view import size

LEGEND = (
    "* is the best value of a row whose 95 % interval, in brackets, overlaps no other; there is none where a run has "
    "no interval, or other data. Each interval is of one run by itself. They are not paired, so this is no test: "
    "the files of two runs do not say how sure their difference is. Within a run, references are compared on the same "
    "rows"
)
TEMPLATES = Path(__file__).parent / "templates"


def compare(directories: Sequence[Path]) -> tuple[NumberTable, list[RunResults]]:
    """Return a table with a column for every run, and the runs.

    Args:
        directories: of the runs, at least two.

    Raises:
        UserError: one holds no run, or they predict different things.
    """
    if len(directories) < 2:
        raise UserError("compare: got one run, expected at least two", code="too-few-runs")
    runs = [read_results(directory) for directory in directories]
    for directory, run in zip(directories, runs, strict=True):
        if run.spec.task.metrics != runs[0].spec.task.metrics:
            tasks = f"{run.spec.task.name}, {directories[0]} of {runs[0].spec.task.name}"
            raise UserError(f"{directory}: is of the task {tasks}: their metrics are not the same", code="tasks-differ")
    names = [run.spec.name for run in runs]
    if len(set(names)) < len(names):  # the directories tell them apart
        names = [directory.resolve().name for directory in directories]
    if len(set(names)) < len(names):
        names = [str(directory) for directory in directories]
    for directory, run in zip(directories, runs, strict=True):
        with damage_named(directory):
            _metrics([run]), _facts([run]), verdict(run)
    return NumberTable(["", *names], [*_metrics(runs), *_facts(runs)]), runs


def page(table: NumberTable, runs: Sequence[RunResults]) -> str:
    """Return the comparison as HTML that needs no other file."""
    verdicts = {name: verdict(run) for name, run in zip(table.head[1:], runs, strict=True)}
    return render(TEMPLATES, "compare.html", table=table, legend=LEGEND, verdicts=verdicts, same=_same_rows(runs))


def _metrics(runs: Sequence[RunResults]) -> list[list[str]]:
    rows = []
    for name in runs[0].spec.task.metrics:
        values = [run.test.get(name) for run in runs]
        if any(value is not None for value in values):
            best = _best(runs, name) if _same_rows(runs) else None
            rows.append([NAMES[name], *(_cell(run, name, run is best) for run in runs)])
    for reference, said in REFERENCES.items():
        if any(reference in told(run) for run in runs):
            name = measure(runs[0])
            rows.append([f"{NAMES[name]}, {said}", *(number(value(run, reference)[0]) for run in runs)])
            for key, where in ((name, ""), (WITHIN, ", within hospitals")):
                apart = [run.differences_from(reference).get(key) for run in runs]
                if any(apart):
                    cells = ("–" if one is None else ends(one) for one in apart)
                    rows.append([f"this run less it, on the same rows{where}", *cells])
    if any(len(run.outcomes) == 1 for run in runs):
        brier = [next(iter(run.outcomes.values()))["brier"] if len(run.outcomes) == 1 else None for run in runs]
        rows.append(["Brier score", *map(number, brier)])
    return rows


def _best(runs: Sequence[RunResults], name: Metric) -> RunResults | None:
    """Return the run whose value is best by so much that no other interval reaches its own."""
    known = [run for run in runs if run.test.get(name) is not None]
    intervals = [run.summary.metrics.intervals.get(name) for run in known]
    sign = -1 if name in LOWER_IS_BETTER else 1
    best = max(known, key=lambda run: sign * run.test[name])
    own = best.summary.metrics.intervals.get(name)
    for run, other in zip(known, intervals, strict=True):
        if own is None or other is None:
            return None
        overlap = own.low <= other.high and other.low <= own.high
        if run is not best and (overlap or number(run.test[name]) == number(best.test[name])):
            return None
    return best


def _cell(run: RunResults, name: str, best: bool) -> str:
    return with_interval(run.test.get(name), run.summary.metrics.intervals.get(name)) + " *" * best


def _facts(runs: Sequence[RunResults]) -> list[list[str]]:
    """Return what else differs: how it was made, and what it cost."""
    member = "member" if any(run.summary.regions for run in runs) else "site"
    rows: dict[str, list[str]] = {
        "rows tested": [_counted(run.test.get("samples")) + ", other data" * _other(run, runs) for run in runs],
        f"{runs[0].spec.group_noun}s": [_counted(run.test.get("groups")) for run in runs],
        "events": [", ".join(_counted(one["events"]) for one in run.outcomes.values()) or "–" for run in runs],
        "sites": [f"{len(run.spec.federation.sites)}" for run in runs],
        "method": [_method(run) for run in runs],
        "optimizer": [_optimizer(run) for run in runs],
        "model": [run.spec.model.name for run in runs],
        "evaluation": [run.spec.evaluation.name for run in runs],
        "repeats": [f"{getattr(run.spec.evaluation, 'repeats', 1)}" for run in runs],
        "epochs, best": [
            "–" if run.summary.exact else f"{run.summary.epochs}, {run.summary.best_epoch}" for run in runs
        ],
        "steps": ["–" if run.summary.exact else count(run.summary.steps, "step") for run in runs],
        "time": [duration(run.summary.seconds) for run in runs],
        f"up per {member}": [_sent(run, run.summary.bytes_up_per_site_step) for run in runs],
        f"down per {member}": [_sent(run, run.summary.bytes_down_per_site_step) for run in runs],
        "how it ended": [STATUS.get(run.summary.status, run.summary.status) for run in runs],
    }
    return [[name, *cells] for name, cells in rows.items() if set(cells) != {"–"}]


def _sent(run: RunResults, each_step: float) -> str:
    return summed(run) if run.summary.exact else size(each_step * run.summary.steps)


def _counted(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _method(run: RunResults) -> str:
    if run.summary.exact:
        return "exact"
    method = run.spec.method
    rank, local, preset = getattr(method, "rank", None), run.spec.local_steps, getattr(method, "preset", None)
    between, said = f", local steps {local}" if local else "", {"name", "preset", "rank", "local_steps", "wire"}
    rest = f", preset {preset}" if preset else _others(method, said)
    wire = f", {method.wire}" * (method.wire != "float32")
    return method.name + (f", rank {rank}" if rank else "") + between + wire + rest


def _optimizer(run: RunResults) -> str:
    if run.summary.exact:
        return "–"
    own, factored = run.spec.training.optimizer, run.spec.training.sends_projections
    return f"{own.name} {own.lr:g}" + ", factored" * factored + _others(own, {"name", "lr", "second_moment"})


def _others(part: Part, said: set[str]) -> str:
    """Return the settings that are not the default, but for those that are said elsewhere."""
    others = part.model_dump(mode="json", exclude=said, exclude_defaults=True)
    return "".join(f", {name} {value}" for name, value in others.items())


def _same_rows(runs: Sequence[RunResults]) -> bool:
    """Return whether all runs tested the same rows, as far as their figures tell."""
    return not any(_other(run, runs) for run in runs)


def _other(run: RunResults, runs: Sequence[RunResults]) -> bool:
    """Return whether a run has tested others than the first one that has tested any.

    Of one site there may be the rows of all others together, as `simulate --pooled` has them: then not names are
    compared, but how many rows there are, how many have each outcome, and the labels of all tables.
    """
    first = next((one for one in runs if "samples" in one.test), run)
    sites, its = run.spec.federation.sites, first.spec.federation.sites
    named = sites == its or 1 in (len(sites), len(its))
    labelled = all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(_labels(run), _labels(first), strict=False))
    return "samples" in run.test and not (named and labelled and _tested(run) == _tested(first))


def _tested(run: RunResults) -> tuple[float | None, list[float]]:
    return run.test.get("samples"), _events(run)


def _labels(run: RunResults) -> list[float]:
    """Return what Table 1 tells of all rows' labels: how many of each class, or mean and deviation; else nothing."""
    label = run.summary.table1.get("pooled", {}).get("label", {})
    return [float(one) for one in (label.get("counts") or [label.get("mean"), label.get("sd")]) if one is not None]


def _events(run: RunResults) -> list[float]:
    return [one["events"] for one in run.outcomes.values()]
