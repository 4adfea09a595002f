"""Tables read from files: text with any delimiter and in any encoding, workbooks, Parquet."""

from __future__ import annotations

import functools
import gzip
import math
import re
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from rankdad.common.data.dialect import BLANK, DELIMITERS, decimals_of, delimiter_of, first_rows, marked
from rankdad.common.data.formats import check_text
from rankdad.common.data.plain import read_cells, read_plain
from rankdad.common.data.reading import Array, number, shown
from rankdad.common.data.sheets import READERS
from rankdad.common.data.tables import Table
from rankdad.common.errors import DataError
from rankdad.common.spec.table_schema import composed
from rankdad.common.spec.written import Written

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".data", *READERS)  # extensions
MEMORY_FACTOR = 20  # ratio of a text's memory to its size, approximately


class EncodingError(DataError):
    """A table is not in UTF-8, and no encoding is given."""


def read_table(
    path: Path, written: Written | None = None, *, header: bool = False, numbers: Collection[str] = ()
) -> Table:
    """Read a table: text (.csv, .tsv and others; .gz), a workbook (.xlsx) or a Parquet file.

    Delimiter and decimal marks are detected unless given. Empty rows are skipped; of a single column, those at the end.

    Args:
        path: of the file.
        written: how it is written, from the schema.
        header: whether to read only the column names of a text.
        numbers: numeric columns; in a plain text they are read as float64, and their cells' texts only when needed.

    Raises:
        DataError: the file is missing, empty, not a table or in an unknown encoding, or a column name is not unique.
        UserError: the library for its format is not installed.
    """
    written = written or Written()
    delimiter: str | None = None
    read = READERS.get(path.suffix.lower())
    if read is None:
        check_text(path, "a table as text: save it as CSV in UTF-8", MEMORY_FACTOR)
        if numbers and (plain := read_plain(path, written, numbers)) is not None:
            return Table(path, plain, written, cells=functools.cache(functools.partial(read_cells, path, plain)))
    if read is not None:
        frame = read(path, written.sheet)
    else:
        frame, delimiter = _text(path, written, header)
        stripped = {place: [*map(str.strip, frame[place].tolist())] for place in frame}
        frame = pd.DataFrame(stripped, frame.index, dtype=object)
        _check_rows(path, frame, delimiter)
    if pd.api.types.is_integer_dtype(frame.columns):  # positions; Parquet files have names
        frame = _named(path, frame, written.columns)
    frame = frame.set_axis([composed(str(name)) for name in frame.columns], axis=1)
    empty = _empty(frame)
    if frame.shape[1] == 1:  # an empty cell is a row
        most = _blank_lines(path) if read is None else len(frame) * (path.suffix.lower() != ".parquet")
        empty = _at_end(empty, len(frame), most)
    frame = frame.drop(index=frame.index[empty])
    _check_names(path, frame)
    table = Table(path, frame, written)
    texts = {name: frame[name].tolist() for name in frame.columns if name}
    if read is not None:  # workbooks have no numeric texts
        texts = {name: [cell for cell in cells if isinstance(cell, str)] for name, cells in texts.items()}
    return replace(table, decimals=decimals_of(texts, written.decimal, delimiter))


def _empty(frame: pd.DataFrame) -> Array:
    """Return the positions of empty rows."""
    left = np.arange(len(frame))
    for place in range(frame.shape[1]):
        left = left[(frame.iloc[left, place] == "").to_numpy(bool)]
        if not len(left):
            break
    return left


def _at_end(rows: Array, count: int, most: int) -> Array:
    """Return those of some rows after which there are no others, at most so many."""
    found: Array = rows[rows == np.arange(count - len(rows), count)]
    return rows[len(rows) - min(len(found), most) :]


def _blank_lines(path: Path) -> int:
    """Return the number of blank lines at the end of a text."""
    content = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    end = content[len(content.rstrip(b" \t\r\n\0")) :]
    return max(0, max(end.count(b"\n"), end.count(b"\r")) - 1)


def _named(path: Path, cells: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """Return a table's rows with column names, numbered as in the file from 1.

    Args:
        path: of the file, for errors.
        cells: all of them.
        columns: names from the schema, unless the first row equals them.

    Raises:
        DataError: there are no names, or their number is wrong.
    """
    cells.index += 1
    first = [composed(str(cell)) for cell in cells.iloc[0]]
    if not columns or set(first) - {""} == set(columns):
        if not any(first):
            expected = "expected a row of column names and a row for each sample"
            raise DataError(path, f"has nothing in its first row, {expected}", code="header-missing", row=1)
        return cells.iloc[1:].set_axis(first, axis=1)
    extra = cells.iloc[:, len(columns) :].to_numpy()
    if cells.shape[1] < len(columns) or (extra != "").any():  # delimiters at the ends of rows make an extra column
        text = f"has {cells.shape[1]} columns, where data.columns has {len(columns)} names"
        raise DataError(path, text, code="columns-mismatch", field="data.columns")
    return cells.iloc[:, : len(columns)].set_axis(list(columns), axis=1)


def _check_names(path: Path, frame: pd.DataFrame) -> None:
    """Check that only the first row has the column names.

    Raises:
        DataError: another row repeats them.
    """
    names = sorted(name for name in frame.columns if name)
    if len(names) < 2:
        return
    alike = frame.iloc[:, 0].map(lambda cell: str(cell).lstrip("\ufeff") in names).to_numpy()
    for place in alike.nonzero()[0].tolist():
        texts = (composed(str(cell).lstrip("\ufeff")) for cell in frame.iloc[place])
        if sorted(filter(None, texts)) == names:
            row = int(str(frame.index[place]))
            problem = "repeats the column names, as in concatenated files: remove it, or list the files"
            raise DataError(path, f"{problem} in data.file", place=f"row {row}", code="header-repeated", row=row)


def _text(path: Path, written: Written, header: bool) -> tuple[pd.DataFrame, str]:
    """Return all cells of a text, and its delimiter."""
    try:
        rows = first_rows(path)
        first = rows.partition("\n")[0]
        delimiter = written.delimiter or marked(first)
        if delimiter is None:
            tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
            delimiter = "\t" if tabs else delimiter_of(path, rows)
        skipped = int(marked(first) is not None)
        for encoding in ("utf-8-sig", written.encoding):
            if encoding is None:
                text = "is not text in UTF-8: save it as CSV with that encoding"
                raise EncodingError(
                    path,
                    text,
                    hint=', or name its own in the schema\'s data: "encoding": "cp1252"',
                    code="encoding-unknown",
                    field="data.encoding",
                )
            try:
                cells = _parsed(path, delimiter, encoding, skipped, 1 if header else None)
                break
            except UnicodeDecodeError:
                if encoding == written.encoding:
                    raise DataError(
                        path,
                        f"is not text in {encoding} either, which data.encoding names",
                        code="encoding-wrong",
                        field="data.encoding",
                    ) from None
    except pd.errors.EmptyDataError:
        what = "has nothing in its first row" if path.stat().st_size else "is empty"
        raise DataError(
            path, f"{what}, expected a row of column names and a row for each sample", code="table-empty"
        ) from None
    except pd.errors.ParserError as error:
        words = re.sub(r"row (\d+)", lambda found: f"row {int(found[1]) + 1}", str(error).strip())  # from 0 in pandas
        raise DataError(
            path, f"is not a readable table: {words.rpartition('error: ')[2]}", code="table-unreadable"
        ) from None
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    cells.index += skipped
    return cells, delimiter


def _check_rows(path: Path, cells: pd.DataFrame, delimiter: str) -> None:
    """Check that no cell holds several rows because of a missing quotation mark, and that all rows have one delimiter.

    Raises:
        DataError: they do not.
    """
    width = cells.shape[1]
    if width < 2:
        return
    if delimiter == BLANK:
        short = (cells == "").any(axis=1) & (cells != "").any(axis=1)
        if short.any():
            place = int(short.to_numpy().argmax())
            number, held = int(str(cells.index[place])) + 1, int((cells.iloc[place] != "").sum())
            problem = f"has {held} cells, where others have {width}, separated by blanks: write NA for missing values"
            raise DataError(path, problem, place=f"row {number}", code="row-short", field="data.delimiter", row=number)
        return
    for column in cells:
        if "\n" in "".join(cells[column].tolist()):  # faster than cell by cell
            for row, text in cells[column].items():
                if "\n" in text and text.count(delimiter) >= max(2, width - 1):
                    what = f"a cell holds {text.count(chr(10)) + 1} lines with columns of their own"
                    why = f"after a quotation mark that is closed too late: {shown(text)}"
                    raise DataError(
                        path, what, place=f"row {int(str(row)) + 1}", hint=f", {why}", code="columns-differ"
                    )
    alone = cells[0].iloc[_empty(cells.iloc[:, 1:])]
    for row, text in alone.items():
        for other, name in DELIMITERS.items():
            if other != delimiter and text.count(other) == width - 1:
                problem = f"is separated by {name}, unlike the first, by {DELIMITERS.get(delimiter, delimiter)}"
                raise DataError(
                    path,
                    f"{problem}: save it again, with one of them",
                    place=f"row {int(str(row)) + 1}",
                    code="line-ends-mixed",
                )


def _parsed(path: Path, delimiter: str, encoding: str, skipped: int, rows: int | None) -> pd.DataFrame:
    return pd.read_csv(
        path,
        sep=r"\s+" if delimiter == BLANK else delimiter,
        header=None,
        skiprows=skipped,
        nrows=rows,
        dtype=object,
        na_filter=False,
        skip_blank_lines=False,
        skipinitialspace=True,
        encoding=encoding,
        compression="gzip" if path.suffix.lower() == ".gz" else None,
    )


def _is_a_row(names: list[float]) -> bool:
    """Return whether a first row is data: its cells are all numbers, or mostly, and not in ascending order."""
    known = [name for name in names if math.isfinite(name)]
    rising = all(one < other for one, other in pairwise(known))  # as names such as wavelengths do
    return bool(known) and (len(known) == len(names) or (2 * len(known) > len(names) and not rising))


def read_guessing(path: Path, written: Written | None = None) -> tuple[Table, str | None]:
    """Read a table for inspection; without a known encoding and not in UTF-8, as cp1252.

    Returns:
        The table, and a note on the guess.

    Raises:
        DataError: as `read_table`.
    """
    written = written or Written()
    try:
        table = read_table(path, written)
        if not written.columns and _is_a_row([number(str(name)) for name in table.frame.columns if name]):
            text = "its first row holds numbers, where names are expected: name the columns in data.columns"
            hint = " (describe and init: --columns A,B,C)"
            raise DataError(path, text, code="header-missing", field="data.columns", row=1, hint=hint)
        return table, None
    except EncodingError:
        table = read_table(path, written.model_copy(update={"encoding": "cp1252"}))
    cells = (*map(str, table.frame.columns), *map(str, table.frame.to_numpy().flat))
    words = (word for cell in cells for word in cell.split())
    word = next((word for word in words if not word.isascii()), "")
    text = f"is not in UTF-8; in cp1252 its first such word is {shown(word)}: if that is right, name it in the schema, "
    return table, f'{path}: {text}"encoding": "cp1252"'
