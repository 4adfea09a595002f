"""Reads FreeSurfer's statistics: one text file per subject, and a table that lists them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from rankdad.common.data.encoding import encode
from rankdad.common.data.files import each, read_each, read_first
from rankdad.common.data.formats import check_text
from rankdad.common.data.joining import aligned, join
from rankdad.common.data.reading import MISSING, Reading, number, shown
from rankdad.common.data.tables import Table, holder, nearest
from rankdad.common.errors import DataError
from rankdad.common.files import is_within
from rankdad.common.spec.data import FreesurferData

COLUMNS = ("Index", "SegId", "NVoxels", "Volume_mm3", "StructName")  # default columns of aseg.stats
VOLUME = "Volume_mm3"
NUMBERS = ("Index", "SegId")  # numbers of regions, not data of a subject
MEASURES = {  # names in aparcstats2table for columns of aparc.stats
    "SurfArea": "area",
    "GrayVol": "volume",
    "ThickAvg": "thickness",
    "ThickStd": "thicknessstd",
    "MeanCurv": "meancurv",
    "GausCurv": "gauscurv",
    "FoldInd": "foldind",
    "CurvInd": "curvind",
}


def read_freesurfer(
    path: Path, data: FreesurferData, dtype: str, *, keep: Sequence[str] = (), beside: Sequence[str] | None = None
) -> Reading:
    """Read samples from a table and the files of its subjects.

    Args:
        path: the folder, or a table to read instead of the schema's first.
        data: the schema.
        dtype: of the inputs, such as "float32".
        keep: columns whose effects harmonisation keeps.
        beside: columns to copy next to predictions; None to read for training.

    Raises:
        DataError: data cannot be used; names file, row and column.
    """
    first, *others = each(data.covariates)
    folder, table, notes = read_first(path, first, data)
    more, told = read_each(folder, tuple(others), data)
    tables, training, left_out, dropped = [table, *more], beside is None, tuple[str, ...](), 0
    refused: dict[int, DataError] | None = None
    if training:
        tables, left_out, dropped = join(tables, data.key, data.missing, lambda text: str(Path(text)))
    else:
        refused = {}
        tables = aligned(tables, data.key, refused, lambda text: str(Path(text)))
    files, regions = _files(tables[0], data.key, folder), data.regions
    wanted = {data.key, *data.covariate_features, *(name for name in keep if name not in regions)}
    wanted |= {data.group} if training and data.group is not None else set()
    wanted |= {
        column
        for column in filter(None, (data.group, *(beside or ())))
        if any(column in table.frame for table in tables)
    }
    wanted |= {name for name in data.targets if training or any(name in table.frame for table in tables)}
    for column in sorted(wanted):
        holder(tables, column)
    tables = [replace(table, frame=table.frame[[c for c in table.frame if c in wanted]]) for table in tables]
    cells, names = [_cells(row, file, regions, refused) for row, file in enumerate(files)], tables[0].ids(data.key)
    frame = pd.DataFrame(cells, index=pd.Index(names, dtype=object), columns=pd.Index(regions), dtype=object)
    tables.append(Table(folder, frame))
    notes += told + left_out
    return encode(
        data, tables, dtype, key=data.key, keep=keep, notes=notes, dropped=dropped, beside=beside, refused=refused
    )


def freesurfer_columns(path: Path, data: FreesurferData) -> list[str]:
    """Return the names of all regions and measures of the first subject in a folder's table.

    Measures have the second of their names, as in FreeSurfer's tables.

    Args:
        path: the folder, or a table to read instead of the schema's first.
        data: the schema.

    Raises:
        DataError: a file is missing or empty.
    """
    folder, table, _ = read_first(path, each(data.covariates)[0], data)
    holder((table,), data.key)
    if not len(table):
        raise DataError(table.source, "has no rows", code="no-rows")
    return list(dict.fromkeys(names[-1] for names, _ in _values(_files(table.take([0]), data.key, folder)[0])))


def _files(table: Table, key: str, folder: Path) -> list[Path]:
    """Return the file of every row's subject.

    Raises:
        DataError: a name is not a file's, or leads out of the folder.
    """
    names = table.ids(key)
    for row, name in enumerate(names):
        if not is_within(folder / name, folder):
            table.refuse(row, key, f"{shown(name)} leads out of the folder, or is not a file's name")
    return [folder / name for name in names]


def _cells(row: int, file: Path, names: Sequence[str], refused: dict[int, DataError] | None) -> list[str]:
    """Return the values of some regions and measures in a subject's file, as text.

    If single rows are refused, rows that are refused, or whose file cannot be used, have no values.
    """
    found: dict[str, set[str]] = {}
    if refused and row in refused:
        return [""] * len(names)
    try:
        for called, value in _values(file):
            for name in called:
                found.setdefault(name, set()).add(value)
        for name in names:
            if name not in found:
                problem = f"has no region or measure {name}{nearest(name, list(found))}"
                raise DataError(file, problem, code="region-missing", field=name)
            if len(found[name]) > 1:
                problem = f"has {len(found[name])} different values of {name}"
                raise DataError(file, problem, code="region-repeated", field=name)
    except DataError as error:
        if refused is None:
            raise
        refused[row] = error
        return [""] * len(names)
    return [next(iter(found[name])) for name in names]


def _values(file: Path) -> list[tuple[tuple[str, ...], str]]:
    """Return the contents of a subject's file: the names of each region or measure, and its value."""
    check_text(file, "a subject's statistics as text")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(file, "is not text in UTF-8", code="not-utf-8") from None
    except OSError as error:
        raise DataError(file, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    lines = [line.strip(" ") for line in text.splitlines()]
    classical = any(line.startswith("#") for line in lines)
    if len(lines) > 1 and classical and not text.endswith(("\n", "\r")) and _decimals(lines[-1]) < _decimals(lines[-2]):
        raise _odd(file, len(lines), "is cut short: its last number has fewer decimals than the one above")
    found = list(_classical(file, lines) if classical else _pairs(file, lines))
    if not found:
        expected = "expected aseg.stats, aparc.stats, or lines of a name, a tab and a number"
        raise DataError(file, f"holds no regions: {expected}", code="statistics-empty")
    return found


def _classical(file: Path, lines: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield measures, with both names, and the values of each region.

    Tables with volumes (aseg.stats, wmparc.stats) yield these by region. Others, such as aparc.stats, yield all columns
    under their names in aparcstats2table, such as lh_bankssts_thickness.

    Raises:
        DataError: a line is malformed, or lines are missing.
    """
    columns: tuple[str, ...] = COLUMNS
    headers: dict[str, str] = {}
    regions = 0
    for row, line in enumerate(lines, 1):
        word, _, rest = line.removeprefix("#").strip().partition(" ")
        if line.startswith("#"):
            fields = [field.strip() for field in rest.split(",")]
            if word == "Measure" and len(fields) < 3:
                raise _odd(file, row, "is cut short, expected a measure's names, its value and its unit")
            if word == "Measure":
                yield tuple(fields[:-2][:2]), fields[-2]
            elif word == "ColHeaders":
                columns = tuple(rest.split())
                if "StructName" not in columns:
                    raise _odd(file, row, "names no column StructName, expected a table of regions")
            headers[word] = rest.strip()
        elif line:
            cells, regions = line.split(), regions + 1
            if len(cells) != len(columns) and ("ColHeaders" in headers or len(cells) < len(columns)):
                raise _odd(file, row, f"has {len(cells)} cells, expected {len(columns)}, as ColHeaders names them")
            found = dict(zip(columns, cells, strict=False))
            region = found.pop("StructName")
            if VOLUME in found:
                yield (region,), found[VOLUME]
                continue
            side = f"{headers['hemi']}_" * ("hemi" in headers)
            for column, value in found.items():
                if column not in NUMBERS:
                    yield (f"{side}{region}_{MEASURES.get(column, column)}",), value
    for word, count in (("NTableCols", len(columns)), ("NRows", regions)):
        if headers.get(word, "").isdecimal() and int(headers[word]) != count:
            problem = f"is cut short, or was edited: {word} is {headers[word]}, and its table has {count}"
            raise DataError(file, problem, code="statistics-incomplete")
    if "ColHeaders" in headers and not regions:
        raise DataError(file, "is cut short: no region follows ColHeaders", code="statistics-incomplete")


def _decimals(line: str) -> int:
    """Return the number of decimals of a line's last number, which is equal in all rows of a FreeSurfer table."""
    found = re.search(r"\.(\d*)$", line)
    return len(found[1]) if found else 0


def _odd(file: Path, row: int, problem: str) -> DataError:
    return DataError(file, problem, code="statistics-incomplete", row=row, place=f"row {row}")


def _pairs(file: Path, lines: Iterable[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield names and values separated by a tab; the first line may be the file's name."""
    held = [(row, line) for row, line in enumerate(lines, 1) if line.strip()]
    for row, line in held:
        name, tab, value = line.partition("\t")
        is_number = bool(tab) and (value.strip().lower() in MISSING or not math.isnan(number(value)))
        if not is_number and row == held[0][0]:
            continue
        if not tab:
            raise DataError(
                file, f"row {row}: has no tab, expected a name, a tab and a number", code="line-malformed", row=row
            )
        yield (name.strip(),), value.strip()
