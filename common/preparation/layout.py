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
        for place in data.places:
            levels = [f"{place.column}={level}" for level in data.categorical.get(place.column, ())]
            levels += [f"{place.column}=any other"] * (place.levels - len(levels))
            names += [*(levels or [place.column]), *[f"{place.column} is missing"] * place.is_indicated]
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
        levels = torch.ones(channels, dtype=torch.bool)
        levels[[place.first for place in data.places if not place.levels]] = False
        measured = [place.first for place in data.places if not place.levels and place.column not in keep]
        harmonised = torch.tensor(measured if combat else [], dtype=torch.int64)
        return cls(axis, channels, positions, levels, harmonised, covariate_width(data, keep))
