"""Reads workbooks (.xlsx) and Parquet files: numbers stay numbers, dates become text."""

from __future__ import annotations

import datetime
import functools
import importlib
import io
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from rankdad.common.data.formats import check_fits
from rankdad.common.data.reading import EXACT
from rankdad.common.errors import DataError, UserError
from rankdad.common.files import check_file

MEMORY_FACTOR = 20  # largest ratio of a workbook's memory to its XML
CELL = 100  # bytes of memory per cell, approximately


def read_workbook(path: Path, sheet: str | None) -> pd.DataFrame:
    """Return the cells of a workbook's sheet.

    Raises:
        DataError: the file is no workbook, or the sheet is ambiguous.
        UserError: the library is not installed.
    """
    openpyxl = _need("openpyxl", path, "excel")
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings(), path.open("rb") as file:
            check_fits(path, "its cells", MEMORY_FACTOR * sum(part.file_size for part in archive.infolist()))
            warnings.simplefilter("ignore")  # about styles unknown to openpyxl
            book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
            names = [found.title for found in book.worksheets]
            sheets = {
                found.title: _cells(path, found, _unvalued(path, archive.read(found._worksheet_path)))
                for found in book.worksheets
                if sheet in (None, found.title)
            }
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    except DataError:
        raise
    except Exception as error:  # openpyxl raises many kinds of errors for damaged files
        raise DataError(
            path,
            f"is not a readable workbook ({type(error).__name__}): save it again as .xlsx",
            code="workbook-unreadable",
        ) from None
    filled = [cells for cells in sheets.values() if cells]
    if sheet is not None and not sheets:
        raise DataError(
            path,
            f"has no sheet {sheet}, which data.sheet names",
            hint=f"; it has {', '.join(names)}",
            code="sheet-missing",
            field="data.sheet",
        )
    if len(filled) != 1:
        what = f"has {len(filled)} sheets that are not empty" if filled else "is empty"
        expected = "name one in the schema, data.sheet" if filled else "expected a row of column names"
        raise DataError(path, f"{what}: {expected}", code="sheets-several", field="data.sheet")
    (cells,) = filled
    width = max(map(len, cells))
    return pd.DataFrame([[*row, *[""] * (width - len(row))] for row in cells], dtype=object)


def _unvalued(path: Path, xml: bytes) -> dict[int, dict[int, str]]:
    """Return a sheet's formulas without stored values, by row and column from 1, each after a "=".

    openpyxl reads these as empty cells. Programs that write workbooks without computing them leave such formulas.

    Raises:
        DataError: cells are merged, so that all but the first are empty; or rows are hidden, as by a filter.
    """
    found: dict[int, dict[int, str]] = {}
    if not re.search(rb"<(\w+:)?(f|mergeCell)[ />]|<(\w+:)?row [^>]*hidden=", xml):
        return found
    row = column = 0
    for event, part in ElementTree.iterparse(io.BytesIO(xml), ("start", "end")):
        kind = part.tag.rpartition("}")[2]
        if kind == "row" and event == "start":
            row, column = int(part.get("r", row + 1)), 0
            if part.get("hidden") in ("1", "true"):
                problem = (
                    "is hidden, as by a filter: delete the hidden rows, or show them if they belong to the samples"
                )
                raise DataError(path, problem, place=f"row {row}", code="row-hidden", row=row)
        elif kind == "c" and event == "start":
            letters = (part.get("r") or "").rstrip("0123456789")
            place = functools.reduce(lambda number, letter: 26 * number + ord(letter) - 64, letters, 0)
            column = place or column + 1
        elif kind == "c":
            held = {own.tag.rpartition("}")[2]: own.text or "" for own in part}
            empty = "v" in held and part.get("t") == "str"  # an empty text is a value
            if "f" in held and not held.get("v") and not empty:
                found.setdefault(row, {})[column] = f"={held['f'] or '…'}"
            part.clear()
        elif kind == "mergeCell" and event == "start":
            problem = f"has merged cells, {part.get('ref')}, all empty but the first: unmerge and fill them"
            raise DataError(path, problem, code="cells-merged")
    return found


def _cells(path: Path, sheet: Any, unvalued: Mapping[int, Mapping[int, str]]) -> list[list[Any]]:
    """Return a sheet's rows without trailing empty rows and cells.

    A formula without a stored value is kept as the cell's text, so that it is no missing value, number or identifier.

    Raises:
        DataError: they do not fit into memory, as with two cells far apart.
    """
    sheet.reset_dimensions()  # a file may state a wrong size
    rows: list[list[Any]] = []
    for number, row in enumerate(sheet.rows, start=1):
        cells = [_valued(cell) for cell in row]
        for column, formula in unvalued.get(number, {}).items():
            cells += [""] * (column - len(cells))
            cells[column - 1] = formula
        while cells and cells[-1] == "":
            cells.pop()
        if cells:
            rows += [[]] * (number - 1 - len(rows))
            rows.append(cells)
    width = max(map(len, rows), default=0)
    check_fits(path, f"its {len(rows):,} rows of {width:,} columns", CELL * width * len(rows))
    return rows


def _valued(cell: Any) -> Any:
    """Return a cell's value; a whole number that may have lost digits becomes a float, unlike identifiers."""
    value = _plain(cell.value)
    return float(value) if isinstance(value, int) and abs(value) >= EXACT else value  # workbooks keep 15 digits


def read_parquet(path: Path, _sheet: str | None = None) -> pd.DataFrame:
    """Return the columns of a Parquet file, which has no sheets.

    Raises:
        DataError: it is no Parquet file, or has columns other than numbers, text and dates.
        UserError: the library is not installed.
    """
    _need("pyarrow", path, "parquet")
    check_file(path)
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        size = parquet.read_metadata(path)  # compressed files are much smaller than their data
        what = f"its {size.num_rows:,} rows of {size.num_columns:,} columns"
        text = sum(size.row_group(i).total_byte_size for i in range(size.num_row_groups))
        check_fits(path, what, CELL * size.num_rows * size.num_columns + text)
        frame: pd.DataFrame = pd.read_parquet(path, engine="pyarrow", dtype_backend="numpy_nullable")
        if frame.index.name is not None or isinstance(frame.index, pd.MultiIndex):
            frame = frame.reset_index()
        frame = frame.astype(object)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    except DataError:
        raise
    except Exception as error:  # pyarrow raises many kinds of errors for damaged files
        raise DataError(
            path, f"is not a readable Parquet file ({type(error).__name__})", code="parquet-unreadable"
        ) from None
    frame.columns = pd.Index([str(name) for name in frame.columns], dtype=object)
    frame = frame.map(_plain)
    frame.index = pd.RangeIndex(2, len(frame) + 2)  # as if row 1 were a header
    return frame


def _plain(cell: Any) -> Any:
    """Return whole floats as integers, other numbers unchanged, and stripped text; "" for nothing."""
    if cell is None or cell is pd.NA or cell is pd.NaT or (isinstance(cell, float) and cell != cell):
        return ""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
            cell = cell.date()
        return str(cell).strip()
    return int(cell) if isinstance(cell, float) and cell.is_integer() and abs(cell) < EXACT else cell


def _need(library: str, path: Path, extra: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        text = f"a {path.suffix} file needs {library}: pip install 'rankdad[{extra}]' (or pip install {library})"
        raise UserError(f"{path}: {text}", code="not-installed") from None


# By extension: (path, data.sheet) → cells as from `_plain`, by column names, or by positions if the first row has the
# names.
READERS: dict[str, Callable[[Path, str | None], pd.DataFrame]] = {
    ".xlsx": read_workbook,
    ".xlsm": read_workbook,
    ".parquet": read_parquet,
    ".pq": read_parquet,
}
