"""Means and standard deviations per channel in two passes: sums, then squares around the pooled mean.

A single pass, by the mean of squares minus the squared mean, loses all digits for a mean of 1e8 standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rankdad.common.preparation.inputs import Inputs

BLOCK = 2**22  # numbers in float64 at a time, because volumes are large
ROUND_OFF = 64 * torch.finfo(torch.float64).eps  # relative to a mean: smaller deviations are zero


def by_channel(inputs: Tensor, axis: int | None) -> Tensor:
    """Return inputs [samples, *shape] as [samples · positions, channels].

    Args:
        inputs: of samples.
        axis: of a sample's channels; None without channels.
    """
    if axis is None:
        return inputs.reshape(-1, 1)
    return inputs.movedim(axis + 1, -1).reshape(-1, inputs.shape[axis + 1])


def present(inputs: Tensor) -> Tensor:
    """Return which samples have any value in each position of the last axis, bool [samples, places].

    Only a table's columns and a series' features, the last axis, may have missing values.
    """
    given = inputs.isnan().logical_not()
    return given.flatten(1, -2).any(1) if inputs.ndim > 2 else given.reshape(len(inputs), -1)


def along_channels(values: Tensor, axis: int | None, dimensions: int) -> Tensor:
    """Return one value per channel in a shape that broadcasts against samples with this many dimensions."""
    return values if axis is None else values.reshape(-1, *[1] * (dimensions - 1 - axis))


def blocks(inputs: Inputs) -> Iterator[Tensor]:
    """Yield inputs in blocks of few samples."""
    per_sample = max(1, math.prod(inputs.shape[1:]))
    yield from inputs.split(max(1, BLOCK // per_sample))


def sums(inputs: Inputs, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return the number of values of every channel, and their sum; NaN is ignored."""
    channels = 1 if axis is None else inputs.shape[axis + 1]
    counts, totals = torch.zeros(2, channels, dtype=torch.float64)
    for block in blocks(inputs):
        values = by_channel(block, axis).to(torch.float64)
        counts = counts + values.isnan().logical_not().sum(0)
        totals = totals + values.nansum(0)
    return counts, totals


def means(counts: Tensor, totals: Tensor) -> Tensor:
    """Return the mean of every channel; 0 without values."""
    return torch.where(counts > 0, totals / counts.clamp(min=1), 0.0)


def squares(inputs: Inputs, around: Tensor, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return the sums of every channel's deviations from a number, and of their squares."""
    deviations, totals = torch.zeros_like(around), torch.zeros_like(around)
    for block in blocks(inputs):
        away = by_channel(block, axis).to(torch.float64) - around
        deviations = deviations + away.nansum(0)
        totals = totals + away.square().nansum(0)
    return deviations, totals


def mean_and_scale(counts: Tensor, around: Tensor, deviations: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of every channel, with an infinite deviation for constant channels.

    Divided by infinity, a value that did not occur in training becomes 0, too: the model has not learned from it. The
    divisor of the variance is the number of values, as in scikit-learn's StandardScaler. The deviations, which should
    add up to 0, correct the mean's rounding error of the first pass.
    """
    rows = counts.clamp(min=1)
    shift = deviations / rows
    mean = around + shift
    deviation = (totals / rows - shift.square()).clamp(min=0).sqrt()
    return mean, torch.where(deviation > ROUND_OFF * mean.abs(), deviation, math.inf)


def own_mean_and_scale(inputs: Inputs, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of one site's inputs."""
    counts, totals = sums(inputs, axis)
    around = means(counts, totals)
    return mean_and_scale(counts, around, *squares(inputs, around, axis))
