"""The files that a schema names in a site's folder: found, and read as one table or as several."""

from __future__ import annotations

from pathlib import Path

from rankdad.common.errors import DataError
from rankdad.common.patterns import fits, is_pattern
from rankdad.local.data.tables import Table, append, read_table


def find(folder: Path, names: str | tuple[str, ...]) -> list[Path]:
    """Return the files that names stand for, in the names' order; those of a pattern in the alphabet's.

    Raises:
        DataError: the folder cannot be read, or a pattern stands for none of its files.
    """
    found: dict[Path, None] = {}  # in order, each once
    for name in (names,) if isinstance(names, str) else names:
        found |= dict.fromkeys(_matching(folder, name) if is_pattern(name) else [folder / name])
    return list(found)


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        files = sorted(path for path in folder.iterdir() if fits(path.name, pattern) and path.is_file())
    except OSError as error:
        raise DataError(folder / pattern, f"cannot be looked for: {error.strerror or error}") from None
    files = [path for path in files if not path.name.startswith((".", "~"))]  # an office program's marks of open files
    if not files:
        raise DataError(folder / pattern, "stands for no file, expected at least one in the folder")
    return files


def read_one(folder: Path, names: str | tuple[str, ...]) -> tuple[Table, tuple[str, ...]]:
    """Read a table, of all the rows if names stand for several files, and return what is to be told of these.

    Raises:
        DataError: a file is missing or no table, or their columns differ.
    """
    files = find(folder, names)
    if isinstance(names, str) and not is_pattern(names):
        return read_table(files[0]), ()
    table = append([read_table(file) for file in files])
    some = ", ".join(file.name for file in files[:10]) + ", …" * (len(files) > 10)
    return table, (f"{folder}: {len(table)} rows of {some} are read as one table",)


def each(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return names of tables that are joined, each a name or a pattern."""
    return (names,) if isinstance(names, str) else names or ()


def read_each(folder: Path, names: str | tuple[str, ...] | None) -> tuple[list[Table], tuple[str, ...]]:
    """Read tables of the same subjects, and return what is to be told of them."""
    read = [read_one(folder, name) for name in each(names)]
    return [table for table, _ in read], tuple(note for _, notes in read for note in notes)
