"""Confidence intervals of metrics from pooled out-of-fold predictions.

They treat predictions as independent, or those of a group (a patient's visits) as one observation if the tally has sums
over groups. In cross-validation, each sample is predicted once by a model that was not trained on it. Models of
different folds share training samples, so this is an approximation; a standard error over folds would be worse, because
it treats folds as independent repetitions. Differences between sites widen the true interval. Intervals of width zero
(as for an AUC of 1) are omitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist, fmean

import torch
from torch import Tensor

from rankdad.common.metrics.auc import COVERS, delong_deviations, placements
from rankdad.common.metrics.clusters import LEAST, Pairs, sandwich, small_sample
from rankdad.common.metrics.summary import ROUNDING, balanced, deviations, recalls, summarise
from rankdad.common.metrics.sums import Parts, Tally, parts
from rankdad.common.spec.tasks import LanguageModel, Metric, Regression, TaskSpec

QUANTILE = NormalDist().inv_cdf(0.975)  # of intervals of 95 %
OVER_GROUPS = " over groups"


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
    """Return intervals of accuracy, AUC and balanced accuracy, or of mae and pearson_r.

    accuracy: Wilson's. With several labels it counts samples: a sample's mean over labels is between 0 and 1, so its
    variance is at most that of hits and misses with the same mean.
    auc: DeLong's, of the binned scores, with the error of smooth ones added. With several classes or labels, the
    standard error of the mean is at most the mean of the standard errors, for any dependence: the interval has this
    conservative width.
    balanced_accuracy: the delta method; conservative for several labels.
    mae: the normal approximation of a mean of absolute errors.
    pearson_r: Fisher's z, which assumes that label and output are jointly normal.

    For samples in groups, and for r2: the delta method over groups' sums, for r on Fisher's scale. Accuracy is Wilson's
    with fewer samples, by the design effect; DeLong's variance includes the products of a group's placements. With
    several labels accuracy is conservative.

    Args:
        task: what was predicted.
        total: tally of all samples, each predicted once by a model that has not seen it.
    """
    part, found = parts(task, total), summarise(task, total).reliable
    values, off = found.values, 0.0
    if part.samples == 0 or isinstance(task, LanguageModel):
        return {}
    if bool(part.order[:, 2].any()):
        off = (found.auc_error or 0.0) / COVERS
    limits: dict[Metric, Interval | None]
    if part.clusters is not None:
        limits = _over_groups(task, part, values, off)
    elif isinstance(task, Regression):
        limits = {"mae": _mean_error(part), "pearson_r": _fisher_of_samples(values["pearson_r"], part.samples)}
    else:
        several = task.name == "multi-label" and task.labels > 1
        errors = delong_deviations(part.scores)[(part.scores.sum(dim=2) > 0).all(dim=1)]
        delong = "DeLong" if task.outputs <= 2 and not several else "DeLong, standard errors averaged (conservative)"
        delta = "delta method, standard errors averaged (conservative)" if several else "delta method"
        limits = {
            "accuracy": _wilson(values["accuracy"], part.samples, "Wilson"),
            "auc": _normal(values["auc"], math.hypot(float(errors.mean()), off), delong),
            "balanced_accuracy": _normal(
                values["balanced_accuracy"], float(balanced(part.confusion)[1].sqrt().mean()), delta
            ),
        }
    return {name: interval for name, interval in limits.items() if interval is not None}


def _over_groups(
    task: TaskSpec, part: Parts, values: Mapping[Metric, float | None], off: float
) -> dict[Metric, Interval | None]:
    """Return intervals for samples in groups, with the error that smooth scores add to the AUC."""
    clusters, several = part.clusters, ", standard errors averaged (conservative)"
    assert clusters is not None
    if isinstance(task, Regression):
        errors = {name: group_deviation(part, metric) for name, metric in OF_NUMBERS.items()}
        r = values["pearson_r"]
        return {
            "mae": _normal(values["mae"], errors["mae"], f"delta method{OVER_GROUPS}", most=math.inf),
            "r2": _normal(values["r2"], errors["r2"], f"delta method{OVER_GROUPS}", least=-math.inf),
            "pearson_r": _fisher(r, errors["pearson_r"] / (1 - r * r), f"Fisher z{OVER_GROUPS}")
            if r is not None and abs(r) < 1 - ROUNDING and errors["pearson_r"] > 0
            else None,
        }
    factor, first = small_sample(clusters.count, part.samples), len(part.scores) - len(clusters.scores)
    ranked = [
        auc_deviation(scores, Pairs.of(scores, matrix, clusters.count))
        for scores, matrix in zip(part.scores[first:], clusters.scores, strict=True)
        if bool(scores.any(dim=1).all())
    ]
    matrices, half = clusters.values, clusters.values.shape[1] // 2
    shares = part.confusion.diagonal(dim1=1, dim2=2).sum(dim=1, keepdim=True).double() / part.samples
    slopes = torch.cat([-shares.expand(-1, half), torch.ones(len(shares), half)], dim=1) / part.samples
    accuracy, error = values["accuracy"], _deviation(slopes, matrices, factor)
    number = part.samples**2 / float(matrices[0, :half, :half].sum())  # effective number, if groups were uniform
    if accuracy is not None and 0 < accuracy < 1:
        number = accuracy * (1 - accuracy) / max(error**2, LEAST / part.samples)
    limits: dict[Metric, Interval | None] = {
        "accuracy": _wilson(accuracy, number, f"Wilson{OVER_GROUPS}{several * (len(shares) > 1)}"),
        "auc": _normal(
            values["auc"],
            math.hypot(fmean(ranked), off) if ranked else 0.0,
            f"DeLong{OVER_GROUPS}{several * (len(part.scores) > 2)}",
        ),
    }
    if half == part.confusion.shape[1]:
        recall, support, present = recalls(part.confusion)
        slopes = torch.cat([-recall, torch.ones_like(recall)], dim=1) / support.repeat(1, 2) / present.unsqueeze(1)
        name = f"delta method{OVER_GROUPS}{several * (len(shares) > 1)}"
        limits["balanced_accuracy"] = _normal(values["balanced_accuracy"], _deviation(slopes, matrices, factor), name)
    return limits


def _deviation(slopes: Tensor, matrices: Tensor, factor: float) -> float:
    """Return the mean over blocks of a metric's standard error, given its slopes [blocks, features]."""
    variance = ((slopes.unsqueeze(1) @ matrices).squeeze(1) * slopes).sum(dim=1)
    return float((variance * factor).clamp_min(0).sqrt().mean())


def group_deviation(part: Parts, metric: Callable[[Tensor], Tensor]) -> float:
    """Return the standard error of a function of a regression's number of samples and moments; 0 if there is none."""
    assert part.clusters is not None
    totals = torch.tensor([part.samples, *part.moments], dtype=torch.float64)
    return sandwich(metric, totals, part.clusters.values[0], part.clusters.count)


def auc_deviation(scores: Tensor, pairs: Pairs | None) -> float:
    """Return the standard error of an AUC, given its histograms [2, BINS] and, with groups, pairs of their samples."""
    deviation = float(delong_deviations(scores[None]))
    if pairs is None or math.isnan(deviation):
        return deviation
    return math.sqrt(max((deviation**2 + float(pairs.added(placements(scores[None])[0]))) * pairs.factor, 0.0))


def _mae(totals: Tensor) -> Tensor:
    return totals[6] / totals[0]


def _r2(totals: Tensor) -> Tensor:
    return 1 - totals[7] / (totals[3] - totals[1].square() / totals[0])


def _r(totals: Tensor) -> Tensor:
    samples, label, output, label_square, output_square, product, *_ = totals
    spread = (label_square - label.square() / samples) * (output_square - output.square() / samples)
    r: Tensor = (product - label * output / samples) / spread.sqrt()
    return r


OF_NUMBERS: Mapping[Metric, Callable[[Tensor], Tensor]] = {"mae": _mae, "r2": _r2, "pearson_r": _r}


def _normal(
    value: float | None, error: float, method: str, *, least: float = 0.0, most: float = 1.0
) -> Interval | None:
    if value is None or not error > 0:
        return None
    return Interval(max(least, value - QUANTILE * error), min(most, value + QUANTILE * error), method)


def wilson(hits: Tensor, counts: Tensor, quantile: float = QUANTILE) -> tuple[Tensor, Tensor]:
    """Return the ends of intervals of shares; 0 to 1 for no samples. Source: E. B. Wilson, JASA 22 (1927) 209."""
    some = torch.where(counts > 0, counts, 1.0)  # effective numbers may be between 0 and 1
    share, square = hits / some, quantile**2 / some
    half = quantile * (share * (1 - share) / some + square / (4 * some)).sqrt()
    low, high = ((share + square / 2 + sign * half) / (1 + square) for sign in (-1, 1))
    low, high = torch.minimum(low, share).clamp_min(0), torch.maximum(high, share).clamp_max(1)  # rounding
    return torch.where(counts > 0, low, 0.0), torch.where(counts > 0, high, 1.0)


def _wilson(share: float | None, samples: float, method: str) -> Interval | None:
    if share is None:
        return None
    low, high = wilson(*torch.tensor([share * samples, samples], dtype=torch.float64))
    return Interval(float(low), float(high), method)


def _mean_error(part: Parts) -> Interval | None:
    """Return the interval of the mean absolute error."""
    samples = part.samples
    *_, absolute, square = part.moments
    variance = deviations(absolute, square, samples) / max(samples - 1, 1)
    if variance == 0:
        return None
    mean, half = absolute / samples, QUANTILE * math.sqrt(variance / samples)
    return Interval(max(0.0, mean - half), mean + half, "normal approximation")


def _fisher_of_samples(value: float | None, samples: int) -> Interval | None:
    if value is None or samples < 4 or abs(value) > 1 - ROUNDING:
        return None
    return _fisher(value, 1 / math.sqrt(samples - 3), "Fisher z")


def _fisher(value: float, error: float, method: str) -> Interval:
    """Return the interval of a correlation by Fisher's transformation, from the standard error there."""
    middle, half = math.atanh(value), QUANTILE * error
    return Interval(math.tanh(middle - half), math.tanh(middle + half), method)
