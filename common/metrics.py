"""Pooled metrics from sums and histograms: no site shows a sample, a score or a label.

A class's scores enter as histograms of the log-odds of that class, one of its own samples and one of all others. Bins
are equal steps of asinh(50 · (log-odds − those of a guess)): fine around a guess, where an untrained network's scores
lie, and in equal ratios outwards, where a trained one's lie. Equal steps of the probability were off by 9e-4 there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

BINS = 1000
FINENESS = 50.0
REACH = 11.5  # asinh(50 · 1000): log-odds further than 1000 from a guess share the outermost bin


@dataclass(frozen=True)
class Metrics:
    """Metrics of one split; None where there was nothing to measure.

    Args:
        samples: how many samples were pooled.
        loss: mean cross-entropy.
        accuracy: part of the samples whose class was right.
        auc: mean over classes of the area under the ROC curve, one class against the rest.
        auc_error: largest possible difference between this auc and that of the exact scores.
    """

    samples: int
    loss: float | None
    accuracy: float | None
    auc: float | None
    auc_error: float | None


@dataclass(frozen=True, eq=False)
class Tally:
    """What adds up over sites: the sums behind `Metrics`.

    Args:
        samples: number of samples.
        loss: sum of cross-entropies.
        correct: number of right classes.
        scores: histograms int64 [classes, 2, BINS]; [c, 1] counts samples of class c, [c, 0] all others.
    """

    samples: int
    loss: float
    correct: int
    scores: Tensor

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.samples + other.samples,
            self.loss + other.loss,
            self.correct + other.correct,
            self.scores + other.scores,
        )


def tally(logits: Tensor, labels: Tensor) -> Tally:
    """Sum up a batch: logits [n, classes], labels int64 [n]."""
    classes = logits.shape[1]
    logits = logits.double()
    scores = torch.zeros(classes, 2, BINS, dtype=torch.int64)
    if len(labels):
        bins = _bins(logits)
        for index in range(classes):
            for own in (0, 1):
                chosen = bins[(labels == index) == bool(own), index]
                scores[index, own] = torch.bincount(chosen, minlength=BINS)
    loss = float(F.cross_entropy(logits, labels, reduction="sum")) if len(labels) else 0.0
    return Tally(len(labels), loss, int((logits.argmax(dim=1) == labels).sum()), scores)


def _bins(logits: Tensor) -> Tensor:
    """Return each sample's bin for each class, int64 [n, classes]."""
    # The log-odds of the likeliest class come from the others' own sum: from 1 − p they would all be lost near p = 1.
    log_p = F.log_softmax(logits, dim=1)
    likeliest = logits.argmax(dim=1, keepdim=True)
    rest = logits.scatter(1, likeliest, -math.inf).logsumexp(dim=1, keepdim=True)
    log_odds = log_p - torch.log1p(-log_p.exp().clamp_max(0.75))
    log_odds = log_odds.scatter(1, likeliest, logits.gather(1, likeliest) - rest) + math.log(logits.shape[1] - 1)
    place = (torch.asinh(FINENESS * log_odds) + REACH) * (BINS / (2 * REACH))
    return place.long().clamp(0, BINS - 1)


def summarise(total: Tally) -> Metrics:
    """Turn sums into means, and histograms into the AUC and its error bound."""
    if total.samples == 0:
        return Metrics(0, None, None, None, None)
    area, error = auc(total.scores)
    return Metrics(total.samples, total.loss / total.samples, total.correct / total.samples, area, error)


def auc(scores: Tensor) -> tuple[float | None, float | None]:
    """Return the mean AUC over classes and its error bound, from histograms [classes, 2, bins].

    Two samples in one bin count half, as ties do; so the error is at most half the share of such pairs. A class
    without samples of its own, or without others, has no AUC and is left out.
    """
    others, own = scores[:, 0].double(), scores[:, 1].double()
    pairs = own.sum(dim=1) * others.sum(dim=1)
    measured = pairs > 0
    if not measured.any():
        return None, None
    below = others.cumsum(dim=1) - others
    areas = (own * (below + others / 2)).sum(dim=1)[measured] / pairs[measured]
    errors = (own * others / 2).sum(dim=1)[measured] / pairs[measured]
    return float(areas.mean()), float(errors.mean())
