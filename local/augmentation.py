"""Varies training samples, each by a seed of its own: neither batches nor processes that read ahead matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from rankdad.common.errors import RankdadError, SpecError, UserError
from rankdad.common.run.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.common.spec.augmentation import Augmentation, Crop, Flip, Intensity, Noise, space
from rankdad.common.spec.monai_transforms import MonaiTransform, Transforms

Vary = Callable[[Tensor, Generator], Tensor]


@dataclass(frozen=True)
class Augmenting:
    """Vary the samples of one site in one epoch.

    Args:
        spec: the run.
        site: its place in the plan.
        epoch: counted over all trainings.

    Raises:
        UserError: MONAI is asked for and not installed.
    """

    spec: RunSpec
    site: int
    epoch: int
    _steps: tuple[Vary, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        axes = space(self.spec.data)
        steps = tuple(_vary(entry, axes) for entry in self.spec.training.augmentation)
        object.__setattr__(self, "_steps", steps)

    def __call__(self, inputs: Tensor, places: Tensor) -> Tensor:
        """Return samples varied.

        Args:
            inputs: [n, *shape], prepared.
            places: of each among the fold's training samples, int64 [n].
        """
        varied = []
        for sample, place in zip(inputs, places.tolist(), strict=True):
            generator = Generator().manual_seed(derive(self.spec.seed, "augment", self.site, place, self.epoch))
            for vary in self._steps:
                sample = vary(sample, generator)
            varied.append(sample)
        return torch.stack(varied) if varied else inputs


def augmenting(spec: RunSpec, site: int, epoch: int) -> Augmenting | None:
    """Return what varies a site's training samples in an epoch; None where the run asks for nothing."""
    return Augmenting(spec, site, epoch) if spec.training.augmentation else None


def check_augmentation_here(spec: RunSpec) -> None:
    """Check that samples can be varied so on this machine.

    Raises:
        UserError: MONAI is asked for and not installed.
        SpecError: a transform of MONAI does not go with samples of this shape.
    """
    dtype = getattr(torch, spec.training.dtype)
    for place, entry in enumerate(spec.training.augmentation):
        if isinstance(entry, MonaiTransform):
            vary = _transform(entry.model_copy(update={"prob": 1.0}), space(spec.data))
            sample = torch.rand(spec.data.shape, generator=Generator().manual_seed(0), dtype=dtype)
            try:
                vary(sample, Generator().manual_seed(0))
            except RankdadError as error:
                raise SpecError(
                    f"training.augmentation[{place}]", str(error), code="augmentation-does-not-fit"
                ) from None


def _vary(entry: Augmentation, axes: tuple[int, ...]) -> Vary:
    """Return what varies a sample [*shape] as an entry says."""
    if isinstance(entry, MonaiTransform):
        return _transform(entry, axes)
    return lambda sample, generator: _varied(entry, sample, axes, generator)


def _transform(entry: Transforms, axes: tuple[int, ...]) -> Vary:
    """Return a transform of MONAI's, by a name from our own list, for samples of either layout."""
    try:
        from monai import transforms
        from monai.utils.type_conversion import convert_to_tensor
    except ImportError:
        raise UserError(
            f"training.augmentation: {entry.name} needs MONAI, which is not installed: pip install 'rankdad[monai]'",
            code="not-installed",
            field="training.augmentation",
        ) from None
    given: dict[str, Any] = entry.model_dump(exclude={"name"}, exclude_none=True)
    if isinstance(limit := given.get("distort_limit"), float):
        given["distort_limit"] = (-limit, limit)
    transform = getattr(transforms, entry.name)(**given)
    last = [axis - len(axes) for axis in range(len(axes))]

    def vary(sample: Tensor, generator: Generator) -> Tensor:
        moved = sample.movedim(axes, last)
        transform.set_random_state(seed=int(torch.randint(2**31, (), generator=generator)))
        try:
            found = transform(moved.reshape(-1, *moved.shape[-len(axes) :]).clone())
            changed: Tensor = convert_to_tensor(found, dtype=sample.dtype, track_meta=False)
            return changed.reshape(moved.shape).movedim(last, axes)
        except Exception as error:  # of code that is not ours
            words = " ".join(str(error).split())
            raise RankdadError(
                f"{entry.name} of MONAI cannot change samples of this kind: {words!r}",
                code="augmentation-failed",
                field="training.augmentation",
            ) from error

    return vary


def _varied(
    entry: Flip | Crop | Noise | Intensity, sample: Tensor, axes: tuple[int, ...], generator: Generator
) -> Tensor:
    """Return one sample [*shape] varied as an entry of our own says; NaN, which is padding, stays."""
    if isinstance(entry, Flip):
        drawn = torch.rand(len(entry.axes), generator=generator).tolist()
        turned: Tensor = sample.flip(
            [axis for axis, one in zip(entry.axes, drawn, strict=True) if one < entry.probability]
        )
        return turned
    if isinstance(entry, Crop):
        return _cropped(entry, sample, axes, generator)
    if isinstance(entry, Noise):
        happens = float(torch.rand((), generator=generator)) < entry.probability
        noise = torch.randn(sample.shape, generator=generator, dtype=sample.dtype)
        return sample + entry.deviation * noise if happens else sample
    assert isinstance(entry, Intensity)
    factor, added = (2 * torch.rand(2, generator=generator, dtype=sample.dtype) - 1).tolist()
    changed: Tensor = sample * (1 + entry.scale * factor) + entry.shift * added
    return changed


def _cropped(crop: Crop, sample: Tensor, axes: tuple[int, ...], generator: Generator) -> Tensor:
    own = [sample.shape[axis] for axis in axes]
    size = own if crop.size is None else list(crop.size)
    rooms = [side + 2 * crop.padding - window + 1 for side, window in zip(own, size, strict=True)]
    starts = [int(torch.randint(room, (), generator=generator)) for room in rooms]
    last = [axis - len(axes) for axis in range(len(axes))]
    moved = F.pad(sample.movedim(axes, last), [crop.padding] * 2 * len(axes))  # space last, as `pad` has it
    for axis, start, window in zip(last, starts, size, strict=True):
        moved = moved.narrow(axis, start, window)
    if size != own:
        mode = "bilinear" if len(axes) == 2 else "trilinear"
        flat = moved.reshape(1, -1, *size)
        moved = F.interpolate(flat, own, mode=mode, align_corners=False).reshape(*moved.shape[: -len(axes)], *own)
    return moved.movedim(last, axes)
