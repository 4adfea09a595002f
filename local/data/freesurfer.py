"""FreeSurfer's statistics: one text file per subject, and a table that lists them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from rankdad.common.errors import DataError
from rankdad.common.files import is_within
from rankdad.common.spec.data import FreesurferData
from rankdad.local.data.encoding import encode
from rankdad.local.data.files import each, read_each, read_one
from rankdad.local.data.formats import check_text
from rankdad.local.data.reading import MISSING, Reading, is_folder, number, shown
from rankdad.local.data.table_files import read_table
from rankdad.local.data.tables import Table, aligned, holder, join, nearest, subjects_file

COLUMNS = ("Index", "SegId", "NVoxels", "Volume_mm3", "StructName")  # of aseg.stats, where it does not say


def read_freesurfer(
    path: Path, data: FreesurferData, dtype: str, *, keep: Sequence[str] = (), beside: Sequence[str] | None = None
) -> Reading:
    """Read samples from a table and the subjects' files beside it.

    Args:
        path: the folder, or a table in it that takes the place of the schema's first.
        data: the schema.
        dtype: of the inputs, such as "float32".
        keep: columns whose effects harmonisation keeps.
        beside: columns that predictions are to stand beside; None where the samples are to be trained on.

    Raises:
        DataError: naming file, row and column of what cannot be used.
    """
    folder = path if is_folder(path) else path.parent
    first, *others = each(data.covariates)
    table, notes = read_one(folder, first, data) if path is folder else (read_table(path, data), ())
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
    cells, names = [_cells(row, file, regions, refused) for row, file in enumerate(files)], tables[0].texts(data.key)
    frame = pd.DataFrame(cells, index=pd.Index(names, dtype=object), columns=pd.Index(regions), dtype=object)
    tables.append(Table(folder, frame))
    notes += told + left_out
    return encode(
        data, tables, dtype, key=data.key, keep=keep, notes=notes, dropped=dropped, beside=beside, refused=refused
    )


def freesurfer_columns(path: Path, data: FreesurferData) -> list[str]:
    """Return the names of all regions and measures of the first subject that a folder's table lists.

    Measures are called by the second of their names, as in tables that FreeSurfer makes.

    Args:
        path: the folder, or a table in it that takes the place of the schema's first.
        data: the schema.

    Raises:
        DataError: a file is missing, or holds nothing.
    """
    folder = path if is_folder(path) else path.parent
    table = read_one(folder, each(data.covariates)[0], data)[0] if path is folder else read_table(path, data)
    holder((table,), data.key)
    if not len(table):
        raise DataError(table.source, "has no rows", code="no-rows")
    return list(dict.fromkeys(names[-1] for names, _ in _values(_files(table.take([0]), data.key, folder)[0])))


def _files(table: Table, key: str, folder: Path) -> list[Path]:
    """Return the file of every row's subject.

    Raises:
        DataError: a name is none, or leads out of the folder.
    """
    names = table.texts(key)
    for row, name in enumerate(names):
        if not is_within(folder / name, folder):
            table.refuse(row, key, f"{shown(name)} leads out of the folder, or is not a file's name")
    return [folder / name for name in names]


def _cells(row: int, file: Path, names: Sequence[str], refused: dict[int, DataError] | None) -> list[str]:
    """Return the values of some regions and measures in the file of a row's subject, as text.

    Where single rows are refused, none of one that is, or whose file cannot be used.
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
                raise DataError(
                    file, f"has no region or measure {name}{nearest(name, list(found))}", code="region-missing"
                )
            if len(found[name]) > 1:
                raise DataError(file, f"has {len(found[name])} different values of {name}", code="values-differ")
    except DataError as error:
        named = DataError(error.path, error.problem, code=error.code, field=error.field, called=subjects_file(row))
        if refused is None:
            raise named from None
        refused[row] = named
        return [""] * len(names)
    return [next(iter(found[name])) for name in names]


def _values(file: Path) -> list[tuple[tuple[str, ...], str]]:
    """Return what a subject's file holds: the names of each region or measure, and its value."""
    check_text(file, "a subject's statistics as text")
    try:
        lines = [line.strip(" ") for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise DataError(file, "is not text in UTF-8", code="not-utf-8") from None
    except OSError as error:
        raise DataError(file, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    found = list(_classical(lines) if any(line.startswith("#") for line in lines) else _pairs(file, lines))
    if not found:
        raise DataError(
            file, "holds no regions: expected aseg.stats, or lines of a name, a tab and a number", code="no-regions"
        )
    return found


def _classical(lines: Iterable[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield measures, under both of their names, and the table's volumes."""
    columns: tuple[str, ...] = COLUMNS
    for line in lines:
        if line.startswith("# Measure "):
            fields = [field.strip() for field in line.removeprefix("# Measure ").split(",")]
            if len(fields) >= 4:
                yield (fields[0], fields[1]), fields[-2]
        elif line.startswith("# ColHeaders "):
            columns = tuple(line.split()[2:])
        elif line and not line.startswith("#"):
            cells = dict(zip(columns, line.split(), strict=False))
            if "StructName" in cells and "Volume_mm3" in cells:
                yield (cells["StructName"],), cells["Volume_mm3"]


def _pairs(file: Path, lines: Iterable[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield names and values of lines with a tab between them; the first line may be the file's name."""
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
