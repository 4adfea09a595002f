"""Compare a run's model with its references on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankdad.common.metrics.intervals import Interval
from rankdad.common.metrics.paired import WITHIN
from rankdad.common.metrics.paired_sums import Difference
from rankdad.common.rounds.scores import GUESS
from rankdad.common.spec.tasks import LOWER_IS_BETTER, Metric, Regression, decimals
from rankdad.remote.results.paired_folds import DIFFERENCE
from rankdad.remote.results.run_results import BASELINE, RunResults, finite
from rankdad.remote.results.run_summary import Values

REFERENCES = ("local", "linear", "site")  # in the report's order
DIGITS = 3  # printed


@dataclass(frozen=True)
class OwnModel:
    """A hospital whose own model has the better metric.

    Args:
        site: the hospital.
        own: metric of its own model.
        shared: metric of the run's model there.
        difference: paired difference of the two; None if unknown.
    """

    site: str
    own: float
    shared: float
    difference: Difference | None

    @property
    def is_sure(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        found = self.difference
        return found is not None and found.low < found.high and excludes_zero(found)


def comparison_metric(run: RunResults) -> Metric:
    """Return the metric for comparing models."""
    return "mae" if isinstance(run.spec.task, Regression) else "auc"


def excludes_zero(found: Difference) -> bool:
    """Return whether the interval excludes 0."""
    return found.low > 0 or found.high < 0


def is_better(name: str, found: Difference) -> bool:
    """Return whether the run's model has the better metric."""
    return found.value != 0 and (found.value < 0) == (name in LOWER_IS_BETTER)


def significant_sign(name: str, found: Difference) -> int:
    """Return 1 if the run's model is significantly better, −1 if significantly worse, else 0."""
    return 0 if not excludes_zero(found) else 1 if is_better(name, found) else -1


def primary_difference(run: RunResults, reference: str) -> tuple[str, Difference] | None:
    """Return the metric and difference that a verdict is based on: within hospitals where known."""
    found = run.differences_from(reference)
    name = next((name for name in (*[WITHIN] * (reference != "linear"), comparison_metric(run)) if name in found), None)
    return None if name is None else (name, found[name])


def gain(name: Metric, model: float, other: float) -> float:
    """Return the model's advantage over another, from rounded figures; negative if it is worse."""
    digits = decimals(name, model, DIGITS)
    difference = round(model, digits) - round(other, digits)
    return -difference if name in LOWER_IS_BETTER else difference


def site_difference(row: dict[str, float], rival: str, name: str) -> Difference | None:
    """Return the paired difference from a rival at one site; None if unknown."""
    value, low, high = (row.get(f"{rival}_{name}{DIFFERENCE}{end}") for end in ("", "_low", "_high"))
    return None if value is None or low is None or high is None else Difference(value, low, high, "")


def differences_from_guess(run: RunResults) -> dict[str, Difference | None]:
    """Return each hospital's difference in error from the hospital-only guess; None without an interval."""
    name = error_metric(run)
    return {
        site: site_difference(row, GUESS, name)
        for site, row in run.by_site.items()
        if row.get("samples") and BASELINE + name in row
    }


def error_metric(run: RunResults) -> Metric:
    """Return the error metric for comparisons by hospital. It is defined even if a hospital has one class."""
    return "mae" if isinstance(run.spec.task, Regression) else "loss"


def reference_value(run: RunResults, reference: str) -> tuple[float | None, Interval | None]:
    """Return a reference's metric and interval over all rows; None if it was not tested on all of them."""
    found, name = run.summary.metrics.references.get(reference), comparison_metric(run)
    if found is None or found.samples != run.test.get("samples"):
        return None, None
    return found.values.get(name), found.intervals.get(name)


def shown_references(run: RunResults) -> list[str]:
    """List the references to report, in order. Of two that are the same computation, only the first."""
    found = [reference for reference in REFERENCES if reference in run.summary.metrics.references]
    weighted = getattr(run.spec.task, "class_weights", "none") != "none"  # which a site's linear model ignores
    same = {"local", "site"} <= set(found) and run.summary.exact and not weighted
    return [reference for reference in found if not (same and reference == "site")]


def within_hospitals(run: RunResults, values: Values) -> float | None:
    """Return the AUC over pairs of rows of the same hospital; None for one hospital, or with regions."""
    several = len(run.by_site) > 1 and not run.spec.federation.regions
    return finite(values).get("auc") if several else None


def compared_sites(run: RunResults, reference: str) -> list[str]:
    """List the hospitals with metrics of both the model and a reference."""
    name = comparison_metric(run)
    return [site for site, row in run.by_site.items() if {name, f"{reference}_{name}"} <= row.keys()]


def better_own_models(run: RunResults, reference: str) -> list[OwnModel]:
    """List the hospitals where a reference of their own has the better metric."""
    name, found = comparison_metric(run), list[OwnModel]()
    for site in compared_sites(run, reference):
        row = run.by_site[site]
        one = OwnModel(site, row[f"{reference}_{name}"], row[name], site_difference(row, reference, name))
        apart = one.difference
        if gain(name, one.shared, one.own) < 0 and (not apart or (apart.value != 0 and not is_better(name, apart))):
            found.append(one)
    return found


def best_of(runs: Sequence[RunResults], name: Metric) -> RunResults | None:
    """Return the run whose interval is better than all others; None if there is none, or rows differ."""
    if not have_same_rows(runs):
        return None
    known = [run for run in runs if run.test.get(name) is not None]
    intervals = [run.summary.metrics.intervals.get(name) for run in known]
    sign = -1 if name in LOWER_IS_BETTER else 1
    best = max(known, key=lambda run: sign * run.test[name])
    own = best.summary.metrics.intervals.get(name)
    for run, other in zip(known, intervals, strict=True):
        if own is None or other is None:
            return None
        overlap = own.low <= other.high and other.low <= own.high
        if run is not best and (overlap or not gain(name, best.test[name], run.test[name])):
            return None
    return best


def have_same_rows(runs: Sequence[RunResults]) -> bool:
    """Return whether all runs tested the same rows, as far as their figures show."""
    return not any(differs_in_rows(run, runs) for run in runs)


def differs_in_rows(run: RunResults, runs: Sequence[RunResults]) -> bool:
    """Return whether a run tested other rows than the first tested run.

    Compares numbers of rows and events, and labels in Table 1. Names of sites count only if both runs have several:
    `simulate --pooled` joins all rows at one site.
    """
    first = next((one for one in runs if "samples" in one.test), run)
    sites, its = run.spec.federation.sites, first.spec.federation.sites
    named = sites == its or 1 in (len(sites), len(its))
    labelled = all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(_labels(run), _labels(first), strict=False))
    return "samples" in run.test and not (named and labelled and _tested(run) == _tested(first))


def _tested(run: RunResults) -> tuple[float | None, list[float]]:
    return run.test.get("samples"), [one["events"] for one in run.outcomes.values()]


def _labels(run: RunResults) -> list[float]:
    """Return the counts of classes, or the mean and SD, of all rows' labels in Table 1."""
    label = run.summary.table1.get("pooled", {}).get("label", {})
    return [float(one) for one in (label.get("counts") or [label.get("mean"), label.get("sd")]) if one is not None]
