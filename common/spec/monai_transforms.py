"""MONAI's transforms by which training samples can be varied: names and arguments are MONAI's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.numbers import NonNegativeFloat, PositiveFloat


def _going_up(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise ValueError(f"got {list(pair)}, expected the smaller number first")
    return pair


PerAxis = Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1, max_length=3)]
Between = Annotated[tuple[NonNegativeFloat, NonNegativeFloat], AfterValidator(_going_up)]
Widths = Annotated[tuple[PositiveFloat, PositiveFloat], AfterValidator(_going_up)]
MAX_WIDTH = 100.0  # pixels or voxels: a Gaussian is a kernel of eight times as many numbers along each axis
Width = Annotated[float, Field(gt=0, le=MAX_WIDTH)]
Blur = Annotated[tuple[Width, Width], AfterValidator(_going_up)]
MAX_NUMBERS = 1 << 28  # that a sample may become on its way: 1 GiB in float32
Part01 = Annotated[float, Field(ge=0, le=1)]
Parts01 = Annotated[tuple[Part01, Part01], AfterValidator(_going_up)]
Zoom = Annotated[float, Field(ge=0.1, le=10)]
Count = Annotated[int, Field(ge=1, le=1000)]


class MonaiTransform(Part):
    """A transform of MONAI (pip install 'rankdad[monai]'); no permission is needed for its code."""

    prob: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Probability with which a sample is changed."""


class RandAffine(MonaiTransform):
    """MONAI's RandAffine: rotate, shift and scale."""

    name: Literal["RandAffine"]
    rotate_range: PerAxis | None = None
    """Largest angles in radians: one for pictures, one for each axis of volumes."""
    translate_range: PerAxis | None = None
    """Largest shifts along each axis of space, in pixels or voxels."""
    scale_range: PerAxis | None = None
    """By how much the scale along each axis of space differs from 1 at most."""
    mode: Literal["bilinear", "nearest"] = "bilinear"
    """How values between voxels are found."""
    padding_mode: Literal["zeros", "border", "reflection"] = "border"
    """What a sample has outside of its own bounds."""


class Rand3DElastic(MonaiTransform):
    """MONAI's Rand3DElastic: deform volumes smoothly."""

    name: Literal["Rand3DElastic"]
    sigma_range: Blur
    """Least and largest width of the Gaussian that smooths the deformation, in voxels."""
    magnitude_range: Between
    """Least and largest size of the deformation, in voxels before it is smoothed."""
    mode: Literal["bilinear", "nearest"] = "bilinear"
    """How values between voxels are found."""
    padding_mode: Literal["zeros", "border", "reflection"] = "border"
    """What a sample has outside of its own bounds."""


class RandZoom(MonaiTransform):
    """MONAI's RandZoom: enlarge or shrink, at the same size."""

    name: Literal["RandZoom"]
    min_zoom: Zoom = 0.9
    """Least factor."""
    max_zoom: Zoom = 1.1
    """Largest factor."""

    @model_validator(mode="after")
    def _goes_up(self) -> RandZoom:
        if self.min_zoom > self.max_zoom:
            raise ValueError(f"max_zoom: got {self.max_zoom}, expected min_zoom, {self.min_zoom}, or more")
        return self


class RandGaussianSmooth(MonaiTransform):
    """MONAI's RandGaussianSmooth: blur."""

    name: Literal["RandGaussianSmooth"]
    sigma_x: Blur = (0.25, 1.5)
    """Least and largest width along the first axis of space, in pixels or voxels."""
    sigma_y: Blur = (0.25, 1.5)
    """Along the second."""
    sigma_z: Blur = (0.25, 1.5)
    """Along the third; unused of pictures."""


class RandGaussianSharpen(MonaiTransform):
    """MONAI's RandGaussianSharpen: sharpen."""

    name: Literal["RandGaussianSharpen"]
    alpha: Between = (10.0, 30.0)
    """Least and largest weight of what blurring takes away."""


class RandAdjustContrast(MonaiTransform):
    """MONAI's RandAdjustContrast: raise values, between the least and the largest of the sample, to a power."""

    name: Literal["RandAdjustContrast"]
    gamma: Widths = (0.5, 4.5)
    """Least and largest power."""
    retain_stats: bool = False
    """Whether the sample keeps its mean and standard deviation."""


class RandBiasField(MonaiTransform):
    """MONAI's RandBiasField: multiply by a smooth field, as a scanner's coil does."""

    name: Literal["RandBiasField"]
    degree: Annotated[int, Field(ge=1, le=10)] = 3
    """Of the field's polynomials."""
    coeff_range: Between = (0.0, 0.1)
    """Least and largest coefficient."""


class RandRicianNoise(MonaiTransform):
    """MONAI's RandRicianNoise: noise as that of a scanner's magnitudes."""

    name: Literal["RandRicianNoise"]
    std: PositiveFloat = 1.0
    """Largest standard deviation, in the unit that inputs have after preparation."""
    relative: bool = False
    """Whether it is in standard deviations of the sample."""


class RandGibbsNoise(MonaiTransform):
    """MONAI's RandGibbsNoise: ringing, as where high frequencies were not measured."""

    name: Literal["RandGibbsNoise"]
    alpha: Parts01 = (0.0, 1.0)
    """Least and largest strength: 0 leaves a sample as it is, 1 leaves nothing."""


class RandHistogramShift(MonaiTransform):
    """MONAI's RandHistogramShift: bend the curve of values."""

    name: Literal["RandHistogramShift"]
    num_control_points: Annotated[int, Field(ge=3, le=1000)] = 10
    """Of the curve."""


class RandCoarseDropout(MonaiTransform):
    """MONAI's RandCoarseDropout: fill boxes of the sample with a number."""

    name: Literal["RandCoarseDropout"]
    holes: Count
    """How many boxes."""
    spatial_size: Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], Field(min_length=2, max_length=3)]
    """Size of a box along each axis of space."""
    fill_value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The number; null draws one between the sample's least and largest."""


class RandGridDistortion(MonaiTransform):
    """MONAI's RandGridDistortion: stretch and squeeze the cells of a grid."""

    name: Literal["RandGridDistortion"]
    num_cells: Annotated[int, Field(ge=1, le=100)] = 5
    """Of the grid, along each axis of space."""
    distort_limit: Annotated[float, Field(gt=0, lt=1)] = 0.03
    """By how much a cell is stretched or squeezed at most."""


class RandSimulateLowResolution(MonaiTransform):
    """MONAI's RandSimulateLowResolution: shrink and enlarge again."""

    name: Literal["RandSimulateLowResolution"]
    zoom_range: Annotated[tuple[Zoom, Zoom], AfterValidator(_going_up)] = (0.5, 1.0)
    """Least and largest factor of the smaller size."""


Transforms = (
    RandAffine
    | Rand3DElastic
    | RandZoom
    | RandGaussianSmooth
    | RandGaussianSharpen
    | RandAdjustContrast
    | RandBiasField
    | RandRicianNoise
    | RandGibbsNoise
    | RandHistogramShift
    | RandCoarseDropout
    | RandGridDistortion
    | RandSimulateLowResolution
)


def check_size(field: str, numbers: float) -> None:
    """Check that a sample does not take gigabytes while it is varied.

    Args:
        field: the entry and its field, with what it holds.
        numbers: that the sample becomes.

    Raises:
        ValueError: naming the field.
    """
    if numbers > MAX_NUMBERS:
        raise ValueError(f"{field}, which makes {numbers:,.0f} numbers of a sample, expected at most {MAX_NUMBERS:,}")


def check_transform(name: str, entry: MonaiTransform, own: list[int], numbers: int) -> None:
    """Check that a transform fits samples.

    Args:
        name: of the entry, for errors.
        entry: the transform.
        own: a sample's size along each axis of space.
        numbers: that a sample has.

    Raises:
        ValueError: naming the entry and its field.
    """
    if len(own) not in (2, 3):
        raise ValueError(f"{name}: samples have {len(own)} axes of space, expected pictures or volumes")
    if isinstance(entry, Rand3DElastic) and len(own) != 3:
        raise ValueError(f"{name}: samples are pictures, expected volumes")
    counts: dict[str, int] = {}
    if isinstance(entry, RandAffine):
        ranges = {"rotate_range": 1 if len(own) == 2 else 3, "translate_range": len(own), "scale_range": len(own)}
        counts = {field: count for field, count in ranges.items() if getattr(entry, field) is not None}
        if not counts:
            raise ValueError(f"{name}: changes nothing, expected rotate_range, translate_range or scale_range")
    if isinstance(entry, RandCoarseDropout):
        counts = {"spatial_size": len(own)}
        if any(box > side for box, side in zip(entry.spatial_size, own, strict=False)):
            raise ValueError(f"{name}: spatial_size: got {list(entry.spatial_size)}, which is larger than {own}")
    if isinstance(entry, RandZoom):
        check_size(f"{name}: max_zoom: got {entry.max_zoom:g}", numbers * entry.max_zoom ** len(own))
    if isinstance(entry, RandSimulateLowResolution):
        most = entry.zoom_range[1]
        check_size(f"{name}: zoom_range: got {list(entry.zoom_range)}", numbers * most ** len(own))
    for field, count in counts.items():
        if len(got := getattr(entry, field)) != count:
            expected = f"{count} number{'s' * (count > 1)}"
            raise ValueError(f"{name}: {field}: got {list(got)}, expected {expected} for samples of {own}")
