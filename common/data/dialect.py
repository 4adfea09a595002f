"""Detects how a table's file is written: its delimiter and its decimal marks.

Ambiguous files are refused, with the field of the schema that would decide.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankdad.common.data.formats import opened
from rankdad.common.data.reading import shown
from rankdad.common.errors import DataError

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
BLANK = " "  # one or several, if nothing else separates columns
SAMPLE = 1 << 16  # bytes used to detect the delimiter
POINTED = (";", "\t", "|")  # delimiters that allow a point as thousands mark
DECIMALS = re.compile(r"^[+-]?\d*([.,])\d+(?:[eE][+-]?\d+)?$", re.MULTILINE)  # numbers with one mark
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # possibly with a thousands mark


def marked(text: str) -> str | None:
    """Return the delimiter named in a first row such as "sep=;", which spreadsheets write."""
    found = re.fullmatch(r'"?sep=(.?)"?', text.strip("\r\n"), re.IGNORECASE)
    return found[1] if found and found[1] in DELIMITERS else None


def first_rows(path: Path) -> str:
    """Return the complete rows at a file's beginning; characters may be wrong."""
    with opened(path) as file:
        sample = file.read(SAMPLE)
    text = sample.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.rpartition("\n")[0] if len(sample) == SAMPLE and "\n" in text else text


def delimiter_of(path: Path, sample: str) -> str:
    """Detect the delimiter of a table.

    Args:
        path: of its file, for errors.
        sample: its first rows, complete.

    Raises:
        DataError: it is ambiguous, differs between rows, or the first row has no column names.
    """
    widths = {delimiter: _widths(sample, delimiter) for delimiter in DELIMITERS}
    able = [delimiter for delimiter, found in widths.items() if found and found[0] > 1]
    if not able:
        for delimiter, found in widths.items():
            if len(found) > 2 and found[1] > 1 and len(set(found[1:])) == 1:
                title = f"holds {shown(sample.strip().splitlines()[0])}, where the next ones have {found[1]} cells"
                expected = f"separated by {DELIMITERS[delimiter]}: remove the lines above the column names"
                raise DataError(path, f"{title} {expected}", place="row 1", code="title-above-names", row=1)
        words = {len(line.split()) for line in sample.splitlines() if line.strip()}
        return BLANK if len(words) == 1 and words.pop() > 1 else ","
    even = [delimiter for delimiter in able if len(set(widths[delimiter])) == 1] or able
    if len(even) > 1:
        if even == able and "," in able and not any(len(set(widths[one])) == 1 for one in able):
            return ","  # rows have unequal lengths with any delimiter, which is reported by row
        both = " or ".join(DELIMITERS[delimiter] for delimiter in even)
        raise DataError(
            path,
            f"its columns might be separated by {both}: set data.delimiter in the schema",
            code="delimiter-ambiguous",
            field="data.delimiter",
        )
    (own,) = even
    for row, width in enumerate(widths[own]):
        for other, found in widths.items():
            if width == 1 and len(found) == len(widths[own]) and found[row] == widths[own][0]:
                problem = f"is separated by {DELIMITERS[other]}, unlike the first, by {DELIMITERS[own]}: save it again"
                raise DataError(
                    path,
                    f"{problem}, with one of them throughout",
                    place=f"row {row + 1}",
                    code="delimiter-ambiguous",
                    row=row + 1,
                )
    return own


def _widths(sample: str, delimiter: str) -> list[int]:
    """Return the number of cells in every non-empty row."""
    try:
        return [len(row) for row in csv.reader(io.StringIO(sample), delimiter=delimiter, skipinitialspace=True) if row]
    except csv.Error:  # a cell longer than the limit
        return []


@dataclass(frozen=True)
class Decimals:
    """The columns of a table with a decimal comma.

    Args:
        comma: names of these columns.
        doubtful: columns with ambiguous numbers, and the reason.
    """

    comma: frozenset[str] = frozenset()
    doubtful: Mapping[str, str] | None = None

    def union(self, other: Decimals) -> Decimals:
        """Return the decimals of the rows of two tables."""
        return Decimals(self.comma | other.comma, {**(self.doubtful or {}), **(other.doubtful or {})})


def decimals_of(texts: Mapping[str, Sequence[str]], named: str | None, delimiter: str | None) -> Decimals:
    """Detect the columns with a decimal comma.

    Args:
        texts: cells by column.
        named: the decimal mark in the schema.
        delimiter: of the columns; None for a workbook.
    """
    if named is not None:
        return Decimals(frozenset(texts) if named == "," else frozenset())
    sure: dict[str, dict[str, str]] = {",": {}, ".": {}}  # an example for each column, by mark
    maybe: dict[str, dict[str, str]] = {",": {}, ".": {}}
    for column, cells in texts.items():
        whole = "\n".join(cells)
        if "," not in whole and (delimiter == "," or "." not in whole):
            if "." in whole and (found := DECIMALS.search(whole)):
                sure["."].setdefault(column, found[0])
            continue
        for found in DECIMALS.finditer(whole):
            known = maybe if THOUSANDS.fullmatch(found[0]) else sure
            known[found[1]].setdefault(column, found[0])
    commas, doubtful = set(sure[","]) - set(sure["."]), {}
    if commas and (points := set(sure["."]) - commas):
        column = min(points)
        why = f"has a comma, {sure['.'][column]} in column {column} a point: write both alike, or name data.decimal"
        return Decimals(frozenset(), dict.fromkeys(commas, why))
    if commas:
        why = "may be a number with a thousands mark: remove it, or name the decimal mark in data.decimal"
        return Decimals(frozenset(commas | set(maybe[","])), dict.fromkeys(set(maybe["."]) - commas, why))
    why = "may be a decimal number, or a whole number with a thousands mark: set data.decimal in the schema"
    doubtful = {column: why for column in maybe[","] if column not in sure["."]}
    if delimiter in POINTED and not sure["."]:
        doubtful |= dict.fromkeys(maybe["."], why)
    return Decimals(frozenset(), doubtful)
