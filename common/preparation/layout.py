"""The columns of a spec's inputs and covariates, and which of them are measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdad.common.spec import RunSpec
from rankdad.common.spec.axes import channel_axis
from rankdad.common.spec.data import TableData, covariate_width


def input_names(spec: RunSpec) -> list[str]:
    """Return the names of a table's inputs, one for each number of a sample; none for other data."""
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
        axis: of a sample, along which means and scales differ; None for a single mean and scale.
        channels: number of means and scales.
        positions: number of values per channel in an input.
        levels: bool [channels], whether a column is 0 or 1 for a level or a missing value.
        harmonised: int64, the columns to harmonise: not levels, and not kept ones.
        covariates: number of columns of the covariates; a categorical one has one less than levels.
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
            SpecError: the channels' axis of a sample is ambiguous.
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
