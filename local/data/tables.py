"""Tables: their cells, and how they are joined. Every fault is named with its file, row and column."""

from __future__ import annotations

import difflib
import functools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankdad.common.errors import DataError
from rankdad.common.spec.table_schema import canonical, composed, spelling
from rankdad.common.spec.written import Written
from rankdad.local.data.dialect import Decimals
from rankdad.local.data.reading import (
    BROKEN,
    BROKEN_ADVICE,
    LOST_DIGITS,
    MISSING,
    Array,
    has_lost_digits,
    number,
    shown,
    told_together,
)

POINTED = re.compile(r"(\d+)\.0+")


@dataclass(frozen=True, eq=False)
class Table:
    """Cells of any type by column.

    Args:
        source: the file, or a folder of one file for every row; named in errors.
        frame: its index tells where each row stands: by the row's number (in a file the header is row 1); by the name
            of a file beside the source and its number there; or by the name of a file in the source.
        written: what the schema says of its cells.
        decimals: where its numbers have a comma before decimals.
        refused: why single rows cannot be used, by position, where the others are taken; None where one such row
            refuses the table.
        cells: returns the frame with the texts that its columns of float64 were read from; None where it holds them.

    Raises:
        DataError: two columns have one name.
    """

    source: str | Path
    frame: pd.DataFrame
    written: Written = field(default=Written())
    decimals: Decimals = field(default=Decimals())
    refused: dict[int, DataError] | None = None
    cells: Callable[[], pd.DataFrame] | None = None

    def __post_init__(self) -> None:
        names = self.frame.columns
        twice = names[names.duplicated() & (names != "")]  # spreadsheets leave columns without a name
        if len(twice):
            mend = _headless([twice[0]]) or ": rename or remove one"
            code, field = ("header-missing", "data.columns") if _headless([twice[0]]) else ("column-repeated", twice[0])
            raise DataError(self.source, f"has two columns {shown(twice[0])}{mend}", code=code, field=field, row=1)

    def __len__(self) -> int:
        return len(self.frame)

    def is_parsed(self, column: str) -> bool:
        """Tell whether a column holds float64 that were read from texts, NaN where one is missing."""
        return self.cells is not None and self.frame[column].dtype == float

    def _cells(self, column: str) -> pd.Series[Any]:
        """Return a column's cells as they stand in the file."""
        if self.cells is None or not self.is_parsed(column):
            return self.frame[column]
        return self.cells()[column].reindex(self.frame.index)

    def levels(self, column: str) -> tuple[Array, list[str]]:
        """Return a column's different texts, and the place of each cell's among them, int64 [rows]."""
        return self._levels(column, canonical)

    def _levels(self, column: str, form: Callable[[str], str]) -> tuple[Array, list[str]]:
        cells: Any = self._cells(column)
        if isinstance(cells.dtype, pd.CategoricalDtype):
            places, found = cells.cat.codes.to_numpy(), cells.cat.categories
        else:
            places, found = _distinct(cells.to_numpy(object))
        texts, lacking = [text.strip() for text in found.tolist()], self.written.tokens_of(column)
        forms = [form]
        if form is canonical and column in self.decimals.comma:  # -9,0 is the -9 of a column of decimal commas
            forms.append(lambda text: canonical(text.replace(",", ".")))
        if lacking:
            texts = ["" if any(one(text) in lacking for one in forms) else text for text in texts]
        return places, texts

    def texts(self, column: str) -> list[str]:
        """Return a column's cells as text without spaces around it; "" where there is nothing."""
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
        """Return what a column's cells hold as they are written, object [rows]."""
        cells = self._cells(column)
        are_texts = pd.api.types.infer_dtype(cells, skipna=False) == "string"
        return (cells if are_texts else cells.astype(str)).to_numpy(object)

    def ids(self, column: str) -> list[str]:
        """Return a column's identifiers as the text by which they are compared: 007 is not 7, and 1E2 is not 100.

        Raises:
            DataError: one has lost digits, such as 1.23E+11, or stands there as 12 and as 12.0.
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
                problem = f"holds {shown(text)}, other rows hold {shown(pointed[1])}: write each identifier in one way"
                self.refuse(row, column, problem, code="identifier-twice-written")
        return found

    def numbers(self, column: str) -> Array:
        """Return a column's cells as numbers, float64 [rows]; NaN where there is none, or one that might be another."""
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
        """Return what tells the rows apart where they have no key."""
        labels = self.frame.index
        return tuple(f"{label[0]}:{label[1]}" if isinstance(label, tuple) else str(label) for label in labels)

    def place(self, row: int) -> tuple[Path, str]:
        """Return the file in which a row stands, by its position here, and which row of the file it is, if not all."""
        label: Any = self.frame.index[row]
        if isinstance(label, tuple):
            return Path(self.source).parent / label[0], f"row {label[1]}"
        return (Path(self.source, label), "") if isinstance(label, str) else (Path(self.source), f"row {label}")

    def error(self, row: int, column: str, problem: str, hint: str = "", *, code: str = "cell") -> DataError:
        """Return the error that names a cell."""
        file, place = self.place(row)
        where = f"{place}, column {column}" if place else f"column {column}"
        number = int(place.removeprefix("row ")) if place else None
        return DataError(file, problem, code=code, field=column, row=number, place=where, hint=hint)

    def refuse(self, row: int, column: str, problem: str, hint: str = "", *, code: str = "cell") -> None:
        """Refuse a row, or the whole table for it.

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
    """Return the place of each cell among the different texts, int64 [n], and these."""
    if pd.api.types.infer_dtype(cells, skipna=False) != "string":  # 1, 1.0 and True are one where they are no texts
        cells = np.array([None, *map(_as_text, cells.tolist())], object)[1:]
    return pd.factorize(cells, use_na_sentinel=False)


def _as_text(cell: Any) -> str:
    return "" if cell is None or cell is pd.NA or cell != cell else str(cell)


def append(tables: Sequence[Table]) -> Table:
    """Return the rows of tables from files that lie beside each other as one table.

    Raises:
        DataError: they do not have the same columns.
    """
    first, columns = tables[0], [name for name in tables[0].frame.columns if name]
    for table in tables[1:]:
        for whole, other in ((first, table), (table, first)):
            for name in whole.frame.columns:
                if name and name not in other.frame:
                    problem = f"has no column {shown(name)}, unlike {Path(whole.source).name}"
                    raise DataError(
                        other.source, f"{problem}: files of one table have the same columns", code="columns-differ"
                    )
    decimals = first.decimals
    for table in tables[1:]:
        decimals = decimals.union(table.decimals)

    def cells() -> pd.DataFrame:
        frames = {Path(table.source).name: table.cells() if table.cells else table.frame for table in tables}
        return pd.concat({name: frame[columns] for name, frame in frames.items()})

    if not all(table.cells for table in tables):
        return Table(first.source, cells(), first.written, decimals)
    frames = {Path(table.source).name: table.frame[columns] for table in tables}
    return Table(first.source, pd.concat(frames), first.written, decimals, cells=functools.cache(cells))


def join(
    tables: Sequence[Table], key: str, missing: str, form: Callable[[str], str] = str
) -> tuple[list[Table], tuple[str, ...], int]:
    """Return the rows whose keys are in all tables, in the first one's order.

    Args:
        tables: one, or several.
        key: the column.
        missing: "refuse" raises an error where a key is not in all tables; else it is left out.
        form: returns the text by which keys are compared, where several mean the same.
        several: what to do where a key stands there twice, if that is not what rows of a table do.

    Returns:
        The tables, the key left in the first alone; what is to be told of keys that were left out; how many these are.

    Raises:
        DataError: a key is missing, stands in a table twice, or is not in all.
    """
    positions = [keys_of(table, key, form) for table in tables]
    first, ours = tables[0], positions[0]
    everywhere, anywhere, notes = set(ours), set(ours), []
    for second, theirs in zip(tables[1:], positions[1:], strict=True):
        for table, own, other, others in ((first, ours, second, theirs), (second, theirs, first, ours)):
            alone = [row for found, row in own.items() if found not in others]
            if alone:
                named = table.ids(key)[alone[0]]
                problem = f"{len(alone)} of {len(own)} keys are not in {Path(other.source).name}"
                problem += f", the first is {shown(named)}"
                hint, code = _otherwise_written(named, others), "key-not-in-all"
                if missing == "refuse":
                    problem += "; complete the tables, or set data.missing to drop"
                    raise table.error(alone[0], key, problem, hint, code=code)
                notes.append(str(table.error(alone[0], key, f"{problem}; they are left out", hint, code=code)))
        if not ours.keys() & theirs and len(first) and len(second):
            problem = f"column {key}: no key is in {Path(second.source).name} too"
            hint = _otherwise_written(next(iter(ours)), theirs)
            raise DataError(first.source, problem, code="keys-disjoint", field=key, hint=hint)
        everywhere &= theirs.keys()
        anywhere |= theirs.keys()
    kept = [found for found in ours if found in everywhere]
    joined = [table.take([own[found] for found in kept]) for table, own in zip(tables, positions, strict=True)]
    rest = [replace(table, frame=table.frame.drop(columns=key)) for table in joined[1:]]
    return [joined[0], *rest], tuple(notes), len(anywhere) - len(kept)


def aligned(
    tables: Sequence[Table], key: str, refused: dict[int, DataError], form: Callable[[str], str] = str
) -> list[Table]:
    """Return tables with a row for each of the first one's, which is refused where its key is not once in all.

    Args:
        tables: one, or several.
        key: the column.
        refused: by position, why.
        form: returns the text by which keys are compared, where several mean the same.
        several: what to do where a key stands there twice, if that is not what rows of a table do.

    Raises:
        DataError: a table has no such column, or no rows.
    """
    first = replace(tables[0], refused=refused)
    keys = [form(text) for text in holder((first,), key).ids(key)]
    found = [first]
    for table in tables[1:]:
        places: dict[str, list[int]] = {}
        for row, text in enumerate(holder((replace(table, refused={}),), key).ids(key)):
            places.setdefault(form(text), []).append(row)
        if not len(table):
            raise DataError(table.source, "has no rows", code="no-rows")
        for row, name in enumerate(keys):
            if len(places.get(name, ())) != 1 or name.lower() in MISSING:
                if name.lower() in MISSING:
                    first.refuse(row, key, "is missing, expected a key", code="key-missing")
                    continue
                often, code = ("twice", "key-repeated") if name in places else ("not", "key-not-in-all")
                problem = f"{shown(name)} is {often} in {Path(table.source).name}"
                first.refuse(row, key, problem, _otherwise_written(name, places), code=code)
        rows = [places.get(name, [0])[0] for name in keys]
        found.append(replace(table, frame=table.frame.drop(columns=key).iloc[rows], refused=refused))
    return found


def _otherwise_written(key: str, others: Iterable[str]) -> str:
    """Return a hint to another way in which a key is written elsewhere; "" if none is written so."""
    if key in others:
        return ""
    own = spelling(key)
    alike = next((other for other in others if spelling(other) == own), None)
    same = "if it is the same, write it alike; identifiers are compared as text"
    return "" if alike is None else f"; there is {shown(alike)}: {same}"


def told_apart(table: Table, column: str, ids: Sequence[str]) -> tuple[str, ...]:
    """Return what is to be told of identifiers that may be one, written in two ways; nothing if there are none."""
    return tuple(f"{table.source}: column {column}: {told}" for told in twice_written(ids))


def twice_written(ids: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence on the first identifier that may be another one, written otherwise; nothing if none is."""
    seen: dict[str, str] = {}
    for text in dict.fromkeys(ids):
        if (other := seen.setdefault(spelling(text), text)) != text:
            both = told_together((other, text))
            return (f"{both} are two, since identifiers are compared as text: if they are one, write it alike",)
    return ()


def keys_of(table: Table, key: str, form: Callable[[str], str] = str, several: str = "") -> dict[str, int]:
    """Return each key's position in a table.

    Args:
        table: where.
        key: the column.
        form: returns the text by which keys are compared, where several mean the same.
        several: what to do where a key stands there twice, if that is not what rows of a table do.

    Raises:
        DataError: a key is missing, or stands there twice.
    """
    positions: dict[str, int] = {}
    for row, text in enumerate(holder((table,), key).ids(key)):
        if text.lower() in MISSING:
            raise table.error(row, key, "is missing, expected a key", code="key-missing")
        before = positions.setdefault(form(text), row)
        if before != row:
            file, place = table.place(before)
            other = f"{file.name}, {place}" if isinstance(table.frame.index, pd.MultiIndex) else place
            several = several or "; if rows may have it in common, take it for data.group and leave data.key out"
            raise table.error(row, key, f"{shown(text)} stands in {other} too{several}", code="key-repeated")
    return positions


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint to the most similar of some names."""
    folded = {known.lower(): known for known in names if known}
    near = difflib.get_close_matches(name.lower(), list(folded), n=1)
    return f"; did you mean {folded[near[0]]}{_alike(name, folded[near[0]])}?" if near else ""


def _alike(name: str, near: str) -> str:
    """Return which letter of a name only looks like that of another alphabet."""
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
    """Return the error that a table has no column of that name, but those."""
    known, headless = [name for name in names if name], _headless(names)
    others = f"; it has {', '.join(known[:10])}{', …' * (len(known) > 10)}" * bool(known and not headless)
    code, field = ("header-missing", "data.columns") if headless else ("column-missing", column)
    hint = nearest(column, names) or others
    return DataError(where, f"has no column {column}{headless}", code=code, field=field, hint=hint)


def comma_number(text: str) -> float:
    """Return the number that a text with a decimal comma holds; NaN where it holds none."""
    return math.nan if "." in text or text.count(",") > 1 else number(text.replace(",", "."))


def whole_number(text: str) -> float:
    """Return the whole number that a text holds; NaN where it holds none, or has a mark that may mean two things."""
    return math.nan if "." in text else number(text)


def _headless(names: Sequence[str]) -> str:
    """Return what else is to be said of column names that look as if they were a sample's, or a title."""
    if len(names) > 1 and sum(map(bool, names)) == 1:
        return f": its first row has {shown(max(names))} alone: remove what stands above the names of the columns"
    if all(math.isnan(number(name)) for name in names):
        return ""
    return ": its first row holds numbers, where names are expected: name the columns in data.columns, --columns A,B,C"
