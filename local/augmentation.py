"""Augments training samples, each with its own seed, independent of batches and worker processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.common.spec.augmentation import Augmentation, Crop, Flip, Intensity, Noise
from rankdad.common.spec.axes import space


@dataclass(frozen=True)
class Augmenting:
    """Augment the samples of one site in one epoch, the same way in each batch.

    Args:
        spec: the run.
        site: its place in the plan.
        order: seed of the epoch's batches.
    """

    spec: RunSpec
    site: int
    order: int

    def __call__(self, inputs: Tensor, places: Tensor) -> Tensor:
        """Return augmented samples.

        Args:
            inputs: [n, *shape], prepared.
            places: positions among the fold's training samples, int64 [n].
        """
        varied, axes = [], space(self.spec.data, self.spec.model)
        for sample, place in zip(inputs, places.tolist(), strict=True):
            generator = Generator().manual_seed(derive(self.spec.seed, "augment", self.site, place, self.order))
            for entry in self.spec.training.augmentation:
                sample = _varied(entry, sample, axes, generator)
            varied.append(sample)
        return torch.stack(varied) if varied else inputs


def augmenting(spec: RunSpec, site: int, order: int) -> Augmenting | None:
    """Return the augmentation of a site's training samples in an epoch; None if the run has none."""
    return Augmenting(spec, site, order) if spec.training.augmentation else None


def _varied(entry: Augmentation, sample: Tensor, axes: tuple[int, ...], generator: Generator) -> Tensor:
    """Return one sample [*shape] augmented as an entry says; NaN (padding) stays."""
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
