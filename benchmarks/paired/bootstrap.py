"""The bootstrap of the difference of two models on the same rows: it needs all rows, as no aggregator has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Metric = Callable[[Floats], Floats]


def drawn(groups: NDArray[np.int64], draws: int, seed: int = 0, places: NDArray[np.int64] | None = None) -> Floats:
    """Return how often each row is drawn, [draws, n]: as many groups as there are, with replacement.

    Args:
        groups: number of each row's group, from 0; of rows by themselves each has its own.
        draws: how many samples.
        seed: of the generator.
        places: of each row; then as many groups are drawn of every place as it has. All together without it.
    """
    generator, often = np.random.default_rng(seed), np.zeros((draws, int(groups.max()) + 1))
    for place in [None] if places is None else np.unique(places):
        own = np.unique(groups if place is None else groups[places == place])
        often[:, own] = generator.multinomial(len(own), np.full(len(own), 1 / len(own)), size=draws)
    return often[:, groups]


def auc(
    scores: Floats, positive: NDArray[np.bool_], folds: NDArray[np.int64], places: NDArray[np.int64] | None = None
) -> Metric:
    """Return a function from weights [draws, n] of rows to the AUC within folds, averaged by rows.

    Args:
        scores: of one output, [n].
        positive: whether a row is one, [n].
        folds: in which each row was tested, [n].
        places: where each row is from, [n]: pairs of rows of one place count alone; all pairs without it.
    """
    parts = []
    for fold in np.unique(folds):
        rows = np.flatnonzero(folds == fold)
        ups, downs = rows[positive[rows]], rows[~positive[rows]]
        higher = np.sign(scores[ups][:, None] - scores[downs]) / 2 + 0.5
        counts = np.ones_like(higher) if places is None else (places[ups][:, None] == places[downs]).astype(float)
        parts.append((rows, ups, downs, counts, higher * counts))

    def area(weights: Floats) -> Floats:
        total, rows_in_all = np.zeros(len(weights)), np.zeros(len(weights))
        for rows, ups, downs, counts, higher in parts:
            one, other, size = weights[:, ups], weights[:, downs], weights[:, rows].sum(1)
            pairs = ((one @ counts) * other).sum(1)
            total += size * ((one @ higher) * other).sum(1) / np.maximum(pairs, 1)
            rows_in_all += size * (pairs > 0)
        return total / rows_in_all

    return area


def mean(values: Floats) -> Metric:
    """Return a function from weights [draws, n] of rows to the mean of their values [n]."""

    def weighted(weights: Floats) -> Floats:
        average: Floats = weights @ values / weights.sum(1)
        return average

    return weighted


def deviation(one: Metric, other: Metric, weights: Floats) -> float:
    """Return the standard deviation over draws of the difference between two metrics of the same rows."""
    return float(np.std(one(weights) - other(weights), ddof=1))


def half_interval(one: Metric, other: Metric, weights: Floats) -> float:
    """Return half the width of the interval between the 2.5 and 97.5 % quantiles of the difference over draws."""
    low, high = np.quantile(one(weights) - other(weights), [0.025, 0.975])
    return float(high - low) / 2
