"""Patterns of columns in a schema, resolved by the tables of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from rankdad.common.spec.data import CsvData, FreesurferData, TableData, resolve_features

T = TypeVar("T", bound=TableData)


def resolved(data: T, folder: Path) -> T:
    """Replace the patterns in a schema by the matching columns of a folder; without patterns, nothing is read.

    Raises:
        DataError: a file is missing, or is not a table.
        SpecError: a pattern matches no column.
    """
    return resolve_features(data, all_columns(data, folder)) if data.patterns else data


def all_columns(data: TableData, path: Path) -> list[str]:
    """Return the names of all columns, or regions and measures, in a folder's files, in order.

    Args:
        data: the schema.
        path: the folder, or a file to read instead of the schema's first.

    Raises:
        DataError: a file is missing, or is not a table.
    """
    from rankdad.common.data.csv import csv_columns
    from rankdad.common.data.freesurfer import freesurfer_columns

    if isinstance(data, CsvData):
        return csv_columns(path, data)
    assert isinstance(data, FreesurferData)
    return freesurfer_columns(path, data)
