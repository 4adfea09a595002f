"""Finds the files of a schema in a site's folder, and reads them as one or several tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from rankdad.common.data.joining import append
from rankdad.common.data.reading import is_folder
from rankdad.common.data.table_files import TABLES, read_table
from rankdad.common.data.tables import Table
from rankdad.common.errors import DataError
from rankdad.common.sites import site_name
from rankdad.common.spec.patterns import fits, is_pattern
from rankdad.common.spec.written import Written

OTHER_TABLES = (".xls", ".xlsb", ".ods", ".numbers", ".sav", ".por", ".dta", ".sas7bdat", ".xpt", ".rds", ".rdata",
                ".mdb", ".accdb", ".feather", ".csv.zip", ".csv.bz2", ".csv.xz")  # fmt: skip
TEXTS = (".txt", ".dat", ".zip", ".7z")  # may be tables if there are no others


class Fact(str):
    """A note that is no warning."""

    __slots__ = ()


def matching_files(folder: Path, names: str | tuple[str, ...]) -> list[Path]:
    """Return the files that names and patterns match, in the order of names, then alphabetically.

    Raises:
        DataError: the folder cannot be read, or a name matches no file.
    """
    found: dict[Path, None] = {}
    several = (names,) if isinstance(names, str) else names
    for name in several:
        found |= dict.fromkeys(_files(folder, partial(fits, written=name)) if is_pattern(name) else [folder / name])
    if not found:
        expected = "expected at least one in the folder"
        raise DataError(
            folder / several[0],
            "matches no file" + (f", nor do {len(several) - 1} more" if len(several) > 1 else "") + f", {expected}",
            code="file-missing",
        )
    return list(found)


def tables_in(folder: Path) -> list[Path]:
    """Return the tables in a folder, recognised by their extensions, in alphabetical order.

    Raises:
        DataError: the folder cannot be read.
    """
    return _files(folder, lambda name: name.lower().endswith(TABLES))


def left_out(folder: Path) -> list[DataError]:
    """Return errors for folders and files that are skipped although they may be meant as a hospital's.

    Raises:
        DataError: the folder cannot be read.
    """
    found = list[DataError]()
    remedy = "save it as CSV in UTF-8 or as .xlsx"
    for inner in sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith((".", "_"))):
        held = _files(inner, lambda name: True)
        if not tables_in(inner) and any(inner.iterdir()):
            other = next((path for path in held if path.name.lower().endswith((*OTHER_TABLES, *TEXTS))), None)
            text = f"is no table that is read: {remedy}, or move {inner.name} away"
            if other is None:
                text = "holds no table, such as a .csv or .xlsx: it is skipped"
            code = "folder-without-table" if other is None else "format-unexpected"
            found.append(DataError(other or inner, text, code=code))
    if tables_in(folder):
        others = _files(folder, lambda name: name.lower().endswith(OTHER_TABLES))
        found += [DataError(path, f"is no table that is read: {remedy}", code="format-unexpected") for path in others]
    return found


def places_of_sites(folder: Path, sites: tuple[str, ...] = ()) -> dict[str, Path]:
    """Return the folder of each site in a folder; without folders, its tables if each is of one site.

    A site's name is that of its folder, transliterated: Köln becomes koeln. For tables, words that all names share are
    dropped: processed.köln.data is of koeln.

    Args:
        folder: with the others.
        sites: to find; by default all folders with a table.

    Raises:
        DataError: the folder cannot be read, or a site's name is empty or not unique.
    """
    try:
        inner = [one for one in sorted(folder.iterdir()) if one.is_dir() and not one.name.startswith(".")]
    except OSError as error:
        raise DataError(folder, f"cannot be read: {error.strerror or error}", code="folder-unreadable") from None
    if sites:
        named = [(site_name(one.name), one) for one in inner if site_name(one.name) in sites]
    else:
        named = [(site_name(one.name), one) for one in inner if tables_in(one)]
    if not named and len(tables := tables_in(folder)) > 1:
        named = [(site_name(words), one) for words, one in zip(_telling(tables), tables, strict=True)]
    places: dict[str, Path] = {}
    for site, place in named:
        if not site:
            text = "has no letter or digit of a-z and 0-9 in its name, from which the site's follows: rename it"
            raise DataError(place, text, code="site-name-invalid")
        if site in places:
            text = f"and {places[site].name} are both the site {site}: rename one of them"
            raise DataError(place, text, code="site-name-repeated", field="federation.sites")
        places[site] = place
    return places


def _telling(tables: list[Path]) -> list[str]:
    """Return the distinguishing words of tables' names, without the words that all share at either end."""
    stems = [path.name[: -len(next(end for end in TABLES if path.name.lower().endswith(end)))] for path in tables]
    words = [[word for word in re.split(r"[\s._-]+", stem) if word] for stem in stems]
    for end in (0, -1):
        while all(len(own) > 1 for own in words) and len({own[end].lower() for own in words}) == 1:
            for own in words:
                own.pop(end)
    return ["-".join(own) for own in words]


def _files(folder: Path, chosen: Callable[[str], bool]) -> list[Path]:
    try:
        files = sorted(path for path in folder.iterdir() if chosen(path.name) and path.is_file())
    except OSError as error:
        raise DataError(folder, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    return [path for path in files if not path.name.startswith((".", "~"))]  # lock files of office programs


def read_one(
    folder: Path, names: str | tuple[str, ...], written: Written, numbers: Collection[str] = ()
) -> tuple[Table, tuple[str, ...]]:
    """Read one or several files as a table; return it with notes.

    Raises:
        DataError: a file is missing or is not a table, or their columns differ.
    """
    files = matching_files(folder, names)
    if isinstance(names, str) and not is_pattern(names):
        return read_table(files[0], written, numbers=numbers), ()
    table = append([read_table(file, written, numbers=numbers) for file in files])
    if len(files) == 1:
        return table, ()
    some = ", ".join(file.name for file in files[:10]) + ", …" * (len(files) > 10)
    return table, (Fact(f"{folder}: {len(table)} rows of {some} are read as one table"),)


def read_first(
    path: Path, names: str | tuple[str, ...], written: Written, numbers: Collection[str] = ()
) -> tuple[Path, Table, tuple[str, ...]]:
    """Read the first table of a schema; return it with its folder and notes.

    Args:
        path: the folder, or a file to read instead of `names`.
        names: of the table in the schema.
        written: how tables are written, from the schema.
        numbers: see `read_table`.

    Raises:
        DataError: a file is missing or is not a table, or columns differ.
    """
    if is_folder(path):
        return path, *read_one(path, names, written, numbers)
    return path.parent, read_table(path, written, numbers=numbers), ()


def each(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names or patterns of joined tables."""
    return (names,) if isinstance(names, str) else names or ()


def read_each(
    folder: Path, names: str | tuple[str, ...] | None, written: Written, numbers: Collection[str] = ()
) -> tuple[list[Table], tuple[str, ...]]:
    """Read tables of the same subjects; return them with notes."""
    read = [read_one(folder, name, written, numbers) for name in each(names)]
    return [table for table, _ in read], tuple(note for _, notes in read for note in notes)
