"""Augmentations of training samples; `local.augmentation` applies them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from rankdad.common.documents import Part
from rankdad.common.numbers import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from rankdad.common.spec.axes import space
from rankdad.common.spec.data import AnyData, TableData
from rankdad.common.spec.model import ModelSpec

Axis = Annotated[int, Field(ge=0, le=15)]
Probability = Annotated[float, Field(gt=0, le=1)]
MAX_NUMBERS = 1 << 28  # of a padded sample: 1 GiB in float32


class Flip(Part):
    """Flip a picture or volume along an axis."""

    name: Literal["flip"]
    axes: Annotated[tuple[Axis, ...], Field(min_length=1, max_length=3)]
    """Axes of `data.shape`, from 0; each is flipped independently: [2] flips a picture [channels, height, width]
    horizontally."""
    probability: Probability = 0.5
    """Probability for each axis."""


class Crop(Part):
    """Cut out a window at a random place, and resize it to the sample's size if it differs."""

    name: Literal["crop"]
    size: Annotated[tuple[PositiveInt, ...], Field(min_length=2, max_length=3)] | None = None
    """Size of the window, one number for each spatial axis; null is the sample's size, shifted within `padding`."""
    padding: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Zeros added before at each end of each spatial axis."""


class Noise(Part):
    """Add Gaussian noise to every number."""

    name: Literal["noise"]
    deviation: PositiveFloat
    """Standard deviation, in the unit of prepared inputs."""
    probability: Probability = 1.0
    """Probability that a sample gets noise."""


class Intensity(Part):
    """Multiply a sample by a random number around 1, and add one around 0."""

    name: Literal["intensity"]
    scale: Fraction = 0.0
    """Largest difference of the factor from 1."""
    shift: NonNegativeFloat = 0.0
    """Largest shift, in the unit of prepared inputs."""


Augmentation = Flip | Crop | Noise | Intensity


def check_augmentation(entries: Sequence[Augmentation], data: AnyData, model: ModelSpec) -> None:
    """Check that samples can be augmented this way.

    Raises:
        ValueError: they cannot; names the entry.
        SpecError: the spatial axes of a sample are ambiguous.
    """
    for place, entry in enumerate(entries):
        name = f"augmentation[{place}]: {entry.name}"
        if isinstance(data, TableData) or data.tokens is not None:
            what = "a table's columns have" if isinstance(data, TableData) else "tokens have"
            raise ValueError(f"{name}: {what} meanings of their own, expected pictures, volumes or series")
        shape, axes = list(data.shape), space(data, model)
        if isinstance(entry, Flip | Crop) and not axes:
            grey = "; a picture without channels has the shape [1, height, width]" * (len(shape) == 2)
            problem = f"samples of shape {shape} have no axes of space, expected pictures or volumes"
            raise ValueError(f"{name}: {problem}{grey}")
        if isinstance(entry, Flip) and (wrong := [axis for axis in entry.axes if axis not in axes]):
            raise ValueError(f"{name}: got the axis {wrong[0]}, expected some of {list(axes)} of data.shape {shape}")
        if isinstance(entry, Crop):
            _check_crop(name, entry, [shape[axis] for axis in axes])
            grown = math.prod(side + 2 * entry.padding * (axis in axes) for axis, side in enumerate(shape))
            if grown > MAX_NUMBERS:
                problem = f"got {entry.padding}, which makes {grown:,} numbers of a sample"
                raise ValueError(f"{name}: padding: {problem}, expected at most {MAX_NUMBERS:,}")
        if isinstance(entry, Intensity) and not entry.scale and not entry.shift:
            raise ValueError(f"{name}: changes nothing, expected scale or shift above 0")


def _check_crop(name: str, crop: Crop, own: list[int]) -> None:
    size = own if crop.size is None else list(crop.size)
    if len(size) != len(own):
        raise ValueError(f"{name}: got size {size}, expected {len(own)} numbers, as samples have {own}")
    if any(window > side + 2 * crop.padding for window, side in zip(size, own, strict=True)):
        around = f" with {crop.padding} around" * bool(crop.padding)
        raise ValueError(f"{name}: got size {size}, which is larger than the sample of {own}{around}")
    if size == own and not crop.padding:
        raise ValueError(f"{name}: changes nothing, expected a padding or a smaller size")
