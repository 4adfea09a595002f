"""Means of metrics over repetitions of a cross-validation, with the same samples in other folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from statistics import fmean
from typing import Any, TypeVar

from rankdad.common.metrics.intervals import Interval
from rankdad.common.metrics.paired_sums import Difference
from rankdad.common.metrics.summary import Metrics
from rankdad.common.metrics.sums import Tally
from rankdad.common.spec.tasks import Metric

I = TypeVar("I", Interval, Difference)  # noqa: E741


def mean_metrics(found: Sequence[Metrics]) -> Metrics:
    """Return the mean of each metric over the repetitions that have it; the largest error of the AUC."""
    if len(found) == 1:
        return found[0]
    errors = [one.auc_error for one in found if one.auc_error is not None]
    samples, absent = round(fmean(one.samples for one in found)), max(one.absent for one in found)
    return Metrics(samples, mean_values([one.values for one in found]), max(errors, default=None), absent)


def mean_values(found: Sequence[Mapping[Metric, float | None]]) -> dict[Metric, float | None]:
    """Return the mean of each value over the repetitions that have it."""
    known = {name: [one[name] for one in found] for name in found[0]}
    numbers = {name: [value for value in values if value is not None] for name, values in known.items()}
    return {name: fmean(values) if values else None for name, values in numbers.items()}


def mean_intervals(found: Sequence[Mapping[Metric, I]]) -> dict[Metric, I]:
    """Return intervals, or differences with intervals, averaged over repetitions.

    A repetition predicts the same samples again: it does not increase their number, and only removes the variance due
    to the assignment of folds.
    """
    if len(found) == 1:
        return dict(found[0])
    return {
        name: replace(
            first,
            method=f"{first.method}, mean of {len(found)} repeats",
            **{end: fmean(getattr(one[name], end) for one in found) for end in vars(first) if end != "method"},
        )
        for name, first in found[0].items()
        if all(name in one for one in found)
    }


def mean_document(found: Sequence[Any]) -> Any:
    """Return the mean of JSON documents, number by number.

    Parts that are missing in one of them have no mean: keys, items beyond the shortest list, None.
    """
    first = found[0]
    if all(one == first for one in found):  # keeps counts integers, and text
        return first
    if any(one is None for one in found):
        return None
    if isinstance(first, dict):
        return {key: mean_document([one[key] for one in found]) for key in first if all(key in one for one in found)}
    if isinstance(first, list):
        return [mean_document(items) for items in zip(*found, strict=False)]
    return fmean(found)


def mean_tally(found: Sequence[Tally]) -> Tally:
    """Return the mean of tallies, in which a sample counts once and each of its predictions as a fraction."""
    if len(found) == 1:
        return found[0]
    total = reduce(add, found)
    return Tally(total.counts / len(found), total.sums / len(found))
