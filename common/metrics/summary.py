"""Metrics from a tally, None for those without samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context

import torch
from torch import Tensor

from rankdad.common.metrics.auc import MOST_OFF, areas, exact_pairs, log_odds
from rankdad.common.metrics.sums import CALIBRATION_BINS, Tally, parts
from rankdad.common.spec.tasks import OF_TEXTS, Classification, LanguageModel, Metric, MultiLabel, Regression, TaskSpec

MOST_NATS = 700.0  # of a token; the exponential of more overflows
ROUNDING = 1e-12  # smaller fractions of the sum of squares are rounding errors


@dataclass(frozen=True)
class Metrics:
    """Metrics of some samples.

    Args:
        samples: their number.
        values: of the task's metrics; None if unavailable.
        auc_error: largest error of the AUC due to bins; with smooth scores an estimate.
        absent: classes or labels without an AUC, because they have no positives or no negatives.
    """

    samples: int
    values: dict[Metric, float | None]
    auc_error: float | None = None
    absent: int = 0

    @property
    def reliable(self) -> Metrics:
        """The same without an AUC that may be off by more than `MOST_OFF`: its error alone."""
        return self if (self.auc_error or 0) <= MOST_OFF else replace(self, values=self.values | {"auc": None})


def summarise(task: TaskSpec, total: Tally) -> Metrics:
    """Compute metrics from sums.

    AUC: one class against the rest, averaged over the classes or labels that have one. Accuracy, calibration error and
    balanced accuracy (the mean recall over classes present): for labels, the mean over them. F1: of class 1 of two
    classes; otherwise the mean over classes or labels, except those neither true nor predicted. Calibration error: the
    expected one over 15 equal bins of the confidence of the predicted class, or of each label's probability. It is
    omitted for smooth scores, where it was between a quarter and three quarters of the exact one.
    Perplexity: the exponential of the loss of a token. Bits per byte: the summed loss over the texts' bytes.
    r2: 1 − squared errors / squared deviations from the labels' mean.
    """
    part = parts(task, total)
    if isinstance(task, LanguageModel):
        return Metrics(part.samples, of_texts(part.loss, part.moments))
    if isinstance(task, Regression):
        return Metrics(part.samples, numbers(part.samples, part.loss, part.moments))
    area, error, absent = mean_auc(*areas(part.scores, part.order + part.across))
    matrices = part.confusion
    values: dict[Metric, float | None] = dict.fromkeys(task.metrics)
    if part.samples:
        hits = matrices.diagonal(dim1=1, dim2=2).sum(dim=1)
        smooth = bool(part.order[:, 2].any())
        gaps = (part.confidence - part.calibration[:, :, 1]).abs().sum(dim=1)
        values |= {
            "auc": area,
            "accuracy": float((hits.double() / part.samples).mean()),
            "loss": part.loss / part.samples,
            "balanced_accuracy": float(balanced(matrices)[0].mean()) if absent < len(part.scores) else None,
            "f1": _f1(task, matrices),
            "calibration_error": None if smooth else float((gaps / part.samples).mean()),
        }
    return Metrics(part.samples, values, error, absent)


def exact_auc(task: TaskSpec, outputs: Tensor, labels: Tensor) -> dict[Metric, float | None]:
    """Return the AUC of scores that need no histograms, as for `summarise`; empty for other tasks."""
    if isinstance(task, Regression | LanguageModel):
        return {}
    columns = (one.T for one in log_odds(task, outputs.detach().cpu().double(), labels.cpu()))
    ordered, pairs = torch.tensor([exact_pairs(*own) for own in zip(*columns, strict=True)], dtype=torch.float64).T
    return {"auc": mean_auc(ordered / pairs.clamp_min(1), torch.zeros_like(pairs), pairs)[0]}


def of_texts(loss: float, moments: Sequence[float]) -> dict[Metric, float | None]:
    """Return a language model's metrics, from the summed loss in nats and numbers of tokens and bytes."""
    tokens, count = moments
    if not tokens:
        return dict.fromkeys(OF_TEXTS)
    each = loss / tokens
    bits = loss / math.log(2) / count if count else None
    return {"loss": each, "perplexity": math.exp(min(each, MOST_NATS)), "bits_per_byte": bits}


def confusion(task: Classification | MultiLabel, total: Tally) -> Tensor:
    """Return the confusion matrices, rows true: int64 [classes, classes], or [labels, 2, 2]."""
    matrices = parts(task, total).confusion
    return matrices[0].clone() if isinstance(task, Classification) else matrices.clone()


def calibration(task: Classification | MultiLabel, total: Tally) -> tuple[tuple[float | None, float | None, int], ...]:
    """Return the mean confidence, the frequency of hits and the count of each of 15 equal bins of confidence.

    A sample counts once by the predicted class, or once for each label by the label's probability. A bin without
    samples has neither confidence nor frequency.
    """
    part = parts(task, total)
    sums, hits = part.confidence.sum(dim=0).tolist(), part.calibration[:, :, 1].sum(dim=0).tolist()
    counts = part.calibration.sum(dim=(0, 2)).tolist()
    return tuple(
        (sums[at] / counts[at], hits[at] / counts[at], counts[at]) if counts[at] else (None, None, 0)
        for at in range(CALIBRATION_BINS)
    )


def mean_auc(area: Tensor, error: Tensor, number: Tensor) -> tuple[float | None, float | None, int]:
    """Return the mean AUC over outputs with pairs, its error, and the number of outputs without; see `areas`."""
    measured = number > 0
    if not measured.any():
        return None, None, len(number)
    return float(area[measured].mean()), float(error[measured].mean()), int((~measured).sum())


def balanced(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return each group's balanced accuracy and its variance by the delta method, [groups] float64.

    A recall of n samples is a mean of n hits and misses; recalls of different classes have no sample in common.
    """
    recall, support, present = recalls(matrices)
    variance = recall * (1 - recall) / support
    return recall.sum(dim=1) / present, variance.sum(dim=1) / present.square()


def recalls(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each class's recall and its samples, at least 1, [groups, width], and how many classes there are."""
    hits, support = matrices.diagonal(dim1=1, dim2=2).double(), matrices.sum(dim=2).double()
    return hits / support.clamp_min(1), support.clamp_min(1), (support > 0).sum(dim=1)


def deviations(total: float, square: float, samples: int) -> float:
    """Return the sum of squared deviations from the mean; 0 if it is within rounding errors."""
    left = square - total / samples * total
    return left if left > ROUNDING * square else 0.0


def correlation(label: float, output: float, product: float) -> float | None:
    """Return Pearson's r from the sums of squared deviations and of their products."""
    if label == 0 or output == 0:
        return None
    return max(-1.0, min(1.0, product / math.sqrt(label) / math.sqrt(output)))


def _f1(task: Classification | MultiLabel, matrices: Tensor) -> float | None:
    twice = 2 * matrices.diagonal(dim1=1, dim2=2).double()
    marks = (matrices.sum(dim=1) + matrices.sum(dim=2)).double()  # predicted and true samples of each class
    if isinstance(task, MultiLabel) or task.classes == 2:
        twice, marks = twice[:, 1], marks[:, 1]
    seen = marks > 0
    return float((twice[seen] / marks[seen]).mean()) if seen.any() else None


def numbers(samples: int, loss: float, moments: Sequence[float]) -> dict[Metric, float | None]:
    """Return a regression's metrics from the sum of losses and `Parts.moments`."""
    if samples == 0:
        return {"loss": None, "mae": None, "r2": None, "pearson_r": None}
    label, output, label_square, output_square, product, absolute, square = moments
    spread = deviations(label, label_square, samples)
    return {
        "loss": loss / samples,
        "mae": absolute / samples,
        "r2": r_squared(square, spread),
        "pearson_r": correlation(
            spread, deviations(output, output_square, samples), product - label / samples * output
        ),
    }


def r_squared(errors: float, spread: float) -> float | None:
    """Return 1 − squared errors / squared deviations; None without deviations, or on overflow."""
    value = 1 - errors / spread if spread > 0 else math.nan
    return value if math.isfinite(value) else None


def bound(error: float) -> str:
    """Format an upper bound with two digits, rounded up."""
    above = Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(error))
    return f"{above:f}" if error >= 1e-6 or not error > 0 else f"{above:e}"
