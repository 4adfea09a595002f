"""Samples from one table, or from two of the same subjects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.data import CsvData
from local.data.encoding import encode
from local.data.reading import Reading
from local.data.tables import Table, join, keys_of, read_table


def read_csv(path: Path, data: CsvData, dtype: str, *, training: bool) -> Reading:
    """Read samples from a table, and the covariates beside it.

    Raises:
        DataError: naming file, row and column of what cannot be used.
    """
    names = (path,) if data.covariates is None else (path, path.parent / data.covariates)
    return csv_samples(data, [read_table(name) for name in names], dtype, training=training)


def csv_samples(data: CsvData, tables: Sequence[Table], dtype: str, *, training: bool = True) -> Reading:
    """Join tables by the schema's key, and encode them as samples.

    Args:
        data: the schema.
        tables: one, or two with the key in common.
        dtype: of the inputs, such as "float32".
        training: whether the samples are to be trained on; for predictions the label may be missing.

    Raises:
        DataError: naming file, row and column of what cannot be used.
    """
    notes: tuple[str, ...] = ()
    if data.key is not None:
        keys_of(tables[0], data.key)
    for table in tables[1:]:
        assert data.key is not None  # the schema sees to that
        tables, notes = join(tables[0], table, data.key, data.missing)
    return encode(data, tables, dtype, key=data.key, notes=notes, training=training)
