"""The effect of groups of samples, such as a patient's visits, on a metric's variance: from sums over groups.

For every group, a site sums properties of its samples (right or wrong, error, position of scores), and sends the sums
over groups of all products of two such numbers, which do not identify a group. A metric's influence is a weighted sum
of them; its variance is the sum over groups of squared influences, which these products give for any weights.

The position of scores is described by weights of a few knots, between which influences are taken as linear. The
influence of single samples is known from the histograms of scores: knots are used only for pairs within a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdad.common.metrics.auc import BINS, REACH

KNOTS = 24
WIDEST = 8.0  # of asinh(50 · log-odds from the base): for pairs, scores beyond ±30 count as equal
LEAST = 1e-3  # design effect: smaller ones are rounding errors
RANK = 1e-10  # smaller fractions of the largest eigenvalue are zero


@dataclass(frozen=True, eq=False)
class Clusters:
    """Sums over groups of products of two of a group's sums.

    Args:
        count: number of groups.
        values: float64 [blocks, features, features]: for regression one block of the number of samples and the moments;
            otherwise for each confusion matrix its row sums and hits, with very many classes the totals.
        scores: float64 [outputs, 2 · KNOTS, 2 · KNOTS]: knots of negatives, then of positives; with two classes only
            the second output.
    """

    count: float
    values: Tensor
    scores: Tensor


def hats() -> Tensor:
    """Return the weights of the knots for every bin, float64 [BINS, KNOTS]: at most two per bin, sum 1."""
    middle = (torch.arange(BINS, dtype=torch.float64) + 0.5) * (2 * REACH / BINS) - REACH
    place = (middle.clamp(-WIDEST, WIDEST) + WIDEST) * ((KNOTS - 1) / (2 * WIDEST))
    return (1 - (place.unsqueeze(1) - torch.arange(KNOTS)).abs()).clamp_min(0)


def products(numbers: Tensor, of: Tensor, count: int) -> Tensor:
    """Return the sums over groups of products, the upper triangle of [features, features] row by row.

    Args:
        numbers: of every sample, float64 [n, features].
        of: number of its group, int64 [n].
        count: of groups.
    """
    sums = torch.zeros(count, numbers.shape[1], dtype=torch.float64).index_add_(0, of, numbers)
    row, column = torch.triu_indices(numbers.shape[1], numbers.shape[1])
    return (sums.T @ sums)[row, column]


def triangle(features: int) -> int:
    """Return the number of products of this many features."""
    return features * (features + 1) // 2


def square(triangles: Tensor, features: int) -> Tensor:
    """Return the symmetric matrices [n, features, features] of triangles [n · triangle(features)]."""
    row, column = torch.triu_indices(features, features)
    numbers = triangles.reshape(-1, triangle(features))
    matrices = numbers.new_zeros(len(numbers), features, features)
    matrices[:, row, column] = numbers
    matrices[:, column, row] = numbers
    return matrices


def small_sample(groups: float, samples: float) -> float:
    """Return the factor for an unbiased variance over few groups: 1 if every sample is its own group."""
    return groups * (samples - 1) / ((groups - 1) * samples) if groups > 1 else max(samples, 1.0)


def sandwich(metric: Callable[[Tensor], Tensor], totals: Tensor, matrix: Tensor, groups: float) -> float:
    """Return the standard error of a function of totals over groups, by the delta method; 0 if there is none.

    Args:
        metric: invariant to scaling all totals.
        totals: [features].
        matrix: products over groups, [features, features].
        groups: number of groups.
    """
    slope = torch.func.grad(metric)(totals)
    variance = float(slope @ matrix @ slope) * groups / (groups - 1) if groups > 1 else 0.0
    return math.sqrt(variance) if variance > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of samples within a group, by the positions of their scores.

    Args:
        counts: float64 [2, BINS], negatives and positives.
        cross: float64 [2 · KNOTS, 2 · KNOTS], products over pairs of different samples of one group.
        inverse: float64 [2, KNOTS, KNOTS], maps influences on bins to knots by least squares.
        factor: see `small_sample`.
    """

    counts: Tensor
    cross: Tensor
    inverse: Tensor
    factor: float

    @classmethod
    def of(cls, scores: Tensor, matrix: Tensor, groups: float) -> Pairs:
        """Create the pairs from an output's histograms [2, BINS] and products over groups."""
        counts, weights = scores.double(), hats()
        alone = weights.T @ (counts.unsqueeze(2) * weights)
        cross = matrix - torch.block_diag(*alone)
        inverse = torch.linalg.pinv(alone, rtol=RANK, hermitian=True)
        return cls(counts, cross, inverse, small_sample(groups, float(counts.sum())))

    def added(self, influence: Tensor) -> Tensor:
        """Return the contribution of pairs to the sum of squared influences [..., 2, BINS], [...]."""
        knots = (self.counts * influence) @ hats()
        return self._squared((knots.unsqueeze(-2) @ self.inverse).flatten(-3))

    def design_effects(self, hits: Tensor, members: Tensor) -> Tensor:
        """Return the factors by which groups increase variances of shares, [...].

        Args:
            hits: bins counted in a share's numerator, 0 or 1, [..., 2, BINS].
            members: bins counted in its denominator, [..., 2, BINS].
        """
        number = (members * self.counts).sum((-2, -1))
        share = (hits * self.counts).sum((-2, -1)) / number.clamp_min(1)
        moved = self.added(hits - share[..., None, None] * members)
        return self._effects(moved, self.added(members), share, number)

    def at_edges(self) -> dict[str, Tensor]:
        """Return the design effects of metrics for a threshold at each edge, [BINS + 1] each."""
        kinds, (negatives, positives) = [], self.counts.sum(1)
        for place in range(2):
            weighted = self.counts[place].unsqueeze(1) * hats()
            above = torch.cat([weighted.flip(0).cumsum(0).flip(0), torch.zeros(1, KNOTS)]) @ self.inverse[place]
            both = torch.zeros(BINS + 1, 2, KNOTS, dtype=torch.float64)
            both[:, place] = above
            kinds.append(both.flatten(1))
        false, true = kinds
        above = torch.cat([self.counts.flip(1).cumsum(1).flip(1), torch.zeros(2, 1)], dim=1)
        below, false_number, true_number = false[:1] - false, above[0], above[1]
        correct = negatives - false_number
        figures = {
            "sensitivity": (true, true[:1], true_number, positives),
            "specificity": (below, false[:1], correct, negatives),
            "ppv": (true, true + false, true_number, true_number + false_number),
            "npv": (below, below + true[:1] - true, correct, correct + positives - true_number),
            "flagged": (true + false, true[:1] + false[:1], true_number + false_number, negatives + positives),
        }
        effects = {}
        for name, (hits, members, hit, number) in figures.items():
            share = hit / number.clamp_min(1)
            moved = self._squared(hits - share.unsqueeze(1) * members)
            effects[name] = self._effects(moved, self._squared(members).expand_as(moved), share, number)
        return effects

    def _squared(self, knots: Tensor) -> Tensor:
        return (knots @ self.cross * knots).sum(-1)

    def _effects(self, moved: Tensor, together: Tensor, share: Tensor, number: Tensor) -> Tensor:
        """Return design effects; for shares of 0 or 1, those of samples that are equal within their groups."""
        alone = number * share * (1 - share)
        effect = 1 + torch.where(alone > 0, moved / alone, together / number.clamp_min(1))
        return (effect * self.factor).clamp_min(LEAST).where(number > 0, 1.0)
