"""Check whether several runs tested the same rows, and find the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rankdad.common.spec.tasks import LOWER_IS_BETTER, Metric
from rankdad.remote.results.comparison import DIGITS
from rankdad.remote.results.run_results import RunResults


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
        if run is not best and (overlap or round(run.test[name], DIGITS) == round(best.test[name], DIGITS)):
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
