"""Confidence intervals of metrics from pooled out-of-fold predictions.

They treat predictions as independent. In cross-validation each sample is predicted once, by a model that has not seen
it. Models of different folds share training samples, so this is an approximation; a standard error over folds would be
worse, because it treats folds as independent repetitions. Several samples of one person, or sites that differ, make the
true interval wider. An interval of width zero (as for an AUC of 1) is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from rankdad.common.metrics.auc import delong_deviations
from rankdad.common.metrics.summary import ROUNDING, balanced, deviations, summarise
from rankdad.common.metrics.sums import Parts, Tally, parts
from rankdad.common.spec.tasks import Metric, Regression, TaskSpec

QUANTILE = NormalDist().inv_cdf(0.975)  # of intervals of 95 %


@dataclass(frozen=True)
class Interval:
    """A confidence interval of 95 % of a metric.

    Args:
        low: lower end.
        high: upper end.
        method: name of the method.
    """

    low: float
    high: float
    method: str


def intervals(task: TaskSpec, total: Tally) -> dict[Metric, Interval]:
    """Return intervals of the metrics that have one: accuracy, AUC, balanced accuracy; mae and pearson_r.

    accuracy: Wilson's. Of several labels it counts samples, not labels: a sample's mean over labels lies between 0 and
    1, so its variance is at most that of hits and misses with the same mean.
    auc: DeLong's, of the binned scores. Of several classes or labels the standard error of the mean is at most the
    mean of theirs, however they depend on each other: the interval is that wide, which is conservative.
    balanced_accuracy: the delta method; of several labels conservative likewise.
    mae: the normal approximation of a mean of absolute errors.
    pearson_r: Fisher's z, which takes label and output for jointly normal.

    Args:
        task: what was predicted.
        total: tally of all samples, each predicted once by a model that has not seen it.
    """
    part, values = parts(task, total), summarise(task, total).values
    if part.samples == 0:
        return {}
    limits: dict[Metric, Interval | None]
    if isinstance(task, Regression):
        limits = {"mae": _mean_error(part), "pearson_r": _fisher(values["pearson_r"], part.samples)}
    else:
        several = task.name == "multi-label" and task.labels > 1
        errors = delong_deviations(part.scores)[(part.scores.sum(dim=2) > 0).all(dim=1)]
        delong = "DeLong" if task.outputs <= 2 and not several else "DeLong, standard errors averaged (conservative)"
        delta = "delta method, standard errors averaged (conservative)" if several else "delta method"
        limits = {
            "accuracy": _wilson(values["accuracy"], part.samples),
            "auc": _normal(values["auc"], float(errors.mean()), delong),
            "balanced_accuracy": _normal(
                values["balanced_accuracy"], float(balanced(part.confusion)[1].sqrt().mean()), delta
            ),
        }
    return {name: interval for name, interval in limits.items() if interval is not None}


def _normal(value: float | None, error: float, method: str) -> Interval | None:
    if value is None or not error > 0:
        return None
    return Interval(max(0.0, value - QUANTILE * error), min(1.0, value + QUANTILE * error), method)


def wilson(hits: Tensor, counts: Tensor, quantile: float = QUANTILE) -> tuple[Tensor, Tensor]:
    """Return the ends of intervals of shares, 0 to 1 of nothing. Source: E. B. Wilson, JASA 22 (1927) 209."""
    share, square = hits / counts.clamp_min(1), quantile**2 / counts.clamp_min(1)
    half = quantile * (share * (1 - share) / counts.clamp_min(1) + square / (4 * counts.clamp_min(1))).sqrt()
    low, high = ((share + square / 2 + sign * half) / (1 + square) for sign in (-1, 1))
    low, high = torch.minimum(low, share).clamp_min(0), torch.maximum(high, share).clamp_max(1)  # whatever is rounded
    return torch.where(counts > 0, low, 0.0), torch.where(counts > 0, high, 1.0)


def _wilson(share: float | None, samples: int) -> Interval | None:
    if share is None:
        return None
    low, high = wilson(*torch.tensor([share * samples, samples], dtype=torch.float64))
    return Interval(float(low), float(high), "Wilson")


def _mean_error(part: Parts) -> Interval | None:
    """Return the interval of the mean absolute error."""
    samples = part.samples
    *_, absolute, square = part.moments
    variance = deviations(absolute, square, samples) / max(samples - 1, 1)
    if variance == 0:
        return None
    mean, half = absolute / samples, QUANTILE * math.sqrt(variance / samples)
    return Interval(max(0.0, mean - half), mean + half, "normal approximation")


def _fisher(value: float | None, samples: int) -> Interval | None:
    """Return the interval of a correlation by Fisher's transformation."""
    if value is None or samples < 4 or abs(value) > 1 - ROUNDING:
        return None
    middle, half = math.atanh(value), QUANTILE / math.sqrt(samples - 3)
    return Interval(math.tanh(middle - half), math.tanh(middle + half), "Fisher z")
