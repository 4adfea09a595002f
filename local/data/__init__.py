"""A site's samples: read, checked and split."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.errors import DataError, UserError
from common.seeds import derive
from common.spec import RunSpec
from local.data.npz import Array, read_arrays, whole_numbers

TRAIN, VALIDATION, TEST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs [samples, …] in the replica's dtype (int64 for tokens) and labels int64 [samples]."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str) -> Samples:
        """Return the samples on a device."""
        return Samples(self.inputs.to(device), self.labels.to(device))

    def take(self, rows: Tensor) -> Samples:
        """Return some of the samples."""
        return Samples(self.inputs[rows], self.labels[rows])

    def split(self, sizes: list[int]) -> list[Samples]:
        """Return consecutive parts of the given sizes."""
        return [Samples(*pair) for pair in zip(self.inputs.split(sizes), self.labels.split(sizes), strict=True)]


@dataclass(frozen=True, eq=False)
class SiteData:
    """A site's samples in three parts."""

    train: Samples
    validation: Samples
    test: Samples

    def to(self, device: str) -> SiteData:
        """Return the samples on a device.

        Raises:
            UserError: this machine does not have it.
        """
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"device: {device} is not available on this machine, expected cpu")
        return SiteData(self.train.to(device), self.validation.to(device), self.test.to(device))


def read_site(spec: RunSpec, folder: Path, site_index: int) -> SiteData:
    """Read a site's file and split it.

    The file's own `split` decides what is test and what validation, where it has one; else the spec's fractions of a
    permutation that follows from the run's seed and the site's place in the plan. A test set from the file leaves
    validation to be drawn from the rest.

    Raises:
        DataError: unreadable file, missing array, wrong shape, label out of range, nothing to train on.
    """
    path = folder / spec.data.file
    inputs, labels, split = read_npz(path, spec)
    if labels is None:
        raise DataError(path, "has no array y, expected one label per sample")
    samples = Samples(inputs, labels)
    count = len(samples)
    generator = torch.Generator().manual_seed(derive(spec.seed, "split", site_index))
    order = torch.randperm(count, generator=generator)
    if split is None:
        parts = torch.full((count,), TRAIN)
        parts[order[: round(count * spec.training.test)]] = TEST
    else:
        parts = split.long()
    if not bool((parts == VALIDATION).any()):
        rest = order[parts[order] == TRAIN]
        share = spec.training.validation / (1 - spec.training.test if split is None else 1)
        parts[rest[: round(len(rest) * share)]] = VALIDATION
    train, validation, test = (samples.take((parts == part).nonzero().squeeze(1)) for part in (TRAIN, VALIDATION, TEST))
    if not len(train):
        raise DataError(path, f"of {count} samples none is left to train on, expected at least one")
    return SiteData(train, validation, test)


def read_npz(path: Path, spec: RunSpec) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Read inputs, labels and split from a npz file; labels and split are None where it has none.

    Raises:
        DataError: see `read_site`.
    """
    arrays = read_arrays(path, ("x", "y", "split"))
    if "x" not in arrays:
        raise DataError(path, "has no array x, expected the inputs")
    inputs = _inputs(path, arrays["x"], spec)
    limits = {"y": spec.task.classes, "split": 3}
    labels, split = (
        torch.from_numpy(whole_numbers(path, name, arrays[name], len(inputs), limit)) if name in arrays else None
        for name, limit in limits.items()
    )
    return inputs, labels, split


def _inputs(path: Path, array: Array, spec: RunSpec) -> Tensor:
    expected = spec.data.shape
    if array.ndim == 0 or math.prod(array.shape[1:]) != math.prod(expected):
        raise DataError(path, f"x has shape {list(array.shape)}, expected [samples, {', '.join(map(str, expected))}]")
    if array.dtype.kind not in "biuf":
        raise DataError(path, f"x holds {array.dtype}, expected numbers")
    array = array.reshape(len(array), *expected)
    if spec.data.tokens is not None:
        if array.size and not (array.min() >= 0 and array.max() < spec.data.tokens):
            raise DataError(path, f"x holds {array.min()} to {array.max()}, expected 0 to {spec.data.tokens - 1}")
        return torch.from_numpy(array.astype(np.int64))
    numbers = array.astype(spec.training.dtype)
    bad = ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
    if bad.any():
        raise DataError(path, f"x holds NaN or infinity in {int(bad.sum())} samples, first in row {int(bad.argmax())}")
    return torch.from_numpy(numbers * np.asarray(spec.data.scale, numbers.dtype))
