"""What a platform mounts and hands over for a member, laid out as the spec names it."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data import CsvData, FreesurferData, NpzData
from common.errors import DataError, SpecError, UserError
from common.patterns import is_pattern
from common.spec import RunSpec
from platforms.coinstac.fields import FILE

Rows = Sequence[Mapping[str, Any]]


def lay_out(spec: RunSpec, values: Mapping[str, Any], mounted: Path, folder: Path) -> None:
    """Make a folder with a member's data, under the names that the spec has for them.

    Args:
        spec: the run.
        values: of the member's form, by variable.
        mounted: folder in which the platform shows the member's files.
        folder: to be made; data files are linked, and a table that stands in the form is written.

    Raises:
        UserError: a file is not there, or the form holds something else than it asks for.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if isinstance(spec.data, NpzData):
            _link(_found(mounted, _one_file(values["data_file"], "Data file (data_file)")), folder / spec.data.file)
            return
        if not isinstance(spec.data, CsvData | FreesurferData):
            raise UserError(f"data.reader: {spec.data.reader} has no files that a form could name")
        table = folder / _one_name(spec.data)
        key = spec.data.key if isinstance(spec.data, FreesurferData) else None
        rows = _table(values.get("covariates"), key)
        if rows is None:
            _link(_found(mounted, _one_file(values["covariates"], "Table (covariates)")), table)
            return
        _write_table(rows, table)
        for name in (str(row[key]) for row in rows if key is not None):
            _copy(_found(mounted, name, "a subject's file"), name, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None


def _one_name(data: CsvData | FreesurferData) -> str:
    """Return the name under which the spec looks for the one table that a member gives.

    Raises:
        SpecError: it looks for several.
    """
    several = isinstance(data, CsvData) and data.covariates is not None
    if several or not isinstance(data.file, str) or is_pattern(data.file):
        raise SpecError("data", "names several tables, expected one: the platform hands over one of each member")
    return data.file


def _one_file(given: Any, field: str) -> str:
    """Return the one file name that an input of files holds.

    Raises:
        UserError: it holds none, or several.
    """
    while isinstance(given, list | tuple) and len(given) == 1:
        given = given[0]
    if not isinstance(given, str) or not given:
        count = f"{len(given)} files" if isinstance(given, list | tuple) and given else "no file"
        raise UserError(f"{field}: got {count}, expected one")
    return given


def _table(given: Any, key: str | None) -> Rows | None:
    """Return the rows of a table that the platform has read, with the subject's file in a column of its own.

    The platform hands over a map from each file to its columns; older versions a list of rows under several brackets.
    None if it only names a file.

    Args:
        given: in the form.
        key: the column of the files; None if no file is read, and a column of the table's own may have its name.

    Raises:
        UserError: it is neither.
    """
    if isinstance(given, Mapping) and given and all(isinstance(row, Mapping) for row in given.values()):
        return [_row(name, row, key) for name, row in given.items()]
    inner = given
    while isinstance(inner, list) and inner and isinstance(inner[0], list) and not _is_head(inner):
        inner = inner[0]
    if isinstance(inner, list) and _is_head(inner):
        head = [str(name) for name in inner[0][1:]]
        if all(isinstance(row, list) and len(row) == len(head) + 1 for row in inner):
            return [_row(row[0], dict(zip(head, row[1:], strict=True)), key) for row in inner[1:]]
    if isinstance(inner, str) or (isinstance(inner, list) and all(isinstance(one, str) for one in inner)):
        return None
    raise UserError("Table (covariates): is no table that this version knows, expected columns by file")


def _row(name: Any, cells: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    return {FILE: name, **cells} if key is None else {key: name} | dict(cells) | {key: name}


def _is_head(rows: list[Any]) -> bool:
    """Tell whether a list begins with a row of names, and has rows below it."""
    return len(rows) > 1 and isinstance(rows[0], list) and all(isinstance(name, str) for name in rows[0])


def _write_table(rows: Rows, path: Path) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.unlink(missing_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows([{name: _cell(value) for name, value in row.items()} for row in rows])


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _found(mounted: Path, name: str, called: str = "") -> Path:
    """Return where a file stands, which others may know by another name.

    Raises:
        DataError: it does not, or outside.
    """
    try:
        source = (mounted / name).resolve()
    except (OSError, ValueError, RuntimeError):  # a name too long, one with a NUL, a loop of links
        raise DataError("a file", "is no file's name, expected one of those that the platform shows") from None
    if not source.is_relative_to(mounted.resolve()):
        raise DataError(name, "leads out of the folder that the platform shows", called=called)
    if not source.is_file():
        raise DataError(name, f"is not among the files that the platform shows in {str(mounted)!r}", called=called)
    return source


def _copy(source: Path, name: str, folder: Path) -> None:
    """Copy a subject's file, which is small and read as one of this folder, under its whole name.

    Raises:
        DataError: the name leads out of the folder.
    """
    copy = folder / name
    if not copy.resolve().is_relative_to(folder.resolve()):
        raise DataError(name, "leads out of the folder that the platform shows")
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)


def _link(source: Path, link: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(source)
