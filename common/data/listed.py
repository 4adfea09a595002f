"""Reads samples with a file each, listed by a table, when they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankdad.common.data.cells import as_labels, labels_for
from rankdad.common.data.encoding import all_rows
from rankdad.common.data.file_samples import FileSamples
from rankdad.common.data.formats import check_fits
from rankdad.common.data.joining import keys_of, told_apart
from rankdad.common.data.reading import MISSING, PLACE, Array, Reading, by_column, shown
from rankdad.common.data.table_files import read_table
from rankdad.common.data.tables import Table, holder
from rankdad.common.errors import DataError, UserError
from rankdad.common.files import check_file, is_within
from rankdad.common.spec.images import ImagesData, ListedData, NiftiData
from rankdad.common.spec.series import SeriesData
from rankdad.common.spec.text import TextData

Load = Callable[[Path], Array]
Fault = Callable[[int, str], DataError]


def read_listed(
    path: Path, data: NiftiData | ImagesData, dtype: str, load: Load, *, beside: Sequence[str] | None
) -> Reading:
    """Read the samples that a table lists.

    Args:
        path: of the table; file names are relative to its folder, and must stay in it.
        data: the schema.
        dtype: of the inputs, such as "float32".
        load: reads one file; raises a DataError about its contents.
        beside: columns to copy next to predictions: single rows are then refused, and labels may be missing; None to
            read for training.

    Raises:
        DataError: data cannot be used; names the table's row and column, and the file.
    """
    table, training = read_table(path, data), beside is None
    whole = len(table)
    if not whole:
        raise DataError(path, "has no rows", code="no-rows")
    group = data.group if training or data.group in table.frame else None  # predictions need none
    for column in filter(None, (data.key, data.image, group)):
        holder((table,), column)
    refused: dict[int, DataError] | None = None if training else {}
    table = replace(table, refused=refused)
    labels, unlabelled, notes = labels_for(data, (table,), training=training)
    if labels is not None and training:
        table, labels, notes = complete(table, data, labels, (data.image,))
        keys_of(table, data.image, lambda text: str(Path(text)))
        if data.key is not None:
            keys_of(table, data.key)
    files = _files(table, data.image, file_within if training else lambda folder, name: _loaded(folder, name, load))
    if not files:
        raise UserError(f"no row can be predicted: {(refused or {})[0]}", code="nothing-to-predict")
    used, names = table.take(list(files)), (data.key or data.image, data.group)

    def fault(row: int, problem: str) -> DataError:
        return used.error(row, data.image, f"{shown(used.texts(data.image)[row])} {problem}")

    groups = tuple(used.ids(group)) if training and group is not None else None
    return Reading(
        path,
        samples_of_files(path, list(files.values()), data, dtype, load, fault),
        None if labels is None else as_labels(data, labels[list(files)]),
        keys=tuple(used.ids(names[0])),
        groups=groups,
        dropped=whole - len(table),
        notes=notes if groups is None or group is None else notes + told_apart(used, group, groups),
        rows=None if refused is None else all_rows((table,), names, beside or (), refused, unlabelled),
        named_by=by_column(group, data.key, data.image) if training else PLACE,
        stands=lambda: {column: used.stands(column) for column in data.targets},
    )


def _files(table: Table, column: str, find: Callable[[Path, str], Path]) -> dict[int, Path]:
    """Return the files of a table's rows; a row is refused if its file is missing."""
    found = dict[int, Path]()
    for row, name in enumerate(table.texts(column)):
        try:
            found[row] = find(Path(table.source).parent, name)
            continue
        except DataError as error:
            problem = error.problem
        table.refuse(row, column, "is missing" if name.lower() in MISSING else f"{shown(name)} {problem}")
    return found


def _loaded(folder: Path, name: str, load: Load) -> Path:
    file = file_within(folder, name)
    load(file)
    return file


def complete(
    table: Table, data: ListedData | SeriesData | TextData, labels: Array, needed: Sequence[str], *, code: str = "cell"
) -> tuple[Table, Array, tuple[str, ...]]:
    """Return the rows with label, group and other required columns, and notes on the others.

    Args:
        table: with all rows.
        data: the schema.
        labels: of the rows, NaN for missing ones.
        needed: columns that a row must have.
        code: of the error if one of them lacks a value.

    Raises:
        DataError: a row lacks one, and the schema does not drop such rows; or all rows do.
    """
    lacking = {column: table.missing(column) for column in needed}
    for place, column in enumerate(data.targets):
        lacking[column] = np.isnan(labels.reshape(len(labels), -1)[:, place])
    if data.group is not None:
        lacking[data.group] = table.missing(data.group)
    left_out = np.logical_or.reduce(list(lacking.values()))
    if not left_out.any():
        return table, labels, ()
    column = next(column for column, rows in lacking.items() if rows.any())
    count, row = f"{int(left_out.sum())} of {len(table)} rows lack a value", int(lacking[column].argmax())
    code = code if column in needed else "cell"
    if data.missing == "refuse":
        advice = 'complete it, or set data.missing to "drop"'
        raise table.error(row, column, f"is missing ({count}): {advice}", code=code)
    if left_out.all():
        raise table.error(row, column, f"is missing; {count}, and none is left", code=code)
    kept = np.flatnonzero(~left_out)
    note = str(table.error(row, column, f"is missing; {count} and are left out"))
    return table.take(kept.tolist()), labels[kept], (note,)


def file_within(folder: Path, name: str) -> Path:
    """Return the path of a file within a folder.

    Raises:
        DataError: it does not exist, or is outside.
    """
    if not is_within(folder / name, folder):
        raise DataError(name, "leads out of the folder, or is not a file's name", code="path-leads-outside")
    check_file(folder / name)
    return folder / name


def samples_of_files(
    source: str | Path, files: Sequence[Path], data: NiftiData | ImagesData, dtype: str, load: Load, fault: Fault
) -> FileSamples:
    """Return inputs [files, *shape] that are read when they are used.

    Args:
        source: of the list of files, for errors.
        files: in order.
        data: the schema.
        dtype: of the inputs.
        load: reads one; raises a DataError about its contents.
        fault: returns an error that names a file by its row, given the problem.

    Raises:
        DataError: a single one does not fit into memory.
    """

    def read(row: int) -> Array:
        try:
            check_file(files[row])
            return load(files[row])
        except DataError as error:
            told = fault(row, error.problem)
            told.code, told.field = error.code, error.field or told.field
            raise told from None

    found = FileSamples(source, read, (len(files), *data.shape), np.dtype(dtype), fault)
    check_fits(source, f"samples of shape {list(data.shape)}", found.sample_bytes)
    return found
