"""Tables and their cells. Errors name file, row and column."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankdad.common.data.dialect import Decimals
from rankdad.common.data.reading import (
    BROKEN,
    BROKEN_ADVICE,
    LOST_DIGITS,
    MISSING,
    Array,
    has_lost_digits,
    number,
    shown,
)
from rankdad.common.errors import DataError
from rankdad.common.spec.table_schema import canonical, composed
from rankdad.common.spec.written import Written

POINTED = re.compile(r"(\d+)\.0+")


@dataclass(frozen=True, eq=False)
class Table:
    """Cells of any type by column.

    Args:
        source: the file, or a folder with a file for every row, for errors.
        frame: indexed by the row's number (in a file the header is row 1); by a file's name next to the source and the
            number there; or by a file's name in the source.
        written: how its cells are written, from the schema.
        decimals: its columns with a decimal comma.
        refused: reasons of refused rows, by position; None if one such row refuses the table.
        cells: returns the frame with the texts of its float64 columns; None if it holds them itself.

    Raises:
        DataError: a column name is not unique.
    """

    source: str | Path
    frame: pd.DataFrame
    written: Written = field(default=Written())
    decimals: Decimals = field(default=Decimals())
    refused: dict[int, DataError] | None = None
    cells: Callable[[], pd.DataFrame] | None = None

    def __post_init__(self) -> None:
        names = self.frame.columns
        twice = names[names.duplicated() & (names != "")]  # spreadsheets may have columns without a name
        if len(twice):
            mend = _headless([twice[0]]) or ": rename or remove one"
            code, field = ("header-missing", "data.columns") if _headless([twice[0]]) else ("column-repeated", twice[0])
            raise DataError(self.source, f"has two columns {shown(twice[0])}{mend}", code=code, field=field, row=1)

    def __len__(self) -> int:
        return len(self.frame)

    def is_parsed(self, column: str) -> bool:
        """Return whether a column holds float64 parsed from texts, with NaN for missing values."""
        return column in self._parsed

    @cached_property
    def _parsed(self) -> frozenset[str]:
        types = {} if self.cells is None else dict(self.frame.dtypes)
        return frozenset(str(column) for column, type_ in types.items() if type_ == np.float64)

    def _cells(self, column: str) -> pd.Series[Any]:
        """Return a column's cells as in the file."""
        if self.cells is None or not self.is_parsed(column):
            return self.frame[column]
        return self.cells()[column].reindex(self.frame.index)

    def levels(self, column: str) -> tuple[Array, list[str]]:
        """Return a column's different texts, and the index of each cell's, int64 [rows]."""
        return self._levels(column, canonical)

    def _levels(self, column: str, form: Callable[[str], str]) -> tuple[Array, list[str]]:
        cells: Any = self._cells(column)
        if isinstance(cells.dtype, pd.CategoricalDtype):
            places, found = cells.cat.codes.to_numpy(), cells.cat.categories
        else:
            places, found = _distinct(cells.to_numpy(object))
        texts, lacking = found.tolist(), self.written.tokens_of(column)
        if self.cells is None:  # else they are stripped
            texts = [*map(str.strip, texts)]
        forms = [form]
        if form is canonical and column in self.decimals.comma:  # -9,0 equals -9 with decimal commas
            forms.append(lambda text: canonical(text.replace(",", ".")))
        if lacking:
            texts = ["" if any(one(text) in lacking for one in forms) else text for text in texts]
        return places, texts

    def texts(self, column: str) -> list[str]:
        """Return a column's cells as stripped text; "" for empty cells."""
        return self._texts(column, canonical)

    def _texts(self, column: str, form: Callable[[str], str]) -> list[str]:
        places, texts = self._levels(column, form)
        return [texts[place] for place in places.tolist()]

    def missing(self, column: str) -> Array:
        """Return which of a column's cells are missing, bool [rows]."""
        if self.is_parsed(column):
            return self.frame[column].isna().to_numpy()
        places, texts = self.levels(column)
        return np.array([text.lower() in MISSING for text in texts], bool)[places]

    def stands(self, column: str) -> Array:
        """Return a column's original cell values, object [rows]."""
        cells = self._cells(column)
        are_texts = pd.api.types.infer_dtype(cells, skipna=False) == "string"
        return (cells if are_texts else cells.astype(str)).to_numpy(object)

    def ids(self, column: str) -> list[str]:
        """Return a column's identifiers as text: 007 is not 7, and 1E2 is not 100.

        Raises:
            DataError: one has lost digits, such as 1.23E+11, or occurs both as 12 and as 12.0.
        """
        found = [composed(text) for text in self._texts(column, composed)]
        known = set(found)
        for row, (text, cell) in enumerate(zip(found, self.frame[column].tolist(), strict=True)):
            if has_lost_digits(text, cell):
                self.refuse(row, column, f"holds {shown(text)}, {LOST_DIGITS}", code="identifier-rounded")
                found[row] = ""
            elif BROKEN.fullmatch(text):
                self.refuse(row, column, f"holds {shown(text)}, {BROKEN_ADVICE}", code="formula")
                found[row] = ""
            elif (pointed := POINTED.fullmatch(text)) and pointed[1] in known:
                problem = f"holds {shown(text)}, other rows hold {shown(pointed[1])}: write identifiers consistently"
                self.refuse(row, column, problem, code="identifier-twice-written")
        return found

    def numbers(self, column: str) -> Array:
        """Return a column's cells as float64 [rows]; NaN for missing and ambiguous ones."""
        if self.is_parsed(column):
            return self.frame[column].to_numpy()
        read = comma_number if column in self.decimals.comma else number
        if column in (self.decimals.doubtful or ()):
            read = whole_number
        cells: list[Any] = self.frame[column].tolist()
        found = [
            math.nan if not text else float(cell) if isinstance(cell, (int, float)) else read(text)
            for cell, text in zip(cells, self.texts(column), strict=True)
        ]
        return np.array(found, np.float64)

    def names(self) -> tuple[str, ...]:
        """Return identifiers of the rows if there is no key."""
        labels = self.frame.index
        if pd.api.types.is_integer_dtype(labels.dtype):
            return tuple(map(str, labels.tolist()))
        return tuple(f"{label[0]}:{label[1]}" if isinstance(label, tuple) else str(label) for label in labels)

    def place(self, row: int) -> tuple[Path, str]:
        """Return the file and place of a row, given its position here; the place is "" for a file's only row."""
        label: Any = self.frame.index[row]
        if isinstance(label, tuple):
            return Path(self.source).parent / label[0], f"row {label[1]}"
        return (Path(self.source, label), "") if isinstance(label, str) else (Path(self.source), f"row {label}")

    def error(self, row: int, column: str, problem: str, hint: str = "", *, code: str = "cell") -> DataError:
        """Create the error that names a cell."""
        file, place = self.place(row)
        where = f"{place}, column {column}" if place else f"column {column}"
        number = int(place.removeprefix("row ")) if place else None
        return DataError(file, problem, code=code, field=column, row=number, place=where, hint=hint)

    def refuse(self, row: int, column: str, problem: str, hint: str = "", *, code: str = "cell") -> None:
        """Refuse a row, or the whole table because of it.

        Raises:
            DataError: names the cell.
        """
        error = self.error(row, column, problem, hint, code=code)
        if self.refused is None:
            raise error
        self.refused.setdefault(row, error)

    def take(self, rows: list[int]) -> Table:
        """Return some of the rows."""
        return replace(self, frame=self.frame.iloc[rows])


def _distinct(cells: Array) -> tuple[Array, Array]:
    """Return the index of each cell's text, int64 [n], and the different texts."""
    if pd.api.types.infer_dtype(cells, skipna=False) != "string":  # pandas would treat 1, 1.0 and True as equal
        cells = np.array([None, *map(_as_text, cells.tolist())], object)[1:]
    return pd.factorize(cells, use_na_sentinel=False)


def _as_text(cell: Any) -> str:
    return "" if cell is None or cell is pd.NA or cell != cell else str(cell)


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint with the most similar name."""
    folded = {known.lower(): known for known in names if known}
    near = difflib.get_close_matches(name.lower(), list(folded), n=1)
    return f"; did you mean {folded[near[0]]}{_alike(name, folded[near[0]])}?" if near else ""


def _alike(name: str, near: str) -> str:
    """Return which letter of a name is only a look-alike from another alphabet."""
    for place, (own, other) in enumerate(zip(name, near, strict=False), 1):
        if own != other and not (own.isascii() and other.isascii()) and len(name) == len(near):
            return f", whose letter {place} is {unicodedata.name(other, 'without a name')}"
    return ""


def holder(tables: Sequence[Table], column: str) -> Table:
    """Return the table that has a column."""
    holding = [table for table in tables if column in table.frame]
    if len(holding) == 1:
        return holding[0]
    sources = [table.source for table in holding or tables]
    where = " and ".join([str(sources[0]), *(Path(source).name for source in sources[1:])])
    if holding:
        raise DataError(
            where, f"both have a column {column}: rename or remove one", code="column-repeated", field=column
        )
    names = [str(name) for table in tables for name in table.frame.columns]
    raise no_column(where, column, names)


def no_column(where: str | Path, column: str, names: Sequence[str]) -> DataError:
    """Create the error for a missing column, with the existing ones."""
    known, headless = [name for name in names if name], _headless(names)
    others = f"; it has {', '.join(known[:10])}{', …' * (len(known) > 10)}" * bool(known and not headless)
    code, field = ("header-missing", "data.columns") if headless else ("column-missing", column)
    hint = nearest(column, names) or others
    return DataError(where, f"has no column {column}{headless}", code=code, field=field, hint=hint)


def comma_number(text: str) -> float:
    """Parse a number with a decimal comma; NaN if the text is none."""
    return math.nan if "." in text or text.count(",") > 1 else number(text.replace(",", "."))


def whole_number(text: str) -> float:
    """Parse a whole number; NaN if the text is none, or has an ambiguous mark."""
    return math.nan if "." in text else number(text)


def _headless(names: Sequence[str]) -> str:
    """Return a hint for column names that look like a sample or a title."""
    if len(names) > 1 and sum(map(bool, names)) == 1:
        return f": its first row has {shown(max(names))} alone: remove the rows above the column names"
    if all(math.isnan(number(name)) for name in names):
        return ""
    return ": its first row holds numbers, where names are expected: name the columns in data.columns, --columns A,B,C"
