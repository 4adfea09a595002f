"""Tables: read from files, and joined. Every fault is named with its file, row and column."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from common.columns import canonical
from common.errors import DataError

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none"})  # in small letters


@dataclass(frozen=True, eq=False)
class Table:
    """Cells of any type by column.

    Args:
        source: the file, named in errors.
        frame: its index tells where each row stands in the source: by number (in a file the header is row 1) or name.

    Raises:
        DataError: two columns have one name.
    """

    source: str | Path
    frame: pd.DataFrame

    def __post_init__(self) -> None:
        names = self.frame.columns
        twice = names[names.duplicated() & (names != "")]  # spreadsheets leave columns without a name
        if len(twice):
            raise DataError(self.source, f"has two columns {twice[0]}: rename or remove one")

    def __len__(self) -> int:
        return len(self.frame)

    def texts(self, column: str) -> list[str]:
        """Return a column's cells as text without spaces around it; "" where there is nothing."""
        cells: list[Any] = self.frame[column].tolist()
        return ["" if cell is None or cell is pd.NA or cell != cell else str(cell).strip() for cell in cells]

    def place(self, row: int) -> str:
        """Say where a row stands in the source, by its position here."""
        label = self.frame.index[row]
        return label if isinstance(label, str) else f"row {label}"

    def error(self, row: int, column: str, problem: str) -> DataError:
        """Return the error that names a cell."""
        return DataError(self.source, f"{self.place(row)}, column {column}: {problem}")

    def take(self, rows: list[int]) -> Table:
        """Return some of the rows."""
        return Table(self.source, self.frame.iloc[rows])


def read_table(path: Path) -> Table:
    """Read a table as text: separated by commas, or by tabs if its name ends in .tsv; empty rows are passed over.

    Raises:
        DataError: the file is missing, empty, not in UTF-8 or no table, or two columns have one name.
    """
    check_file(path)
    try:
        cells = pd.read_csv(
            path,
            sep="\t" if path.suffix.lower() == ".tsv" else ",",
            header=None,
            dtype=str,
            na_filter=False,
            skip_blank_lines=False,
            skipinitialspace=True,
            encoding="utf-8-sig",
            compression=None,
        )
    except pd.errors.EmptyDataError:
        raise DataError(path, "is empty, expected a row of column names and a row for each sample") from None
    except UnicodeDecodeError:
        raise DataError(path, "is not text in UTF-8: save it as CSV with that encoding") from None
    except pd.errors.ParserError as error:
        words = re.sub(r"row (\d+)", lambda found: f"row {int(found[1]) + 1}", str(error).strip())  # it counts from 0
        raise DataError(path, f"is not a readable table: {words.rpartition('error: ')[2]}") from None
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}") from None
    cells = cells.map(str.strip)
    cells.index += 1
    names = cells.iloc[0].tolist()
    frame = cells.iloc[1:].set_axis(names, axis=1)
    return Table(path, frame[(frame != "").any(axis=1)])


def check_file(path: Path) -> None:
    """Check that there is a file to read.

    Raises:
        DataError: there is none, or it is something else, such as a folder or a pipe, which would be waited for.
    """
    try:
        found, is_file = path.exists(), path.is_file()
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}") from None
    if not is_file:
        raise DataError(path, "is not a file" if found else "does not exist")


def join(first: Table, second: Table, key: str, missing: str) -> tuple[tuple[Table, Table], tuple[str, ...]]:
    """Return two tables' rows of the same keys, in the first one's order, and what is to be told of the others.

    Raises:
        DataError: a key is missing, stands in a table twice or, unless missing is "drop", in one table only.
    """
    ours, theirs = keys_of(first, key), keys_of(second, key)
    notes: list[str] = []
    for table, own, other, others in ((first, ours, second, theirs), (second, theirs, first, ours)):
        alone = [row for found, row in own.items() if found not in others]
        if alone:
            named = shown(table.texts(key)[alone[0]])
            problem = f"{len(alone)} of {len(own)} keys are not in {Path(other.source).name}, the first is {named}"
            if missing == "refuse":
                problem += '; complete the tables, or set data.missing to "drop"'
                raise table.error(alone[0], key, problem)
            notes.append(str(table.error(alone[0], key, f"{problem}; they are left out")))
    rows = [(row, theirs[found]) for found, row in ours.items() if found in theirs]
    if not rows and len(first) and len(second):
        raise DataError(first.source, f"column {key}: no key is in {Path(second.source).name} too")
    rest = Table(second.source, second.frame.drop(columns=key))
    return (first.take([row for row, _ in rows]), rest.take([row for _, row in rows])), tuple(notes)


def keys_of(table: Table, key: str, form: Callable[[str], str] = canonical) -> dict[str, int]:
    """Return each key's position in a table.

    Args:
        table: where.
        key: the column.
        form: returns the text by which keys are compared.

    Raises:
        DataError: a key is missing, or stands there twice.
    """
    positions: dict[str, int] = {}
    for row, text in enumerate(holder((table,), key).texts(key)):
        if text.lower() in MISSING:
            raise table.error(row, key, "is missing, expected a key")
        before = positions.setdefault(form(text), row)
        if before != row:
            raise table.error(row, key, f"{shown(text)} stands in {table.place(before)} too")
    return positions


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint to the most similar of some names."""
    folded = {known.lower(): known for known in names if known}
    near = difflib.get_close_matches(name.lower(), list(folded), n=1)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def holder(tables: Sequence[Table], column: str) -> Table:
    """Return the table that has a column."""
    holding = [table for table in tables if column in table.frame]
    if len(holding) == 1:
        return holding[0]
    where = " and ".join([str(tables[0].source), *(Path(table.source).name for table in tables[1:])])
    if holding:
        raise DataError(where, f"both have a column {column}: rename or remove one")
    names = [str(name) for table in tables for name in table.frame.columns]
    hint = nearest(column, names)
    if len(names) == 1 and re.search("[;\t]", names[0]):
        hint = ": columns must be separated by commas, or by tabs in a file whose name ends in .tsv"
    raise DataError(where, f"has no column {column}{hint}")


def shown(text: str) -> str:
    """Return a cell as it stands in an error."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
