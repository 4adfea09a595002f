"""Areas under ROC curves from histograms of scores.

Each output has two histograms of its log-odds: one of its positives, which are the samples of its class or label, and
one of its negatives, which are all others. Bins are equal steps of asinh(50 · (log-odds − base)): fine around the base,
where an untrained network's scores lie, and in equal ratios outwards, where a trained one's lie. Equal steps of the
probability were off by 9e-4 there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.spec.tasks import Classification, TaskSpec

BINS = 1000
FINENESS = 50.0
COVERS = 2.0  # standard deviations that smoothing may change pairs between sites; few tests exceed it
MOST_OFF = 0.05  # an AUC that may be further off is none
REACH = 11.5  # asinh(50 · 1000): log-odds further than 1000 from the base are in the outermost bin


def class_log_odds(logits: Tensor) -> Tensor:
    """Return each class's log-odds against the rest, [n, classes], from logits float64 [n, classes]."""
    # The log-odds of the likeliest class come from a sum over the other classes: 1 − p would lose them near p = 1.
    log_p = F.log_softmax(logits, dim=1)
    likeliest = logits.argmax(dim=1, keepdim=True)
    rest = logits.scatter(1, likeliest, -math.inf).logsumexp(dim=1, keepdim=True)
    log_odds = log_p - torch.log1p(-log_p.exp().clamp_max(0.75))
    return log_odds.scatter(1, likeliest, logits.gather(1, likeliest) - rest)


def log_odds(task: TaskSpec, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-odds float64 [n, task.outputs] of all outcomes, and which samples have them, bool of this shape."""
    if isinstance(task, Classification):
        return class_log_odds(outputs), labels.unsqueeze(1) == torch.arange(task.classes)
    return outputs, labels > 0.5


def score_bins(distance: Tensor) -> Tensor:
    """Return the bins int64 of log-odds by their distance from the base; NaN has a bin, too."""
    place = (torch.asinh(FINENESS * distance) + REACH) * (BINS / (2 * REACH))
    return place.nan_to_num(0.0).clamp(0, BINS - 1).long()


def bin_edges(base: float) -> Tensor:
    """Return the edges of bins in log-odds, float64 [BINS + 1]; the outermost bins also hold everything beyond."""
    steps = torch.arange(BINS + 1, dtype=torch.float64) * (2 * REACH / BINS) - REACH
    return base + torch.sinh(steps) / FINENESS


def pairs(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count pairs of a positive and a negative, from histograms [outputs, 2, bins]; each answer is float64 [outputs].

    Returns:
        concordant: pairs whose positive has the larger score; two samples in one bin count half, as ties do.
        unsure: half the pairs in one bin, the largest error of the first number.
        all: all pairs.
    """
    negative, positive = scores[:, 0].double(), scores[:, 1].double()
    below = negative.cumsum(dim=1) - negative
    unsure = (positive * negative / 2).sum(dim=1)
    return (positive * below).sum(dim=1) + unsure, unsure, positive.sum(dim=1) * negative.sum(dim=1)


def areas(scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each output's AUC, its error, and its number of pairs, float64 [outputs] each.

    With smooth scores, the site states the error for pairs of its own samples, and other pairs are assumed to have the
    same. This is an estimate: at most one test in twenty has a larger error (`python -m benchmarks curves`). Otherwise
    the error is at most half the pairs in one bin.

    Args:
        scores: [outputs, 2, bins].
        order: [outputs, 3]; see `Parts.order` and `Parts.across`, or their sum.
    """
    concordant, unsure, number = pairs(scores)
    off, square, known = order.double().unbind(dim=1)
    some, known_some = number.clamp_min(1), known.clamp_min(1)
    area = (concordant / some + off / known_some).clamp(0, 1)
    likely = (concordant + 1) / (number + 2)
    least = likely * (1 - likely) * known  # with few pairs, possibly none change places
    spread = COVERS * (unsure / some + (square + least).sqrt() / known_some) * (1 - known / some).clamp_min(0)
    return area, torch.where(known > 0, spread, unsure / some), number


def exact_pairs(scores: Tensor, positive: Tensor) -> tuple[float, float]:
    """Return how many pairs of a positive and a negative are in order, with ties as half, and the number of pairs.

    Args:
        scores: [n].
        positive: bool [n].
    """
    negatives, positives = scores[~positive].sort().values, scores[positive].contiguous()
    below, within = (torch.searchsorted(negatives, positives, right=right).sum() for right in (False, True))
    return float(below + within) / 2, float(len(negatives) * len(positives))


def placements(scores: Tensor) -> Tensor:
    """Return the influence of a sample in each bin on each output's AUC, float64 [outputs, 2, bins]."""
    negative, positive = scores[:, 0].double(), scores[:, 1].double()
    negatives, positives = (one.sum(dim=1, keepdim=True).clamp_min(1) for one in (negative, positive))
    above_negative = (negative.cumsum(dim=1) - negative / 2) / negatives
    below_positive = (positives - positive.cumsum(dim=1) + positive / 2) / positives
    area = (positive * above_negative).sum(dim=1, keepdim=True) / positives
    return torch.stack([(below_positive - area) / negatives, (above_negative - area) / positives], dim=1)


def delong_deviations(scores: Tensor) -> Tensor:
    """Return the standard error of each output's AUC, [outputs]; NaN with fewer than two positives or negatives.

    A sample's placement is the share of opposite samples that it is ranked correctly against. The AUC's variance is
    that of the positives' placements over their number, plus the same for the negatives.

    Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837.
    """
    negative, positive = scores[:, 0].double(), scores[:, 1].double()
    negatives, positives = negative.sum(dim=1, keepdim=True), positive.sum(dim=1, keepdim=True)
    above_negative = (negative.cumsum(dim=1) - negative / 2) / negatives
    below_positive = (positives - positive.cumsum(dim=1) + positive / 2) / positives
    area = (positive * above_negative).sum(dim=1, keepdim=True) / positives
    variance = (positive * (above_negative - area).square()).sum(dim=1, keepdim=True) / (positives - 1) / positives
    variance += (negative * (below_positive - area).square()).sum(dim=1, keepdim=True) / (negatives - 1) / negatives
    return variance.sqrt().where((positives > 1) & (negatives > 1), math.nan).squeeze(1)
