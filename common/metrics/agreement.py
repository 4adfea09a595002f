"""Errors of predicted numbers: Bland–Altman from sums, quantiles of residuals from the grid."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rankdad.common.metrics.intervals import QUANTILE, group_deviation
from rankdad.common.metrics.paired import LEAST
from rankdad.common.metrics.summary import deviations
from rankdad.common.metrics.sums import Parts, difference_edges

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
TAILS = (0.025, 0.05, 0.25)  # shares of differences beyond either end of the middle


def agreement(part: Parts, scale: float) -> dict[str, Any]:
    """Return the differences between predictions and labels, as JSON; empty for fewer than two samples.

    The mean difference (prediction − label), its standard deviation and the slope of differences over averages are
    exact. Quantiles lie within a cell of the grid: each has the cell's ends. `middle` is the share of differences that
    lies between two of them, taken as if a cell's samples were spread evenly, or up to its end if it has most of the
    middle: 95 %, or of fewer samples 90 or 50 %, so that `LEAST` of them lie beyond either end.

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
    error = deviation / math.sqrt(n)
    if part.clusters is not None:
        error = group_deviation(part, _mean)
    # average = (output + label) / 2; its squares follow from the others: output² + label² = square + 2 · product
    total_square = 2 * (label_square + output_square) - square
    spread = deviations(label + output, total_square, n) / 4
    together = (output_square - label_square - (output - label) / n * (output + label)) / 2
    return {
        "mean": mean,
        "mean_interval": [mean - QUANTILE * error, mean + QUANTILE * error],
        "sd": deviation,
        "slope": together / spread if spread else None,
        "quantiles": {str(share): _quantile(part.grid.sum(0), share, scale) for share in SHARES},
        "middle": _middle(part.grid.sum(0), scale),
    }


def _mean(totals: Tensor) -> Tensor:
    """Return the mean difference, given the number of samples and the moments."""
    return (totals[2] - totals[1]) / totals[0]


def _middle(counts: Tensor, scale: float) -> dict[str, float] | None:
    """Return the ends of the middle of the differences, and its share; None for few samples."""
    number = float(counts.sum())
    tail = next((one for one in TAILS if one * number >= LEAST), None)
    if tail is None:
        return None
    below, edges = torch.cat([torch.zeros(1), counts.cumsum(0)]).double(), difference_edges() * scale
    ends = []
    for share, outer in ((tail, 0.0), (1 - tail, 1.0)):
        cell = int((below[1:] >= share * number).nonzero()[0])
        inside = (share * number - float(below[cell])) / max(float(counts[cell]), 1e-9)
        inside = outer if float(counts[cell]) > (0.5 - tail) * number else inside  # perhaps all at one place
        ends.append(float(edges[cell] + inside * (edges[cell + 1] - edges[cell])))
    return {"share": 1 - 2 * tail, "low": ends[0], "high": ends[1]}


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
