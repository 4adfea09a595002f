"""How far predicted numbers are from the true ones: Bland–Altman from sums, quantiles of residuals from the grid."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rankdad.common.metrics.intervals import QUANTILE, group_deviation
from rankdad.common.metrics.summary import deviations
from rankdad.common.metrics.sums import Parts, difference_edges

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


def agreement(part: Parts, scale: float) -> dict[str, Any]:
    """Return how predictions differ from labels, as JSON; empty for fewer than two samples.

    The mean difference (prediction − label), its standard deviation, the limits between which 95 % of differences
    lie if they are normal, and the slope of differences over averages are exact. Quantiles lie within a cell of the
    grid: each has the cell's ends.

    Source: J. M. Bland and D. G. Altman, Lancet 327 (1986) 307.

    Args:
        part: of a regression's tally.
        scale: unit of its grid.
    """
    n = part.samples
    if n < 2:
        return {}
    label, output, label_square, output_square, _, _, square = part.moments
    mean = (output - label) / n
    deviation = math.sqrt(deviations(output - label, square, n) / (n - 1))
    error, limit_error = deviation / math.sqrt(n), deviation * math.sqrt(1 / n + QUANTILE**2 / (2 * (n - 1)))
    if part.clusters is not None:
        error, *ends = (group_deviation(part, partial(_limit, deviations_away=at)) for at in (0, -QUANTILE, QUANTILE))
        limit_error = max(ends)
    # average = (output + label) / 2; its squares follow from the others: output² + label² = square + 2 · product
    total_square = 2 * (label_square + output_square) - square
    spread = deviations(label + output, total_square, n) / 4
    together = (output_square - label_square - (output - label) / n * (output + label)) / 2
    return {
        "mean": mean,
        "mean_interval": [mean - QUANTILE * error, mean + QUANTILE * error],
        "sd": deviation,
        "limits": [mean - QUANTILE * deviation, mean + QUANTILE * deviation],
        "limit_error": QUANTILE * limit_error,
        "slope": together / spread if spread else None,
        "quantiles": {str(share): _quantile(part.grid.sum(0), share, scale) for share in SHARES},
    }


def _limit(totals: Tensor, deviations_away: float) -> Tensor:
    """Return the mean difference and so many standard deviations more, from the number of samples and the moments."""
    mean = (totals[2] - totals[1]) / totals[0]
    if not deviations_away:  # of no width where all differ alike: a root of 0 has no slope
        return mean
    return mean + deviations_away * (totals[7] / totals[0] - mean.square()).clamp_min(0).sqrt()


def _quantile(counts: Tensor, share: float, scale: float) -> list[float]:
    """Return the ends of the cell in which a quantile of the differences lies."""
    cell = int((counts.cumsum(0) >= share * counts.sum()).nonzero()[0])
    return [float(end) * scale for end in difference_edges()[cell : cell + 2]]


def cells(grid: Tensor, scale: float, centre: float) -> list[tuple[float, float, float, int | float]]:
    """Return average, ends of the difference and count of every cell of the grid that holds a sample."""
    from rankdad.common.metrics.sums import AVERAGES, WIDEST_AVERAGE

    step, edges = 2 * WIDEST_AVERAGE / AVERAGES, (difference_edges() * scale).tolist()
    return [
        (
            centre + ((row + 0.5) * step - WIDEST_AVERAGE) * scale,
            edges[column],
            edges[column + 1],
            grid[row, column].item(),
        )
        for row, column in torch.nonzero(grid).tolist()
    ]
