"""Tables in workbooks (.xlsx) and Parquet files: cells of numbers stay numbers, dates become text."""

from __future__ import annotations

import datetime
import importlib
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd

from rankdad.common.errors import DataError, UserError
from rankdad.local.data.formats import check_fits
from rankdad.local.data.reading import check_file

WORKBOOKS, PARQUET = (".xlsx", ".xlsm"), (".parquet", ".pq")
FOLDS = 20  # times its XML's size that a workbook takes as cells, at most


def read_workbook(path: Path, sheet: str | None) -> pd.DataFrame:
    """Return all cells of a workbook's sheet, its first row among them.

    Raises:
        DataError: it is no workbook, or it is not plain which sheet is meant.
        UserError: the library is not installed.
    """
    _need("openpyxl", path, "excel")
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            check_fits(path, "its cells", FOLDS * sum(part.file_size for part in archive.infolist()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles that openpyxl does not know
            sheets = pd.read_excel(path, sheet_name=None, header=None, dtype=object, na_filter=False, engine="openpyxl")
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}") from None
    except DataError:
        raise
    except Exception as error:  # of a damaged file openpyxl raises what it likes
        raise DataError(path, f"is not a readable workbook ({type(error).__name__}): save it again as .xlsx") from None
    filled = {name: cells for name, cells in sheets.items() if (cells.map(_plain) != "").to_numpy().any()}
    if sheet is not None and sheet not in sheets:
        names = ", ".join(map(str, sheets))
        raise DataError(path, f"has no sheet {sheet}, which data.sheet names", hint=f"; it has {names}")
    if sheet is None and len(filled) != 1:
        what = f"has {len(filled)} sheets that are not empty" if filled else "is empty"
        expected = "name one in the schema, data.sheet" if filled else "expected a row of column names"
        raise DataError(path, f"{what}: {expected}")
    cells = sheets[sheet] if sheet is not None else next(iter(filled.values()))
    return cells.map(_plain)


def read_parquet(path: Path) -> pd.DataFrame:
    """Return the columns of a Parquet file.

    Raises:
        DataError: it is none, or has columns of something else than numbers, text and dates.
        UserError: the library is not installed.
    """
    _need("pyarrow", path, "parquet")
    check_file(path)
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        rows = parquet.read_metadata(path)
        check_fits(path, "its columns", sum(rows.row_group(i).total_byte_size for i in range(rows.num_row_groups)))
        frame: pd.DataFrame = pd.read_parquet(path, engine="pyarrow", dtype_backend="numpy_nullable")
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}") from None
    except DataError:
        raise
    except Exception as error:  # of a damaged file pyarrow raises what it likes
        raise DataError(path, f"is not a readable Parquet file ({type(error).__name__})") from None
    if frame.index.name is not None or isinstance(frame.index, pd.MultiIndex):
        frame = frame.reset_index()
    frame = frame.astype(object)
    frame.columns = pd.Index([str(name) for name in frame.columns], dtype=object)
    frame = frame.map(_plain)
    frame.index = pd.RangeIndex(2, len(frame) + 2)  # as if its names were row 1
    return frame


def _plain(cell: Any) -> Any:
    """Return a number as it is, and everything else as text without spaces around it; "" where there is nothing."""
    if cell is None or cell is pd.NA or cell is pd.NaT or cell != cell:
        return ""
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
            cell = cell.date()
        return str(cell).strip()
    return cell


def _need(library: str, path: Path, extra: str) -> None:
    try:
        importlib.import_module(library)
    except ImportError:
        said = f"a {path.suffix} file needs {library}: pip install 'rankdad[{extra}]' (or pip install {library})"
        raise UserError(f"{path}: {said}") from None
