"""Samples of a file each: listed by a table, found in the site's folder, and read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankdad.common.errors import DataError, UserError
from rankdad.common.files import check_file, is_within
from rankdad.common.spec.images import ImagesData, ListedData, NiftiData
from rankdad.common.spec.series import SeriesData
from rankdad.local.data.cells import as_labels, known_labels, labels_of
from rankdad.local.data.encoding import all_rows
from rankdad.local.data.file_samples import FileSamples
from rankdad.local.data.formats import check_fits
from rankdad.local.data.joining import keys_of, told_apart
from rankdad.local.data.reading import MISSING, Array, Reading, by_column, shown
from rankdad.local.data.table_files import read_table
from rankdad.local.data.tables import Table, holder

Load = Callable[[Path], Array]
Fault = Callable[[int, str], DataError]


def read_listed(
    path: Path, data: NiftiData | ImagesData, dtype: str, load: Load, *, beside: Sequence[str] | None
) -> Reading:
    """Read the samples that a table lists.

    Args:
        path: of the table; files' names start at its folder, and do not leave it.
        data: the schema.
        dtype: of the inputs, such as "float32".
        load: reads one file; a DataError of its own tells what is wrong.
        beside: columns that predictions are to stand beside: single rows are then refused, and labels may be missing;
            None where the samples are to be trained on.

    Raises:
        DataError: naming the table's row and column, and the file, of what cannot be used.
    """
    table, training = read_table(path, data), beside is None
    whole = len(table)
    if not whole:
        raise DataError(path, "has no rows", code="no-rows")
    group = data.group if training or data.group in table.frame else None  # predictions need none
    for column in filter(None, (data.key, data.image, group)):
        holder((table,), column)
    if beside is not None:
        return _predicted(table, data, dtype, load, beside)
    labels = labels_of(data, (table,))
    table, labels, notes = complete(table, data, labels, (data.image,))
    keys_of(table, data.image, lambda text: str(Path(text)))
    if data.key is not None:
        keys_of(table, data.key)
    names = table.texts(data.image)

    def fault(row: int, problem: str) -> DataError:
        return table.error(row, data.image, f"{names[row]!r} {problem}")

    files: list[Path] = []
    for row, name in enumerate(names):
        try:
            files.append(file_within(path.parent, name))
        except DataError as error:
            raise table.error(row, data.image, f"{shown(name)} {error.problem}") from None
    return Reading(
        path,
        samples_of_files(path, files, data, dtype, load, fault),
        as_labels(data, labels),
        keys=tuple(table.ids(data.key or data.image)),
        groups=None if group is None else tuple(table.ids(group)),
        dropped=whole - len(table),
        notes=notes if group is None else notes + told_apart(table, group, table.ids(group)),
        named_by=by_column(group, data.key, data.image),
        stands=lambda: {column: table.stands(column) for column in data.targets},
    )


def _predicted(table: Table, data: NiftiData | ImagesData, dtype: str, load: Load, beside: Sequence[str]) -> Reading:
    """Read the samples that are to be predicted; a row whose file cannot be used is refused."""
    folder, refused = Path(table.source).parent, dict[int, DataError]()
    table = replace(table, refused=refused)
    labels, unlabelled, notes = None, np.zeros(len(table), bool), tuple[str, ...]()
    if set(data.targets) <= set(table.frame):
        labels, unlabelled, notes = known_labels(data, (table,))
    files, kept = list[Path](), list[int]()
    for row, name in enumerate(table.texts(data.image)):
        try:
            file = file_within(folder, name)
            load(file)
            files.append(file)
            kept.append(row)
        except DataError as error:
            missing = name.lower() in MISSING
            table.refuse(row, data.image, "is missing" if missing else f"{shown(name)} {error.problem}")
    if not kept:
        raise UserError(f"no row can be predicted: {refused[0]}", code="nothing-to-predict")
    names = (data.key or data.image, data.group)
    used = table.take(kept)

    def fault(row: int, problem: str) -> DataError:
        return used.error(row, data.image, f"{shown(used.texts(data.image)[row])} {problem}")

    return Reading(
        table.source,
        samples_of_files(table.source, files, data, dtype, load, fault),
        None if labels is None else as_labels(data, labels[kept]),
        keys=tuple(used.ids(names[0])),
        notes=notes,
        rows=all_rows((table,), names, beside, refused, unlabelled),
    )


def complete(
    table: Table, data: ListedData | SeriesData, labels: Array, needed: Sequence[str]
) -> tuple[Table, Array, tuple[str, ...]]:
    """Return the rows that lack neither label, group nor other columns that are needed, and what else there is to tell.

    Raises:
        DataError: a row lacks one, and the schema leaves none out; or all do.
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
    if data.missing == "refuse":
        raise table.error(row, column, f'is missing ({count}): complete it, or set data.missing to "drop"')
    if left_out.all():
        raise table.error(row, column, f"is missing; {count}, and none is left")
    kept = np.flatnonzero(~left_out)
    note = str(table.error(row, column, f"is missing; {count} and are left out"))
    return table.take(kept.tolist()), labels[kept], (note,)


def file_within(folder: Path, name: str) -> Path:
    """Return the place of a file within a folder.

    Raises:
        DataError: there is none, or it lies outside.
    """
    if not is_within(folder / name, folder):
        raise DataError(name, "leads out of the folder, or is not a file's name", code="path-leads-outside")
    check_file(folder / name)
    return folder / name


def samples_of_files(
    source: str | Path, files: Sequence[Path], data: NiftiData | ImagesData, dtype: str, load: Load, fault: Fault
) -> FileSamples:
    """Return inputs [files, …shape] of the replica's dtype, of which each is read when it is asked for.

    Args:
        source: what lists them.
        files: in order.
        data: the schema.
        dtype: of the inputs.
        load: reads one; a DataError of its own tells what is wrong.
        fault: returns the error that names a file by its row, with what is wrong.

    Raises:
        DataError: not even one fits into memory.
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
