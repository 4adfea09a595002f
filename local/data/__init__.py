"""A site's samples: read, checked and split."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rankdad.common.preparation import Rows
from rankdad.common.protocol.messages import DataWarning
from rankdad.common.run.replica import weights_sha256
from rankdad.common.spec import KFold, RunSpec
from rankdad.common.spec.data import CsvData, NpzData, TsData
from rankdad.common.spec.images import FunctionData, ImagesData, NiftiData
from rankdad.common.spec.tasks import Classification
from rankdad.local.data.behind import fewest_behind
from rankdad.local.data.folds import Split, folds
from rankdad.local.data.function import read_function
from rankdad.local.data.npz import read_npz
from rankdad.local.data.reading import Array, Reading, is_folder
from rankdad.local.data.ts import read_ts

MEANING: dict[DataWarning, str] = {
    "one-class": "all samples are of one class: there is no AUC of this site alone",
    "missing-classes": "there are no samples of some class",
    "fewer-samples-than-folds": "there are fewer samples than folds: some folds test none here",
}


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs [samples, …] in the replica's dtype (int64 for tokens) and labels [samples, …] as the task has them."""

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
    """A site's samples as they were read, and which of them every fold trains on, validates and tests with.

    Args:
        samples: all n of them, in the source's order: inputs [n, …], labels [n], or [n, labels] for multi-label.
        splits: one for each time that the run trains.
        covariates: float64 [n, columns]; None where harmonisation keeps none.
        keys: name of each sample.
        dropped: how many rows of the source were left out.
        fewest: samples behind any sum that leaves the site.
        warnings: what is counted at the aggregator too.
        notes: what the person at the site should be told, one sentence each.
    """

    samples: Samples
    splits: tuple[Split, ...]
    covariates: Tensor | None = None
    keys: tuple[str, ...] = ()
    dropped: int = 0
    fewest: int = 1
    warnings: tuple[DataWarning, ...] = ()
    notes: tuple[str, ...] = ()

    def sha256(self) -> str:
        """Return the digest of samples, labels, covariates and splits."""
        tensors = {"inputs": self.samples.inputs, "labels": self.samples.labels}
        if self.covariates is not None:
            tensors["covariates"] = self.covariates
        for fold, split in enumerate(self.splits):
            tensors |= {f"{fold}/{name}": rows for name, rows in vars(split).items()}
        return weights_sha256(tensors)

    def order_key(self, fold: int) -> str:
        """Return what the order of a fold's batches is drawn from: a digest of its training rows, known here alone.

        Whoever knew the order could solve the sums of many batches for single samples.
        """
        rows = self.splits[fold].train
        return weights_sha256({"inputs": self.samples.inputs[rows], "labels": self.samples.labels[rows]})

    def rows(self, fold: int) -> Rows:
        """Return a fold's training rows, for preparation."""
        rows = self.splits[fold].train
        covariates = None if self.covariates is None else self.covariates[rows]
        return Rows(self.samples.inputs[rows], self.samples.labels[rows], covariates)

    def summed(self, fold: int) -> Rows:
        """Return what may leave the site in sums: a column that too few samples of some fold have is missing in all."""
        rows = self.rows(fold).of_at_least(self.fewest)
        if len(rows.inputs) and (too_few := self._too_few()) is not None:
            return replace(rows, inputs=rows.inputs.masked_fill(too_few, math.nan))
        return rows

    def described(self) -> Rows:
        """Return what may leave the site in Table 1: all rows that the last fold trains on or holds out.

        What it holds out of a column is left out where it is too little: the sums of training rows would tell it.
        """
        split = self.splits[-1]
        held = torch.cat([split.validation, split.test])
        rows = torch.cat([split.train, held])
        inputs = self.samples.inputs[rows]
        if inputs.ndim == 2 and inputs.is_floating_point() and inputs.isnan().any():
            few = self.samples.inputs[held].isnan().logical_not().sum(0) < self.fewest
            inputs[len(split.train) :, few] = math.nan
        return Rows(inputs, self.samples.labels[rows]).of_at_least(self.fewest)

    def _too_few(self) -> Tensor | None:
        """Return which columns of a table with gaps too few samples have, in a fold or in what it holds out.

        Covariates are summed up over the samples that have a column: so those that lack it must be enough, too.
        """
        inputs = self.samples.inputs
        if inputs.ndim != 2 or not inputs.is_floating_point() or not inputs.isnan().any():
            return None
        lacking, few = inputs.isnan(), torch.zeros(inputs.shape[1], dtype=torch.bool)
        for members in (~lacking, *([lacking] if self.covariates is not None else [])):
            few |= fewest_behind(self.splits, members, len(self.splits)) < self.fewest
        return few


def read_site(spec: RunSpec, folder: Path, site_index: int, allowed: Collection[str] = ()) -> SiteData:
    """Read a site's data and split them.

    Args:
        spec: the run.
        folder: of the site's data.
        site_index: place of the site in the plan.
        allowed: readers "package.module:function" that the site permits.

    Raises:
        DataError: what cannot be used, by file, row and column; or nothing is left to train on.
    """
    return split_samples(spec, read_samples(spec, folder, allowed=allowed), site_index)


def read_samples(spec: RunSpec, path: Path, *, training: bool = True, allowed: Collection[str] = ()) -> Reading:
    """Read what the run's schema says.

    Args:
        spec: the run.
        path: the folder of the schema's files, or one file that is read in the place of the schema's `file`, whatever
            that is called; the schema's other files lie beside it.
        training: whether the samples are to be trained on; predictions need no labels.
        allowed: names "package.module:function" of readers that the caller permits.

    Raises:
        PolicyError: the schema names a function that is not allowed.
        DataError: what cannot be used, by file, row and column.
    """
    data, task = spec.data, spec.task
    dtype, keep = spec.training.dtype, spec.preparation.keep
    if isinstance(data, NpzData):
        return read_npz(path / data.file if is_folder(path) else path, data, task, dtype, training=training)
    if isinstance(data, TsData):
        return read_ts(path, data, task, dtype, training=training)
    if isinstance(data, FunctionData):
        return read_function(path, data, task, dtype, allowed)
    from rankdad.local.data.csv import read_csv  # here, since pandas is slow to import: only tables wait for it
    from rankdad.local.data.freesurfer import read_freesurfer
    from rankdad.local.data.images import read_images
    from rankdad.local.data.nifti import read_nifti

    if isinstance(data, NiftiData):
        return read_nifti(path / data.file if is_folder(path) else path, data, dtype, training=training)
    if isinstance(data, ImagesData):
        return read_images(path / data.file if is_folder(path) else path, data, dtype, training=training)
    if isinstance(data, CsvData):
        return read_csv(path, data, dtype, keep=keep, training=training)
    return read_freesurfer(path, data, dtype, keep=keep, training=training)


def split_samples(spec: RunSpec, reading: Reading, site_index: int) -> SiteData:
    """Split what was read.

    Raises:
        DataError: there are no labels, or nothing is left to train on.
    """
    splits = folds(spec, reading, site_index)
    assert reading.labels is not None
    warnings = _warnings(spec, reading.labels)
    return SiteData(
        Samples(torch.from_numpy(reading.inputs), torch.from_numpy(reading.labels)),
        splits,
        None if reading.covariates is None else torch.from_numpy(reading.covariates),
        reading.keys or tuple(map(str, range(len(reading.labels)))),
        reading.dropped,
        warnings=warnings,
        notes=reading.notes + tuple(MEANING[warning] for warning in warnings),
    )


def _warnings(spec: RunSpec, labels: Array) -> tuple[DataWarning, ...]:
    found: list[DataWarning] = []
    if isinstance(spec.task, Classification) and (classes := len(np.unique(labels))) < spec.task.classes:
        found.append("one-class" if classes == 1 else "missing-classes")
    if isinstance(spec.evaluation, KFold) and len(labels) < spec.evaluation.folds:
        found.append("fewer-samples-than-folds")
    return tuple(found)
