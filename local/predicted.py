"""Reads the predictions that sites have written for their test samples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from rankdad.common.data.spreadsheets import as_meant
from rankdad.common.errors import DataError, one_line
from rankdad.common.files import check_file
from rankdad.common.spec import RunSpec

FOLDER = "predictions"  # of a site's directory


def read_predictions(site: Path, spec: RunSpec) -> list[pd.DataFrame]:
    """Return a table for each tested fold: the fold, counted from 1, then the columns of its file.

    Args:
        site: directory of a site.
        spec: of the run.

    Raises:
        DataError: a file cannot be read.
    """
    numbered = {path: re.fullmatch(r"fold-(\d+)", path.stem) for path in (site / FOLDER).glob("*.csv")}
    found = {int(name[1]): path for path, name in numbered.items() if name}
    tables = []
    for fold, path in sorted(found.items()):
        check_file(path)
        try:
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
        except (OSError, ValueError) as error:
            raise DataError(path, f"cannot be read as a table: {one_line(error)}", code="table-unreadable") from None
        table = table.map(as_meant).rename(columns=as_meant)
        group = getattr(spec.data, "group", None)
        names = {getattr(spec.data, "key", None), group, f"data_{group}"}
        for place, name in enumerate(table.columns):
            if name not in names:
                table.isetitem(place, typed(table.iloc[:, place]))
        insert_first(table, "fold", fold)
        tables.append(table)
    return tables


def insert_first(table: pd.DataFrame, name: str, value: int | str) -> None:
    """Insert a column before all others; a column of the same name is prefixed with `data_`."""
    table.columns = pd.Index([f"data_{name}" if each == name else each for each in table])
    table.insert(0, name, value)


def typed(cells: Any) -> Any:
    """Return a column of numeric texts as numbers, NaN for missing values; other columns unchanged."""
    numbers = pd.to_numeric(cells, errors="coerce")
    return cells if (numbers.isna() & cells.notna() & (cells != "")).any() else numbers
