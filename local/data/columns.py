"""Patterns of columns in a schema, resolved by the tables of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from common.data import CsvData, FreesurferData, TableData, resolve_features

T = TypeVar("T", bound=TableData)


def resolved(data: T, folder: Path) -> T:
    """Return a schema with the names of a folder's columns in place of patterns; nothing is read where it has none.

    Raises:
        DataError: a file is missing, or no table.
        SpecError: a pattern stands for no column.
    """
    if not data.patterns:
        return data
    from local.data.csv import csv_columns  # pandas takes half a second
    from local.data.freesurfer import freesurfer_columns

    if isinstance(data, CsvData):
        return resolve_features(data, csv_columns(folder, data))
    assert isinstance(data, FreesurferData)
    return resolve_features(data, freesurfer_columns(folder, data))
