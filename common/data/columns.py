"""Patterns of columns in a schema, resolved by the tables of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from rankdad.common.spec.data import CsvData, FreesurferData, TableData, resolve_features

T = TypeVar("T", bound=TableData)


def resolved(data: T, folder: Path) -> T:
    """Return a schema with the names of a folder's columns in place of patterns; nothing is read where it has none.

    Raises:
        DataError: a file is missing, or no table.
        SpecError: a pattern stands for no column.
    """
    return resolve_features(data, all_columns(data, folder)) if data.patterns else data


def all_columns(data: TableData, path: Path) -> list[str]:
    """Return the names of all columns, or regions and measures, that a folder's files have, in their order.

    Args:
        data: the schema.
        path: the folder, or a file in it that takes the place of the schema's own.

    Raises:
        DataError: a file is missing, or no table.
    """
    from rankdad.common.data.csv import csv_columns
    from rankdad.common.data.freesurfer import freesurfer_columns

    if isinstance(data, CsvData):
        return csv_columns(path, data)
    assert isinstance(data, FreesurferData)
    return freesurfer_columns(path, data)
