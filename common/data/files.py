"""The files that a schema names in a site's folder: found, and read as one table or as several."""

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
from rankdad.common.spec import site_name
from rankdad.common.spec.patterns import fits, is_pattern
from rankdad.common.spec.written import Written

OTHER_TABLES = (".xls", ".xlsb", ".ods", ".numbers", ".sav", ".por", ".dta", ".sas7bdat", ".xpt", ".rds", ".rdata",
                ".mdb", ".accdb", ".feather", ".csv.zip", ".csv.bz2", ".csv.xz")  # fmt: skip
TEXTS = (".txt", ".dat", ".zip", ".7z")  # that are tables where no other is


class Fact(str):
    """A sentence that says what was done with the data, and warns of nothing."""

    __slots__ = ()


def matching_files(folder: Path, names: str | tuple[str, ...]) -> list[Path]:
    """Return the files that names stand for, in the names' order; those of a pattern in the alphabet's.

    Raises:
        DataError: the folder cannot be read, or no name stands for one of its files.
    """
    found: dict[Path, None] = {}  # in order, each once
    several = (names,) if isinstance(names, str) else names
    for name in several:
        found |= dict.fromkeys(_files(folder, partial(fits, written=name)) if is_pattern(name) else [folder / name])
    if not found:
        expected = "expected at least one in the folder"
        raise DataError(
            folder / several[0],
            f"stands for no file, {expected}"
            if len(several) == 1
            else f"and {len(several) - 1} more stand for no file, {expected}",
            code="file-missing",
        )
    return list(found)


def tables_in(folder: Path) -> list[Path]:
    """Return the tables in a folder, by their names' endings, in the alphabet's order.

    Raises:
        DataError: the folder cannot be read.
    """
    return _files(folder, lambda name: name.lower().endswith(TABLES))


def left_out(folder: Path) -> list[DataError]:
    """Return why folders in a folder, and files beside its tables, are no hospital's, though they may be meant so.

    Raises:
        DataError: the folder cannot be read.
    """
    found = list[DataError]()
    remedy = "save it as CSV in UTF-8 or as .xlsx"
    for inner in sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith((".", "_"))):
        held = _files(inner, lambda name: True)
        if not tables_in(inner) and any(inner.iterdir()):
            other = next((path for path in held if path.name.lower().endswith((*OTHER_TABLES, *TEXTS))), None)
            said = f"is no table that is read: {remedy}, or move {inner.name} away"
            if other is None:
                said = "holds no table, such as a .csv or .xlsx: it is left out"
            code = "folder-without-table" if other is None else "format-unexpected"
            found.append(DataError(other or inner, said, code=code))
    if tables_in(folder):
        others = _files(folder, lambda name: name.lower().endswith(OTHER_TABLES))
        found += [DataError(path, f"is no table that is read: {remedy}", code="format-unexpected") for path in others]
    return found


def places_of_sites(folder: Path, sites: tuple[str, ...] = ()) -> dict[str, Path]:
    """Return the folder of each site in a folder; where there are none, its tables, if they are of a site each.

    A site is called as its folder is, in the letters that a site's name may have: Köln is koeln. Of tables the words
    count that not all of their names have: processed.köln.data is koeln's.

    Args:
        folder: that holds the others.
        sites: those that are asked for; without them all folders that hold a table are.

    Raises:
        DataError: the folder cannot be read, or two places have one name, or one none.
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
            said = "has no letter or digit of a-z and 0-9 in its name, from which the site's follows: rename it"
            raise DataError(place, said, code="site-name-invalid")
        if site in places:
            said = f"and {places[site].name} are both the site {site}: rename one of them"
            raise DataError(place, said, code="site-name-repeated", field="federation.sites")
        places[site] = place
    return places


def _telling(tables: list[Path]) -> list[str]:
    """Return what tells tables' names apart: their words without those at both ends that all have in common."""
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
    return [path for path in files if not path.name.startswith((".", "~"))]  # an office program's marks of open files


def read_one(
    folder: Path, names: str | tuple[str, ...], written: Written, numbers: Collection[str] = ()
) -> tuple[Table, tuple[str, ...]]:
    """Read a table, of all the rows if names stand for several files, and return what is to be told of these.

    Raises:
        DataError: a file is missing or no table, or their columns differ.
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
    """Read the table with which a schema begins, and return its folder and what is to be told of it, too.

    Args:
        path: the folder, or a file in it that takes the place of what `names` stands for.
        names: of the table in the schema.
        written: what the schema says of tables.
        numbers: see `read_table`.

    Raises:
        DataError: a file is missing or no table, or several have different columns.
    """
    if is_folder(path):
        return path, *read_one(path, names, written, numbers)
    return path.parent, read_table(path, written, numbers=numbers), ()


def each(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return names of tables that are joined, each a name or a pattern."""
    return (names,) if isinstance(names, str) else names or ()


def read_each(
    folder: Path, names: str | tuple[str, ...] | None, written: Written, numbers: Collection[str] = ()
) -> tuple[list[Table], tuple[str, ...]]:
    """Read tables of the same subjects, and return what is to be told of them."""
    read = [read_one(folder, name, written, numbers) for name in each(names)]
    return [table for table, _ in read], tuple(note for _, notes in read for note in notes)
