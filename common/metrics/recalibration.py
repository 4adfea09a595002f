"""Calibration of predicted log-odds: logistic regression of the outcome on them, from histograms of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from rankdad.common.metrics.clusters import Pairs
from rankdad.common.metrics.intervals import QUANTILE

STEPS = 60  # of Newton's method
STEEPEST = 1e3  # larger slopes mean that classes are separable


@dataclass(frozen=True)
class Estimate:
    """A coefficient with its 95 % interval, and the largest error due to bins, to first order."""

    value: float
    low: float
    high: float
    error: float


def recalibrations(
    edges: Tensor, zeros: Tensor, ones: Tensor, pairs: Sequence[Pairs | None]
) -> list[dict[str, Estimate]]:
    """Fit log-odds of the outcome = intercept + slope · predicted log-odds.

    Args:
        edges: float64 [bins + 1], edges of the bins in log-odds.
        zeros: float64 [fits, bins], samples without the outcome, such as those of each site.
        ones: float64 [fits, bins], samples with it.
        pairs: of each fit's samples in groups; None without groups.

    Returns:
        For each fit `slope` (below 1: predictions are too extreme) and `intercept`, fitted together by maximum
        likelihood, and `in_the_large`, the intercept for slope 1 (below 0: risks are too high). The first two need
        different predictions that do not separate the outcomes, and all of them both outcomes.

    Source: D. R. Cox, Biometrika 45 (1958) 562.
    """
    used = ((zeros + ones) > 0).any(0)
    zeros, ones = zeros[:, used], ones[:, used]
    z, half = ((edges[1:] + sign * edges[:-1])[used] / 2 for sign in (1, -1))
    both = (zeros.sum(1) > 0) & (ones.sum(1) > 0)
    line, several = torch.stack([torch.ones_like(z), z]), both & (((zeros + ones) > 0).sum(1) > 1)
    whole = _maxima(line, torch.zeros_like(z), zeros, ones, half, several, pairs, used)
    large = _maxima(line[:1], z, zeros, ones, half, both, pairs, used)
    return [
        ({} if own is None else {"slope": own[1], "intercept": own[0]})
        | ({} if alone is None else {"in_the_large": alone[0]})
        for own, alone in zip(whole, large, strict=True)
    ]


def recalibrated(
    found: Mapping[str, Estimate], *, vague: bool, smooth: bool = False
) -> dict[str, dict[str, float | None]]:
    """Return estimates as JSON; without the slope and related values for vague scores, such as few smooth ones.

    The bins are the smallest error of smooth scores, whose own error is unknown.
    """
    told = {name: asdict(one) for name, one in found.items() if not vague or name == "in_the_large"}
    return {name: one | ({"error": None} if smooth else {}) for name, one in told.items()}


def _maxima(
    x: Tensor,
    offset: Tensor,
    zeros: Tensor,
    ones: Tensor,
    half: Tensor,
    known: Tensor,
    pairs: Sequence[Pairs | None],
    used: Tensor,
) -> list[list[Estimate] | None]:
    """Fit log-odds = offset + coefficients · x by Newton's method.

    Args:
        x: [coefficients, bins]; with several coefficients, the last row is the scores.
        offset: [bins].
        zeros: samples without the outcome, [fits, bins].
        ones: samples with it, [fits, bins].
        half: half the bins' widths, [bins].
        known: fits that may have a maximum, [fits].
        pairs: of samples in groups.
        used: which of all bins these are.
    """
    both, size = zeros + ones, len(x)
    products = (x.unsqueeze(1) * x).flatten(0, 1).T
    found, going, converged = torch.zeros(len(both), size, dtype=torch.float64), known, torch.zeros_like(known)
    for _ in range(STEPS):
        p = (offset + found @ x).sigmoid()
        fisher = ((both * p * (1 - p)) @ products).unflatten(1, (size, size))
        slope = (ones - both * p) @ x.T
        change = (torch.linalg.pinv(fisher, hermitian=True) @ slope.unsqueeze(2)).squeeze(2)
        longest = change.abs().amax(1)
        moved = found + change / longest.clamp_min(1.0).unsqueeze(1)  # a step of more than 1 would overshoot
        found = torch.where(going.unsqueeze(1), moved, found)
        converged = converged | (going & (longest < 1e-10))
        going = going & (longest < STEEPEST) & (found.abs().amax(1) <= STEEPEST) & ~converged
        if not going.any():
            break
    p = (offset + found @ x).sigmoid()
    converged = converged & (torch.linalg.matrix_rank(fisher, hermitian=True) == size)
    inverse = torch.linalg.inv(fisher[converged])
    fits: list[list[Estimate] | None] = [None] * len(both)
    for place, own in zip(converged.nonzero().flatten().tolist(), inverse, strict=True):
        risk, (error, variance) = p[place], (torch.zeros(size, dtype=torch.float64), own.diagonal())
        # A sample's score moves by at most half its bin; the gradient of the likelihood with it, and the coefficients.
        steepness = found[place, -1] if size > 1 else torch.tensor(1.0)
        for count, outcome in ((zeros[place], 0.0), (ones[place], 1.0)):
            shift = -steepness * risk * (1 - risk) * x
            if size > 1:
                shift[-1] += outcome - risk
            error += (own @ shift).abs() @ (count * half)
        if (grouped := pairs[place]) is not None:
            influence = torch.zeros(size, 2, len(used), dtype=torch.float64)
            influence[:, :, used] = (own @ x).unsqueeze(1) * torch.stack([-risk, 1 - risk])
            variance = ((variance + grouped.added(influence)) * grouped.factor).clamp_min(0)
        spread = QUANTILE * variance.sqrt()
        rows = torch.stack([found[place], found[place] - spread, found[place] + spread, error], dim=1).tolist()
        fits[place] = [Estimate(*row) for row in rows]
    return fits
