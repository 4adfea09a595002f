"""The task of a run: outputs, loss and metrics."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rankdad.common.documents import Part

Monitor = Literal["loss", "accuracy", "auc_within", "mae", "r2", "pearson_r"]  # measured between epochs
Metric = Literal[Monitor, "auc", "balanced_accuracy", "f1", "calibration_error", "perplexity", "bits_per_byte"]
OF_CLASSES: tuple[Metric, ...] = ("auc", "accuracy", "loss", "balanced_accuracy", "f1", "calibration_error")
OF_TEXTS: tuple[Metric, ...] = ("loss", "perplexity", "bits_per_byte")
OF_NUMBERS: tuple[Monitor, ...] = ("loss", "mae", "r2", "pearson_r")
MONITORS: tuple[Monitor, ...] = ("loss", "accuracy", "auc_within")


class Classification(Part):
    """Predict one of several classes from logits, by cross-entropy; two classes are the binary task."""

    metrics: ClassVar[tuple[Metric, ...]] = OF_CLASSES
    monitors: ClassVar[tuple[Monitor, ...]] = MONITORS

    name: Literal["classification"] = "classification"
    classes: Annotated[int, Field(ge=2, le=1000)]
    """Number of classes; labels are 0 to classes − 1."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weight of a sample's loss: 1, or the inverse of its class's number of training samples at all sites."""

    @property
    def outputs(self) -> int:
        """Width of the network's output."""
        return self.classes


class MultiLabel(Part):
    """Predict several yes-or-no labels at once from a logit each, by binary cross-entropy."""

    metrics: ClassVar[tuple[Metric, ...]] = OF_CLASSES
    monitors: ClassVar[tuple[Monitor, ...]] = MONITORS

    name: Literal["multi-label"]
    labels: Annotated[int, Field(ge=1, le=1000)]
    """Number of labels, each 0 or 1."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weight of a positive label's loss: 1, or negatives / positives among all sites' training samples."""

    @property
    def outputs(self) -> int:
        """Width of the network's output."""
        return self.labels


class Regression(Part):
    """Predict a number; the network learns it standardised by all sites' training samples."""

    metrics: ClassVar[tuple[Metric, ...]] = OF_NUMBERS
    monitors: ClassVar[tuple[Monitor, ...]] = OF_NUMBERS
    outputs: ClassVar[int] = 1

    name: Literal["regression"]
    loss: Literal["mse", "mae", "huber"] = "mse"
    """Squared error, absolute error, or squared near 0 and absolute beyond `delta`."""
    delta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Where huber changes from squared to absolute error, in standard deviations of the label."""


class LanguageModel(Part):
    """Predict each token of a text from those before it, by cross-entropy.

    In a step each token has the same weight, at every site: the inverse of the mean number of tokens in a text.
    """

    metrics: ClassVar[tuple[Metric, ...]] = OF_TEXTS
    monitors: ClassVar[tuple[Monitor, ...]] = ("loss",)
    outputs: ClassVar[int] = 2
    """Numbers of a text behind all metrics: its summed loss, and its predicted tokens."""

    name: Literal["language-model"]


TaskSpec = Classification | MultiLabel | Regression | LanguageModel
LOWER_IS_BETTER = frozenset[Metric]({"loss", "mae", "calibration_error", "perplexity", "bits_per_byte"})
LABELS = {"auc": "AUC", "auc_within": "AUC within sites", "f1": "F1", "mae": "MAE", "r2": "R²", "pearson_r": "r"}


def measured(task: TaskSpec) -> tuple[Metric, ...]:
    """Return all metrics of a task: those of tests, then those between epochs."""
    return tuple(dict.fromkeys((*task.metrics, *task.monitors)))


def decimals(metric: str, value: float | None, least: int = 3) -> int:
    """Return `least`, or the number of decimals that shows three digits of a small loss or error."""
    size = abs(value or 0.0) if metric in ("loss", "mae") else 0.0
    return max(least, 2 - math.floor(math.log10(size))) if 1e-30 < size < 0.1 else least


def shown(metric: str) -> str:
    """Return a metric's name for people."""
    return LABELS.get(metric, metric.replace("_", " "))
