"""Texts in which everything is plain, read by pandas at once. Whatever may need a second look is left to cells."""

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
from rankdad.common.data.reading import MISSING, Array, number
from rankdad.common.errors import DataError
from rankdad.common.spec.table_schema import composed
from rankdad.common.spec.written import Written

# Usual spellings of what always counts as missing; a column with another one is no plain one.
GAPS = sorted({form for word in MISSING for form in (word, word.upper(), word.capitalize())} | {"NaN", "-NaN", "<Na>"})
# Before 3.1 pandas rounds numbers of many digits in its own way, unless it is told not to.
ROUNDS_EXACTLY = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
EXACTLY: dict[str, Any] = {} if ROUNDS_EXACTLY else {"float_precision": "round_trip"}


def read_plain(path: Path, written: Written, numbers: Collection[str]) -> pd.DataFrame | None:
    """Read a text in UTF-8 with commas: a tenth of the time that cells take.

    Args:
        path: of the file, which is text.
        written: what the schema says of it.
        numbers: columns that hold nothing else.

    Returns:
        float64 of `numbers`, NaN where a cell is missing, and categories of all others, which are texts without spaces
        around them, by row of the file. None where anything is odd: what it is, and in which cell, cells tell.
    """
    names = _names(path, written)
    if names is None:
        return None
    numeric = [place for place, name in enumerate(names) if name in numbers]
    try:
        columns = _parsed(path, written, names, numeric)
    except (OSError, ValueError, pd.errors.ParserWarning):
        return None
    texts = {place: _levels(columns[place]) for place in columns if place not in set(numeric)}
    if _is_odd(names, columns, texts, written):
        return None
    index = pd.RangeIndex(2, len(columns[0]) + 2)  # the names are row 1
    return pd.DataFrame(columns | texts, index).set_axis(names, axis=1)


def read_cells(path: Path, plain: pd.DataFrame) -> pd.DataFrame:
    """Read again what `read_plain` has read: the texts of all cells.

    Args:
        path: of the file.
        plain: what was read of it.

    Raises:
        DataError: it has other rows by now, or cannot be read any more.
    """
    try:
        columns = _parsed(path, Written(), list(plain.columns), ())
    except (OSError, ValueError, pd.errors.ParserWarning):
        columns = {}
    if len(columns.get(0, ())) != len(plain):
        raise DataError(path, "has changed while it was read: begin anew", code="file-changed")
    cells = {place: np.array([*map(str.strip, own.tolist())], object) for place, own in columns.items()}
    return pd.DataFrame(cells, plain.index, dtype=object).set_axis(plain.columns, axis=1)


def _names(path: Path, written: Written) -> list[str] | None:
    """Return the names of the columns; None unless the first row is plain, and has commas between several names."""
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


def _parsed(path: Path, written: Written, names: Sequence[str], numeric: Collection[int]) -> dict[int, Array]:
    """Return the rows behind the first, by their columns' places: float64 of numbers, else objects.

    Raises:
        ValueError: pandas cannot read them so.
        ParserWarning: a row has more cells than there are names.
    """
    gaps: Any = {place: [*GAPS, *written.tokens_of(names[place])] for place in numeric}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        warnings.simplefilter("ignore", pd.errors.DtypeWarning)  # texts among numbers, which `_column` finds
        frame = pd.read_csv(
            path,
            header=None,
            skiprows=1,
            names=range(len(names)),
            index_col=False,
            dtype={place: object for place in range(len(names)) if place not in set(numeric)},
            keep_default_na=False,
            na_values=gaps,
            skip_blank_lines=False,
            skipinitialspace=True,
            encoding="utf-8-sig",
            compression="gzip" if path.suffix.lower() == ".gz" else None,
            **EXACTLY,
        )
    return {place: _column(frame.iloc[:, place].to_numpy(), place in numeric) for place in range(len(names))}


def _column(cells: Array, is_numeric: bool) -> Array:
    if not is_numeric:
        return cells
    if cells.dtype.kind not in "iuf":  # texts, or truth values
        raise ValueError
    return cells.astype(np.float64)


def _levels(cells: Array) -> pd.Categorical:
    """Return texts as categories, without spaces around them."""
    codes, found = pd.factorize(cells)
    levels = list(map(str.strip, found.tolist()))
    if len(set(levels)) < len(levels):
        places, distinct = pd.factorize(np.array(levels, object))
        codes, levels = places[codes], distinct.tolist()
    return pd.Categorical.from_codes(codes, pd.Index(levels, dtype=object), validate=False)


def _is_odd(
    names: Sequence[str], columns: Mapping[int, Array], texts: Mapping[int, pd.Categorical], written: Written
) -> bool:
    """Tell whether rows are empty, or look like the names or like several, or texts like numbers with a comma."""
    empty = np.ones(len(columns[0]), bool)
    for place, cells in columns.items():
        if place or place not in texts:  # a first text that stands alone may be a row with other delimiters
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
