"""`rankdad compare`: several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankdad.common.documents import Part
from rankdad.common.errors import UserError
from rankdad.common.metrics.paired import WITHIN
from rankdad.common.spec.tasks import decimals
from rankdad.remote.report.differences import ends
from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.narrative import STATUS, summed
from rankdad.remote.report.references import REFERENCES
from rankdad.remote.report.rendering import damage_named, render
from rankdad.remote.report.verdict import verdict
from rankdad.remote.report.words import NAMES, NONE, count, duration, number, with_interval
from rankdad.remote.results.comparison import (
    best_of,
    comparison_metric,
    differs_in_rows,
    have_same_rows,
    reference_value,
    shown_references,
)
from rankdad.remote.results.run_results import RunResults, read_results
from rankdad.remote.view import size

LEGEND = (
    "* marks the best value of a row if its 95 % interval, in brackets, overlaps no other; no value is marked if a run "
    "has no interval, or other data. Intervals are of each run by itself and not paired, so this is not a test of the "
    "difference. Within a run, references are compared on the same rows"
)
TEMPLATES = Path(__file__).parent / "templates"


def compare(directories: Sequence[Path]) -> tuple[NumberTable, list[RunResults]]:
    """Build a table with a column for every run; return it with the runs.

    Args:
        directories: at least two run directories.

    Raises:
        UserError: there are fewer than two, one has no run, or tasks differ.
    """
    if len(directories) < 2:
        raise UserError("compare: got one run, expected at least two", code="too-few-runs")
    runs = [read_results(directory) for directory in directories]
    for directory, run in zip(directories, runs, strict=True):
        if run.spec.task.metrics != runs[0].spec.task.metrics:
            tasks = f"{run.spec.task.name}, {directories[0]} has {runs[0].spec.task.name}"
            raise UserError(f"{directory}: has the task {tasks}: their metrics differ", code="tasks-differ")
    names = [run.spec.name for run in runs]
    if len(set(names)) < len(names):
        names = [directory.resolve().name for directory in directories]
    if len(set(names)) < len(names):
        names = [str(directory) for directory in directories]
    for directory, run in zip(directories, runs, strict=True):
        with damage_named(directory):
            _metrics([run]), _facts([run]), verdict(run)
    return NumberTable(["", *names], [*_metrics(runs), *_facts(runs)]), runs


def page(table: NumberTable, runs: Sequence[RunResults]) -> str:
    """Render the comparison as self-contained HTML."""
    verdicts = {name: verdict(run) for name, run in zip(table.head[1:], runs, strict=True)}
    return render(TEMPLATES, "compare.html", table=table, legend=LEGEND, verdicts=verdicts, same=have_same_rows(runs))


def _metrics(runs: Sequence[RunResults]) -> list[list[str]]:
    rows = []
    for name in runs[0].spec.task.metrics:
        values = [run.test.get(name) for run in runs]
        if any(value is not None for value in values):
            best, known = best_of(runs, name), [run.summary.metrics.intervals.get(name) for run in runs]
            cells = [with_interval(*figure, decimals(name, figure[0])) for figure in zip(values, known, strict=True)]
            stars = [" *" * (run is best) for run in runs]
            rows.append([NAMES[name], *(cell + star for cell, star in zip(cells, stars, strict=True))])
    for reference, caption in REFERENCES.items():
        if any(reference in shown_references(run) for run in runs):
            name = comparison_metric(runs[0])
            reached = [reference_value(run, reference)[0] for run in runs]
            rows.append([f"{NAMES[name]}, {caption}", *(number(one, decimals(name, one)) for one in reached)])
            for key, where in ((name, ""), (WITHIN, ", within hospitals")):
                apart = [run.differences_from(reference).get(key) for run in runs]
                if any(apart):
                    differences = (NONE if one is None else ends(one) for one in apart)
                    rows.append([f"this run less it, on the same rows{where}", *differences])
    brier = [only["brier"] if (only := run.only_outcome) else None for run in runs]
    if any(score is not None for score in brier):
        rows.append(["Brier score", *map(number, brier)])
    return rows


def _facts(runs: Sequence[RunResults]) -> list[list[str]]:
    """Build the rows about settings, time and traffic."""
    member = "member" if any(run.summary.regions for run in runs) else "site"
    columns = [_facts_of(run, member, other=differs_in_rows(run, runs)) for run in runs]
    rows = zip(*(column.values() for column in columns), strict=True)
    return [[name, *cells] for name, cells in zip(columns[0], rows, strict=True) if set(cells) != {NONE}]


def _facts_of(run: RunResults, member: str, *, other: bool) -> dict[str, str]:
    spec, summary, exact = run.spec, run.summary, run.summary.exact
    return {
        "rows tested": number(run.test.get("samples"), 0) + ", other data" * other,
        f"{spec.group_noun}s": number(run.test.get("groups"), 0),
        "events": ", ".join(number(one["events"], 0) for one in run.outcomes.values()) or NONE,
        "sites": f"{len(spec.federation.sites)}",
        "method": _method(run),
        "optimizer": _optimizer(run),
        "model": spec.model.name,
        "evaluation": spec.evaluation.name,
        "repeats": f"{getattr(spec.evaluation, 'repeats', 1)}",
        "epochs, best": NONE if exact else f"{summary.epochs}, {summary.best_epoch}",
        "steps": NONE if exact else count(summary.steps, "step"),
        "time": duration(summary.seconds),
        f"up per {member}": summed(run) if exact else size(summary.bytes_up_per_site_step * summary.steps),
        f"down per {member}": summed(run) if exact else size(summary.bytes_down_per_site_step * summary.steps),
        "how it ended": STATUS.get(summary.status, summary.status),
    }


def _method(run: RunResults) -> str:
    if run.summary.exact:
        return "exact"
    method = run.spec.method
    rank, local, preset = getattr(method, "rank", None), run.spec.local_steps, getattr(method, "preset", None)
    between, named = f", local steps {local}" if local else "", {"name", "preset", "rank", "local_steps", "wire"}
    rest = f", preset {preset}" if preset else _others(method, named)
    wire = f", {method.wire}" * (method.wire != "float32")
    return method.name + (f", rank {rank}" if rank else "") + between + wire + rest


def _optimizer(run: RunResults) -> str:
    if run.summary.exact:
        return "–"
    own, factored = run.spec.training.optimizer, run.spec.training.sends_projections
    return f"{own.name} {own.lr:g}" + ", factored" * factored + _others(own, {"name", "lr", "second_moment"})


def _others(part: Part, named: set[str]) -> str:
    """List the settings that differ from their default, except those in `named`."""
    others = part.model_dump(mode="json", exclude=named, exclude_defaults=True)
    return "".join(f", {name} {value}" for name, value in others.items())
