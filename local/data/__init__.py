"""A site's samples: read, checked and split."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.data import CsvData, NpzData
from common.errors import DataError, UserError
from common.imaging import FunctionData, ImagesData, NiftiData
from common.seeds import derive
from common.spec import RunSpec
from local.data.function import read_function
from local.data.npz import read_npz
from local.data.reading import Reading

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
    """A site's samples in three parts, and what the person at the site should be told of them, one sentence each."""

    train: Samples
    validation: Samples
    test: Samples
    notes: tuple[str, ...] = ()

    def to(self, device: str) -> SiteData:
        """Return the samples on a device.

        Raises:
            UserError: this machine does not have it.
        """
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"device: {device} is not available on this machine, expected cpu")
        return SiteData(self.train.to(device), self.validation.to(device), self.test.to(device), self.notes)


def read_site(spec: RunSpec, folder: Path, site_index: int, allowed: Collection[str] = ()) -> SiteData:
    """Read a site's data and split them.

    Args:
        spec: the run.
        folder: of the site's data.
        site_index: the site's place in the plan.
        allowed: names "package.module:function" of readers that the site permits.

    Raises:
        DataError: what cannot be used, by file, row and column; or nothing is left to train on.
    """
    return split_samples(spec, read_samples(spec, folder / spec.data.file, allowed=allowed), site_index)


def read_samples(spec: RunSpec, path: Path, *, training: bool = True, allowed: Collection[str] = ()) -> Reading:
    """Read what the run's schema says.

    Args:
        spec: the run.
        path: of the file with which the schema begins; its other files lie beside it.
        training: whether the samples are to be trained on; predictions need no labels.
        allowed: names "package.module:function" of readers that the caller permits.

    Raises:
        PolicyError: the schema names a function that is not allowed.
        DataError: what cannot be used, by file, row and column.
    """
    data, task, dtype = spec.data, spec.task, spec.training.dtype
    if isinstance(data, NpzData):
        return read_npz(path, data, task, dtype)
    if isinstance(data, FunctionData):
        return read_function(path, data, task, dtype, allowed)
    from local.data.csv import read_csv  # pandas takes half a second, for which npz files need not wait
    from local.data.freesurfer import read_freesurfer
    from local.data.images import read_images
    from local.data.nifti import read_nifti

    if isinstance(data, NiftiData):
        return read_nifti(path, data, task, dtype, training=training)
    if isinstance(data, ImagesData):
        return read_images(path, data, task, dtype, training=training)
    if isinstance(data, CsvData):
        return read_csv(path, data, dtype, training=training)
    return read_freesurfer(path, data, dtype, training=training)


def split_samples(spec: RunSpec, reading: Reading, site_index: int) -> SiteData:
    """Split a site's samples.

    The data's own `split` decides what is test and what validation, where they have one; else the spec's fractions of
    a permutation that follows from the run's seed and the site's place in the plan. A test set of the data's own leaves
    validation to be drawn from the rest.

    Raises:
        DataError: there are no labels, or nothing is left to train on.
    """
    if reading.labels is None:
        raise DataError(reading.source, "has no array y, expected one label per sample")
    samples = Samples(torch.from_numpy(reading.inputs), torch.from_numpy(reading.labels))
    count = len(samples)
    generator = torch.Generator().manual_seed(derive(spec.seed, "split", site_index))
    order = torch.randperm(count, generator=generator)
    if reading.split is None:
        parts = torch.full((count,), TRAIN)
        parts[order[: round(count * spec.training.test)]] = TEST
    else:
        parts = torch.from_numpy(reading.split).clone()
    if not bool((parts == VALIDATION).any()):
        rest = order[parts[order] == TRAIN]
        share = spec.training.validation / (1 - spec.training.test if reading.split is None else 1)
        parts[rest[: round(len(rest) * share)]] = VALIDATION
    train, validation, test = (samples.take((parts == part).nonzero().squeeze(1)) for part in (TRAIN, VALIDATION, TEST))
    if not len(train):
        raise DataError(reading.source, f"of {count} samples none is left to train on, expected at least one")
    return SiteData(train, validation, test, reading.notes)
