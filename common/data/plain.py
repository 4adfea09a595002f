"""Reads texts in the plainest format with pandas, which is fast; all others are parsed cell by cell."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankdad.common.data.dialect import decimals_of, delimiter_of, first_rows, marked
from rankdad.common.data.reading import MISSING, number
from rankdad.common.errors import DataError
from rankdad.common.spec.table_schema import composed
from rankdad.common.spec.written import Written

# Usual spellings of missing values; a column with another one is not plain.
GAPS = sorted({form for word in MISSING for form in (word, word.upper(), word.capitalize())} | {"NaN", "-NaN", "<Na>"})
# Before 3.1, pandas rounds numbers of many digits differently by default.
ROUNDS_EXACTLY = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
INFERS_TEXTS = ROUNDS_EXACTLY  # as texts, unlike objects, which take twice the time
PEEK = 20  # rows in which to look for texts
EXACTLY: dict[str, Any] = {} if ROUNDS_EXACTLY else {"float_precision": "round_trip"}


def read_plain(path: Path, written: Written, numbers: Collection[str]) -> pd.DataFrame | None:
    """Read a UTF-8 text with commas, in a tenth of the time of parsing cells.

    Args:
        path: of the file, which is text.
        written: how it is written, from the schema.
        numbers: numeric columns.

    Returns:
        float64 for `numbers`, NaN for missing values, and categories of stripped texts for all others, by row of the
        file. None if anything is unusual; parsing cells then names it.
    """
    names = _names(path, written)
    if names is None:
        return None
    numeric = [place for place, name in enumerate(names) if name in numbers]
    try:
        inferred = _worded(path, len(names)) - set(numeric) if INFERS_TEXTS else set[int]()
        columns = _parsed(path, written, names, numeric, inferred)
        if any(not isinstance(columns[place].dtype, pd.StringDtype) for place in inferred):  # numbers further down
            columns = _parsed(path, written, names, numeric)
    except (OSError, ValueError, csv.Error, pd.errors.ParserWarning):
        return None
    texts = {place: _levels(columns[place]) for place in columns if place not in set(numeric)}
    if _is_odd(names, columns, texts, written):
        return None
    index = pd.RangeIndex(2, len(columns[0]) + 2)  # row 1 is the header
    return pd.DataFrame(columns | texts, index).set_axis(names, axis=1)


def read_cells(path: Path, plain: pd.DataFrame) -> pd.DataFrame:
    """Read the texts of all cells after `read_plain`.

    Args:
        path: of the file.
        plain: result of `read_plain`.

    Raises:
        DataError: its rows have changed, or it can no longer be read.
    """
    try:
        columns = _parsed(path, Written(), list(plain.columns), ())
    except (OSError, ValueError, pd.errors.ParserWarning):
        columns = {}
    if len(columns.get(0, ())) != len(plain):
        raise DataError(path, "changed while it was read: start again", code="file-changed")
    cells = {place: np.array([*map(str.strip, own.tolist())], object) for place, own in columns.items()}
    return pd.DataFrame(cells, plain.index, dtype=object).set_axis(plain.columns, axis=1)


def _names(path: Path, written: Written) -> list[str] | None:
    """Return the column names; None if the header is not plain, or several names are not separated by commas."""
    if written.columns or written.decimal == "," or written.delimiter not in (None, ","):
        return None
    try:
        rows = first_rows(path)
        first = rows.partition("\n")[0]
        if first == rows or marked(first) or (written.delimiter or delimiter_of(path, rows)) != ",":
            return None
        (cells,) = csv.reader([first], skipinitialspace=True, strict=True)
    except (DataError, OSError, ValueError, csv.Error):
        return None
    names = [composed(cell.strip()) for cell in cells]
    given = [name for name in names if name]
    return names if len(given) > 1 and len(set(given)) == len(given) else None


def _worded(path: Path, width: int) -> set[int]:
    """Return the indices of columns that hold a text other than a number within the first rows."""
    rows = csv.reader(first_rows(path).split("\n")[1 : PEEK + 1], skipinitialspace=True)
    return {place for row in rows for place, cell in enumerate(row[:width]) if cell and math.isnan(number(cell))}


def _parsed(
    path: Path, written: Written, names: Sequence[str], numeric: Collection[int], inferred: Collection[int] = ()
) -> dict[int, Any]:
    """Return the rows after the header, by column index: float64 for numbers, otherwise texts.

    Args:
        path: of the file.
        written: how it is written.
        names: of its columns.
        numeric: indices of the columns of numbers.
        inferred: indices of columns whose type pandas infers.

    Raises:
        ValueError: pandas cannot parse them.
        ParserWarning: a row has more cells than there are names.
    """
    numbers = set(numeric)
    gaps: Any = {place: [*GAPS, *written.tokens_of(names[place])] for place in numbers}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)  # texts among numbers, found by `_column`
        frame = pd.read_csv(
            path,
            header=None,
            skiprows=1,
            names=range(len(names)),
            index_col=False,
            dtype={place: object for place in range(len(names)) if place not in numbers.union(inferred)},
            keep_default_na=False,
            na_values=gaps,
            skip_blank_lines=False,
            skipinitialspace=True,
            encoding="utf-8-sig",
            compression="gzip" if path.suffix.lower() == ".gz" else None,
            **EXACTLY,
        )
    return {place: _column(own, place in numbers) for place, own in frame.items()}


def _column(column: pd.Series[Any], is_numeric: bool) -> Any:
    if isinstance(column.dtype, pd.StringDtype) and not is_numeric:
        return column.array
    cells = column.to_numpy()
    if not is_numeric:
        return cells
    if cells.dtype.kind not in "iuf":  # texts or booleans
        raise ValueError
    return cells.astype(np.float64)


def _levels(cells: Any) -> pd.Categorical:
    """Return stripped texts as categories."""
    codes, found = pd.factorize(cells)
    levels = list(map(str.strip, texts := found.tolist()))
    if levels != texts and len(set(levels)) < len(levels):
        places, distinct = pd.factorize(np.array(levels, object))
        codes, levels = places[codes], distinct.tolist()
    return pd.Categorical.from_codes(codes, pd.Index(levels, dtype=object), validate=False)


def _is_odd(
    names: Sequence[str], columns: Mapping[int, Any], texts: Mapping[int, pd.Categorical], written: Written
) -> bool:
    """Return whether rows are empty or repeat the header, or texts look like several cells or decimal commas."""
    empty = np.ones(len(columns[0]), bool)
    for place, cells in columns.items():
        if place or place not in texts:  # a first text alone may be a row with other delimiters
            empty &= texts[place] == "" if place in texts else np.isnan(cells)
    levels = {place: own.categories.tolist() for place, own in texts.items()}
    if empty.any() or any("\n" in "".join(own) for own in levels.values()):
        return True
    if any(math.isfinite(number(name)) for name in names):
        return True
    if not {name for own in names if own for name in (own, f"\ufeff{own}")}.isdisjoint(levels.get(0, ())):
        return True
    decimals = decimals_of({names[place]: own for place, own in levels.items() if names[place]}, written.decimal, ",")
    return bool(decimals.comma or decimals.doubtful)
