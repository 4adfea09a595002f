"""What a spec says of the numbers that are prepared: how many there are, and which are measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdad.common.spec import RunSpec
from rankdad.common.spec.axes import channel_axis
from rankdad.common.spec.data import TableData, covariate_width


def input_names(spec: RunSpec) -> list[str]:
    """Return what the inputs are called, one for each number that a sample of a table has; of other data none."""
    data, names = spec.data, list[str]()
    if isinstance(data, TableData):
        for column in data.inputs:
            levels = [f"{column}={level}" for level in data.categorical.get(column, ())]
            levels += [f"{column}=any other"] * (data.levels(column) - len(levels))
            names += [*(levels or [column]), *([f"{column} is missing"] if data.is_indicated(column) else [])]
    return names


@dataclass(frozen=True, eq=False)
class Layout:
    """The columns of inputs and covariates.

    Args:
        axis: of a sample, of which each place has a mean and a scale of its own; None where all of it has one.
        channels: how many means and scales the inputs have.
        positions: how many values of a channel an input has.
        levels: bool [channels], whether a column says 0 or 1: of a categorical input's level, or of a missing value.
        harmonised: int64, the columns from which site effects are removed: no levels, and nothing that is kept.
        covariates: how many columns the covariates have; a categorical one has one less than it has levels.
    """

    axis: int | None
    channels: int
    positions: int
    levels: Tensor
    harmonised: Tensor
    covariates: int

    @classmethod
    def of(cls, spec: RunSpec) -> Layout:
        """Return the layout of a run's data.

        Raises:
            SpecError: it is not plain which axis of a sample is its channels.
        """
        data, combat = spec.data, spec.preparation.harmonise
        axis = channel_axis(data, spec.model)
        channels = 1 if axis is None else data.shape[axis]
        positions = math.prod(data.shape) // channels
        if not isinstance(data, TableData):
            none = torch.zeros(0, dtype=torch.int64)
            return cls(axis, channels, positions, torch.zeros(channels, dtype=torch.bool), none, 0)
        keep = combat.keep if combat else ()
        levels: list[bool] = []
        measured: list[bool] = []
        for column in data.inputs:
            width, indicated = data.levels(column) or 1, [True] * data.is_indicated(column)
            levels += [column in data.categorical] * width + indicated
            measures = combat is not None and column not in data.categorical and column not in keep
            measured += [measures] * width + [False] * len(indicated)
        kept = covariate_width(data, keep)
        return cls(axis, channels, positions, torch.tensor(levels), torch.tensor(measured).nonzero().flatten(), kept)
