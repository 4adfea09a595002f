"""Tables of a run: rows in its file while it is active, CSV files afterwards."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankdad.common.data.spreadsheets import inert_cell
from rankdad.common.errors import UserError
from rankdad.common.files import open_file, write_whole
from rankdad.remote.run_reader import FILE, ROWS, TABLE_NAMES, RunReader, reading

FOLD = "fold"  # column

_log = logging.getLogger(__name__)


def write_tables(file: RunReader, output: Path) -> list[Path]:
    """Write the tables of a run as CSV files, each completely or not at all; return their paths.

    Args:
        file: the run's.
        output: the folder.

    Raises:
        UserError: the run's file cannot be read, or the disk is full.
    """
    written = []
    for name in TABLE_NAMES:
        if text := _text(file, name):
            written.append(output / f"{name}.csv")
            write_whole(written[-1], text)
    return written


def write_rows(directory: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table of results over all folds so far; without rows, no file."""
    if not rows:
        return
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)  # columns differ between sites
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: inert_cell(cell) for name, cell in row.items()} for row in rows)
    write_whole(directory / f"{name}.csv", text.getvalue())


def remove_tables(directory: Path) -> None:
    """Remove a resumed run's CSV files, which would not grow."""
    for name in TABLE_NAMES:
        (directory / f"{name}.csv").unlink(missing_ok=True)


def text_of(directory: Path, name: str) -> str:
    """Return a table of a run as CSV, active or ended; "" if it does not exist.

    Raises:
        UserError: it cannot be read.
        OSError: it cannot be read.
    """
    path = directory / f"{name}.csv"
    if any((directory / file).exists() for file in (FILE, ROWS)):
        try:
            with reading(directory) as file:
                return _text(file, name)
        except UserError as error:
            if not path.exists():
                raise
            _log.warning("%s; %s may be older", error, path)
    if not path.exists():
        return ""
    with io.TextIOWrapper(open_file(path), encoding="utf-8") as text:
        return text.read()


def rows_in(directory: Path, name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table in a run's directory; see `text_of`."""
    return iter(csv.DictReader(io.StringIO(text_of(directory, name))))


def rows_of(file: RunReader, name: str, before: int | None = None) -> Iterator[dict[str, str]]:
    """Yield the rows of a table as in its CSV file.

    Args:
        file: the run's.
        name: the table's.
        before: first round to omit.

    Raises:
        UserError: the run's file cannot be read.
    """
    columns = file.columns(name)
    return (dict(zip(columns, map(str, row), strict=True)) for row in file.table(name, before))


def count_of(directory: Path, name: str) -> int:
    """Return the number of rows of a table; 0 if it cannot be read yet."""
    try:
        with reading(directory) as file:
            return file.count(name)
    except UserError:
        return sum(1 for _ in rows_in(directory, name)) if (directory / f"{name}.csv").exists() else 0


def _text(file: RunReader, name: str) -> str:
    columns = file.columns(name)
    if not columns:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    rows, fold = file.table(name), columns.index(FOLD) if FOLD in columns else None
    if fold is not None:  # counted from 1, as epochs are
        rows = ([*row[:fold], int(row[fold]) + 1, *row[fold + 1 :]] for row in rows)
    writer.writerows(rows)
    return text.getvalue()
