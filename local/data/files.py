"""The files that a schema names in a site's folder: found, and read as one table or as several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rankdad.common.errors import DataError
from rankdad.common.spec.patterns import fits, is_pattern
from rankdad.common.spec.written import Written
from rankdad.local.data.table_files import TABLES, read_table
from rankdad.local.data.tables import Table, append


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


def _files(folder: Path, chosen: Callable[[str], bool]) -> list[Path]:
    try:
        files = sorted(path for path in folder.iterdir() if chosen(path.name) and path.is_file())
    except OSError as error:
        raise DataError(folder, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    return [path for path in files if not path.name.startswith((".", "~"))]  # an office program's marks of open files


def read_one(folder: Path, names: str | tuple[str, ...], written: Written) -> tuple[Table, tuple[str, ...]]:
    """Read a table, of all the rows if names stand for several files, and return what is to be told of these.

    Raises:
        DataError: a file is missing or no table, or their columns differ.
    """
    files = matching_files(folder, names)
    if isinstance(names, str) and not is_pattern(names):
        return read_table(files[0], written), ()
    table = append([read_table(file, written) for file in files])
    if len(files) == 1:
        return table, ()
    some = ", ".join(file.name for file in files[:10]) + ", …" * (len(files) > 10)
    return table, (Fact(f"{folder}: {len(table)} rows of {some} are read as one table"),)


def each(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return names of tables that are joined, each a name or a pattern."""
    return (names,) if isinstance(names, str) else names or ()


def read_each(
    folder: Path, names: str | tuple[str, ...] | None, written: Written
) -> tuple[list[Table], tuple[str, ...]]:
    """Read tables of the same subjects, and return what is to be told of them."""
    read = [read_one(folder, name, written) for name in each(names)]
    return [table for table, _ in read], tuple(note for _, notes in read for note in notes)
