"""Means and standard deviations per channel in two passes: sums, then squares around the pooled mean.

One pass, the mean of squares less the square of the mean, loses all digits where a mean is 1e8 standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rankdad.common.preparation.inputs import Inputs

BLOCK = 2**22  # numbers that are held in float64 at a time: volumes are large
ROUND_OFF = 64 * torch.finfo(torch.float64).eps  # less than that of a mean is no deviation from it


def by_channel(inputs: Tensor, axis: int | None) -> Tensor:
    """Return inputs [samples, *shape] as [samples · positions, channels].

    Args:
        inputs: of samples.
        axis: of a sample that is its channels; None where it has none.
    """
    if axis is None:
        return inputs.reshape(-1, 1)
    return inputs.movedim(axis + 1, -1).reshape(-1, inputs.shape[axis + 1])


def present(inputs: Tensor) -> Tensor:
    """Return which samples have any value, NaN being none, in each place of the last axis, bool [samples, places].

    Values may be missing in a table's columns and a series' features alone, which are the last axis.
    """
    given = inputs.isnan().logical_not()
    return given.flatten(1, -2).any(1) if inputs.ndim > 2 else given.reshape(len(inputs), -1)


def along_channels(values: Tensor, axis: int | None, dimensions: int) -> Tensor:
    """Return one value per channel so that it broadcasts against samples of so many dimensions."""
    return values if axis is None else values.reshape(-1, *[1] * (dimensions - 1 - axis))


def blocks(inputs: Inputs) -> Iterator[Tensor]:
    """Yield inputs in pieces of few samples, as they are."""
    per_sample = max(1, math.prod(inputs.shape[1:]))
    yield from inputs.split(max(1, BLOCK // per_sample))


def sums(inputs: Inputs, axis: int | None) -> tuple[Tensor, Tensor]:
    """Return how many values every channel has, and their sum; NaN is none."""
    channels = 1 if axis is None else inputs.shape[axis + 1]
    counts, totals = torch.zeros(2, channels, dtype=torch.float64)
    for block in blocks(inputs):
        values = by_channel(block, axis).to(torch.float64)
        counts = counts + values.isnan().logical_not().sum(0)
        totals = totals + values.nansum(0)
    return counts, totals


def means(counts: Tensor, totals: Tensor) -> Tensor:
    """Return the mean of every channel; 0 where it has no value."""
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
    """Return mean and standard deviation of every channel, the latter infinite where the channel is constant.

    Divided by that, a value that nobody had in training is 0, too: a model has learned nothing of it.

    The divisor is the number of values, as scikit-learn's StandardScaler has it. What the first pass rounded off the
    mean is put right by the deviations, which would add up to 0 without it.
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
