"""Is it worth it: the model against each hospital alone and against linear models, on the same rows."""

from __future__ import annotations

from collections.abc import Iterator

from rankdad.common.metrics import Interval
from rankdad.common.spec.tasks import LOWER_IS_BETTER, Metric, Regression
from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.narrative import NAMES, count, listed, number
from rankdad.remote.report.run_results import RunResults

REFERENCES = {
    "local": "each hospital alone",
    "linear": "linear, all hospitals",
    "site": "linear, each hospital alone",
}
MODELS = {
    "local": "The same model, trained at each hospital alone,",
    "linear": "A linear model of all hospitals",
    "site": "A linear model of each hospital alone",
}
DIGITS = 3  # printed
MAX_SITES = 40  # in the table; of more those that lose most by taking part


def measure(run: RunResults) -> Metric:
    """Return the metric that models are compared by."""
    return "mae" if isinstance(run.spec.task, Regression) else "auc"


def gain(name: Metric, model: float, other: float) -> float:
    """Return by how much a model is better than another one, as printed; below 0 it is worse."""
    difference = round(model, DIGITS) - round(other, DIGITS)
    return -difference if name in LOWER_IS_BETTER else difference


def value(run: RunResults, reference: str) -> tuple[float | None, Interval | None]:
    """Return what a reference reaches over all samples, with its interval; None where it lacks some of the samples."""
    found, name = run.summary.metrics.references.get(reference), measure(run)
    if found is None or found.samples != run.test.get("samples"):
        return None, None
    return found.values.get(name), found.intervals.get(name)


def worth(run: RunResults) -> Iterator[str]:
    """Yield what training together adds to each reference, and where it adds nothing, by name."""
    name, references = measure(run), run.summary.metrics.references
    for reference in (reference for reference in REFERENCES if reference in references and name in run.test):
        reached, interval = value(run, reference)
        if reached is not None:
            within = f" (95 % interval {number(interval.low)} to {number(interval.high)})" if interval else ""
            more = gain(name, run.test[name], reached)
            less = "as good"
            if abs(more) >= 10**-DIGITS / 2:
                less = f"{number(abs(more))} {'better' if more > 0 else 'worse'}"
                if interval and _holds(interval, run.test[name]):
                    less += ", which is no more than chance may make"
            yield f"{MODELS[reference]} has an {NAMES[name]} of {number(reached)}{within}: this model is {less}."
        if reference != "linear":
            yield from _where(run, reference)


def _where(run: RunResults, reference: str) -> Iterator[str]:
    """Yield where a hospital does better alone, and where there is nothing to compare with."""
    name, rows = measure(run), run.by_site
    theirs = f"{reference}_{name}"
    both = {site: row for site, row in rows.items() if name in row and theirs in row}
    better = [site for site, row in both.items() if gain(name, row[name], row[theirs]) < 0]
    what = "its own model" if reference == "local" else "its own linear model"
    if better:
        figures = [
            f"{site} ({number(row[theirs])} against {number(row[name])}{_chance(row, name, theirs)})"
            for site, row in both.items()
            if site in better
        ]
        where = f"{len(better)} of {count(len(both), 'hospital')}"
        yield f"At {where} {what} has the better {NAMES[name]}: {listed(figures)}."
    elif len(both) == 1:
        yield f"At the one hospital {what} has no better {NAMES[name]}."
    elif both:
        yield f"At none of {len(both)} hospitals has {what} a better {NAMES[name]}."
    if missing := [site for site, row in rows.items() if row.get("samples") and not row.get(f"{reference}_samples")]:
        yield f"There is no model of its own to compare with at {listed(missing)}."


def reference_table(run: RunResults) -> NumberTable | None:
    """Return the model beside its references, over all samples and by site; None where there are none."""
    found, name, rows = run.summary.metrics.references, measure(run), run.by_site
    names = [reference for reference in REFERENCES if reference in found]
    if not names or name not in run.test:
        return None
    pooled = [_cell(run.test[name], run.summary.metrics.intervals.get(name))]
    cells = [["all sites", *pooled, *(_cell(*value(run, reference)) for reference in names)]]
    shown = list(rows)
    if len(rows) > MAX_SITES:
        theirs = f"{next((one for one in names if one != 'linear'), names[0])}_{name}"
        shown.sort(key=lambda site: gain(name, rows[site].get(name, 0.0), rows[site].get(theirs, 0.0)))
    for site in shown[:MAX_SITES]:
        figures = [_cell(rows[site].get(key), _interval(rows[site], key)) for key in _keys(names, name)]
        cells.append([site, *figures])
    return NumberTable([NAMES[name], "this model", *(REFERENCES[reference] for reference in names)], cells)


def _keys(names: list[str], name: Metric) -> list[str]:
    return [name, *(f"{reference}_{name}" for reference in names)]


def _interval(row: dict[str, float], key: str) -> Interval | None:
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    return None if low is None or high is None else Interval(low, high, "")


def _chance(row: dict[str, float], name: str, theirs: str) -> str:
    """Return that a site's difference is within chance: its figure lies in the interval of the other model's."""
    interval = _interval(row, theirs)
    return ", within chance" if interval and _holds(interval, row[name]) else ""


def _cell(reached: float | None, interval: Interval | None) -> str:
    return number(reached) + (f" ({number(interval.low)} to {number(interval.high)})" if interval else "")


def _holds(interval: Interval, reached: float) -> bool:
    return interval.low <= reached <= interval.high
