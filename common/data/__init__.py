"""A site's samples: read, checked and split.

`read_samples` is where another reader is added; its schema is a class of `AnyData` in `common/spec/data.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rankdad.common.data.file_samples import FileSamples
from rankdad.common.data.folds import folds
from rankdad.common.data.lazy import Lazy, give_back_what_is_freed
from rankdad.common.data.npz import read_function, read_npz
from rankdad.common.data.parts import PartAssigner
from rankdad.common.data.reading import Array, Reading, is_folder
from rankdad.common.data.site_data import Batch, Samples, SiteData
from rankdad.common.errors import UserError, naming
from rankdad.common.loading import Loading
from rankdad.common.preparation import Inputs
from rankdad.common.protocol.messages import DataWarning
from rankdad.common.run.repeats import equal_repeats
from rankdad.common.spec import KFold, RunSpec
from rankdad.common.spec.data import CsvData, NpzData
from rankdad.common.spec.images import FunctionData, ImagesData, NiftiData
from rankdad.common.spec.series import SeriesData
from rankdad.common.spec.tasks import Classification
from rankdad.common.spec.text import TextData
from rankdad.common.spec.written import Tabular

__all__ = ["Batch", "Samples", "SiteData", "lazy_or_whole", "read_samples", "read_site", "split_samples"]
MEANING: dict[DataWarning, str] = {
    "one-class": "all samples are of one class: there is no AUC of this site alone",
    "missing-classes": "there are no samples of some class",
    "rows-left-out": "the other members learn that rows are not used, not how many",
    "fewer-samples-than-folds": "there are fewer samples, or parts, than folds: some folds test none here",
}


def read_site(
    spec: RunSpec,
    folder: Path,
    site_index: int,
    allowed: Collection[str] = (),
    loading: Loading = Loading(),  # noqa: B008
    assigner: PartAssigner | None = None,
) -> SiteData:
    """Read a site's data and split them.

    Args:
        spec: the run.
        folder: of the site's data.
        site_index: position of the site in the plan.
        allowed: readers "package.module:function" that the site allows.
        loading: of samples with a file each.
        assigner: assigns patients to parts; None if folds follow from keys.

    Raises:
        DataError: data cannot be used, by file, row and column; or nothing is left to train on.
    """
    with naming(spec.says, alike=assigner is not None):
        reading = read_samples(spec, folder, allowed=allowed, loading=loading)
        return split_samples(spec, reading, site_index, loading, assigner)


def read_samples(
    spec: RunSpec,
    path: Path,
    *,
    beside: Sequence[str] | None = None,
    allowed: Collection[str] = (),
    loading: Loading = Loading(),  # noqa: B008
) -> Reading:
    """Read the samples of a run's schema. Samples with a file each are all checked, and few are kept in memory.

    Args:
        spec: the run.
        path: the folder of the schema's files, or a file to read instead of the schema's `file`, with the schema's
            other files next to it.
        beside: columns to copy next to predictions, which need no labels; None to read for training.
        allowed: names "package.module:function" of readers that the caller allows.
        loading: of samples with a file each.

    Raises:
        PolicyError: the schema names a function that is not allowed.
        DataError: data cannot be used, by file, row and column.
    """
    data, task = spec.data, spec.task
    dtype, keep, training = spec.training.dtype, spec.preparation.keep, beside is None
    if beside and not isinstance(data, Tabular):
        raise UserError(
            f"--keep: data.reader {data.reader} has no columns to copy next to predictions",
            code="no-columns",
            field="--keep",
        )
    if isinstance(data, NpzData):
        return read_npz(path / data.file if is_folder(path) else path, data, task, dtype, training=training)
    if isinstance(data, FunctionData):
        return read_function(path, data, task, dtype, allowed)
    from rankdad.common.data.csv import read_csv  # slow to import
    from rankdad.common.data.freesurfer import read_freesurfer
    from rankdad.common.data.images import read_images
    from rankdad.common.data.nifti import read_nifti
    from rankdad.common.data.series import read_series
    from rankdad.common.data.text import read_text

    if isinstance(data, NiftiData | ImagesData):
        place = path / data.file if is_folder(path) else path
        if isinstance(data, NiftiData):
            found = read_nifti(place, data, dtype, beside=beside)
        else:
            found = read_images(place, data, dtype, beside=beside)
        assert isinstance(found.inputs, FileSamples)
        inputs = found.inputs.checked(loading) if training else found.inputs.cached(loading)
        return replace(found, inputs=inputs)
    if isinstance(data, SeriesData):
        return read_series(path, data, dtype, beside=beside)
    if isinstance(data, TextData):
        return read_text(path, data, beside=beside)
    if isinstance(data, CsvData):
        return read_csv(path, data, dtype, keep=keep, beside=beside)
    return read_freesurfer(path, data, dtype, keep=keep, beside=beside)


def lazy_or_whole(inputs: Array | FileSamples, loading: Loading = Loading()) -> Inputs:  # noqa: B008
    """Return inputs as a tensor, or as lazily read samples."""
    if not isinstance(inputs, FileSamples):
        return torch.from_numpy(inputs)
    give_back_what_is_freed()
    return Lazy(inputs, loading)


def split_samples(
    spec: RunSpec,
    reading: Reading,
    site_index: int,
    loading: Loading = Loading(),  # noqa: B008
    assigner: PartAssigner | None = None,
) -> SiteData:
    """Split samples into folds.

    Raises:
        DataError: there are no labels, or nothing is left to train on.
        UserError: the site's log cannot be used.
    """
    assignment = None
    if assigner is not None and reading.labels is not None:
        reading, assignment = assigner.assign(reading)
    splits = folds(spec, reading, site_index, assignment)
    assert reading.labels is not None
    units = len(reading.labels) if assignment is None else len(assignment.sizes)
    warnings = _warnings(spec, reading.labels, units)
    if assigner is not None and assignment is not None and reading.dropped + assignment.waits >= assigner.fewest:
        warnings += ("rows-left-out",)
    groups = None if reading.groups is None else np.unique(reading.groups, return_inverse=True)[1]
    data = SiteData(
        Samples(lazy_or_whole(reading.inputs, loading), torch.from_numpy(reading.labels)),
        splits,
        None if reading.covariates is None else torch.from_numpy(reading.covariates),
        reading.keys or tuple(map(str, range(len(reading.labels)))),
        reading.dropped,
        warnings=warnings,
        notes=(
            *reading.notes,
            *(MEANING[warning] for warning in warnings),
            *(() if assignment is None else assignment.notes()),
        ),
        groups=None if groups is None else torch.from_numpy(groups),
        group_names=reading.groups or (),
        parts=assignment,
    )
    equal = equal_repeats([data.alike(spec)], spec.folds_per_repeat)
    if not equal:
        return data
    repeats = spec.tested_folds // spec.folds_per_repeat
    note = (
        f"of {repeats} repeats {repeats - len(equal)} split this site's samples differently: a repeat that equals "
        "another one at every site is skipped"
    )
    return replace(data, notes=(*data.notes, note))


def _warnings(spec: RunSpec, labels: Array, units: int) -> tuple[DataWarning, ...]:
    found: list[DataWarning] = []
    if isinstance(spec.task, Classification) and (classes := len(np.unique(labels))) < spec.task.classes:
        found.append("one-class" if classes == 1 else "missing-classes")
    if isinstance(spec.evaluation, KFold) and units < spec.evaluation.folds:
        found.append("fewer-samples-than-folds")
    return tuple(found)
