"""Samples from one table, or from several of the same subjects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankdad.common.data.encoding import encode
from rankdad.common.data.files import each, matching_files, read_each, read_first
from rankdad.common.data.joining import aligned, join, keys_of
from rankdad.common.data.reading import Reading, is_folder
from rankdad.common.data.table_files import read_table
from rankdad.common.data.tables import Table
from rankdad.common.errors import DataError
from rankdad.common.spec.data import CsvData


def read_csv(
    path: Path, data: CsvData, dtype: str, *, keep: Sequence[str] = (), beside: Sequence[str] | None = None
) -> Reading:
    """Read samples from a table, and its covariates.

    Args:
        path: the folder, or a file to read instead of the schema's `file`.
        data: the schema.
        dtype: of the inputs, such as "float32".
        keep: columns whose effects harmonisation keeps.
        beside: columns to copy next to predictions; None to read for training.

    Raises:
        DataError: data cannot be used; names file, row and column.
    """
    numbers = {column for column in (*data.inputs, *keep) if column not in {*data.categorical, *data.dates}}
    numbers |= {data.label} if isinstance(data.label, str) and not data.values else set()
    numbers -= {data.key, data.group, *(date.since for date in data.dates.values()), *(beside or ())}
    folder, table, told = read_first(path, data.file, data, numbers)
    others, told_too = read_each(folder, data.covariates, data, numbers)
    return csv_samples(data, [table, *others], dtype, keep=keep, notes=told + told_too, beside=beside)


def csv_samples(
    data: CsvData,
    tables: Sequence[Table],
    dtype: str,
    *,
    keep: Sequence[str] = (),
    notes: tuple[str, ...] = (),
    beside: Sequence[str] | None = None,
) -> Reading:
    """Join tables by the schema's key, and encode them as samples.

    Args:
        data: the schema.
        tables: one, or several with the key in common.
        dtype: of the inputs, such as "float32".
        keep: columns whose effects harmonisation keeps.
        notes: on earlier steps.
        beside: columns to copy next to predictions; None to read for training.

    Raises:
        DataError: data cannot be used; names file, row and column.
    """
    if beside is not None:
        refused: dict[int, DataError] = {}
        key = data.key
        if len(tables) == 1 and key not in tables[0].frame:
            key = None  # samples to predict may have no key
        if key is not None:
            tables = aligned(tables, key, refused)
        return encode(data, tables, dtype, key=key, keep=keep, notes=notes, beside=beside, refused=refused)
    dropped = 0
    if data.key is not None:
        keys_of(tables[0], data.key)
    if len(tables) > 1:
        assert data.key is not None  # validated by the schema
        tables, told, dropped = join(tables, data.key, data.missing)
        notes += told
    return encode(data, tables, dtype, key=data.key, keep=keep, notes=notes, dropped=dropped)


def csv_columns(path: Path, data: CsvData) -> list[str]:
    """Return the names of all columns of a folder's tables, from their header rows.

    Args:
        path: the folder, or a file to read instead of the schema's `file`.
        data: the schema.

    Raises:
        DataError: a file is missing, or is not a table.
    """
    folder = path if is_folder(path) else path.parent
    own = matching_files(folder, data.file)[0] if path is folder else path
    files = [own, *(matching_files(folder, name)[0] for name in each(data.covariates))]
    return [name for file in files for name in read_table(file, data, header=True).frame.columns]
