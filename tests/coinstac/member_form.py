"""The members' side of the form: a rule takes what was asked, adds what was picked, and returns what is saved.

Every rule is what the platform does, faults included.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.coinstac.typed import NOTHING, AppError, Input, Tick, as_sent, number_field, offered, rows


@dataclass(frozen=True)
class Asked:
    """A field, its value in the owner's form, and what the member gives."""

    name: str
    one: Input
    before: Any
    given: Any


@dataclass
class Picked:
    """A member's files of all fields together: `base` is the folder of the last field."""

    all_files: bool
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    base: str = ""
    lost: list[str] = field(default_factory=list)

    def links(self) -> list[tuple[str, str]]:
        """Each file goes below the base directory by its base name; with a directory, by its path in `base`."""
        if self.folders:
            return [(str(Path(file).absolute()), inside(file, self.base)) for file in self.files]
        return [(os.path.normpath(Path(self.base, file)), Path(file).name) for file in self.files]

    def made(self) -> list[str]:
        """A directory's folders are made beforehand; of names in a table, the folders, which stay empty."""
        if self.folders:
            return [inside(folder, self.base) for folder in self.folders[1:]]
        return [str(Path(file).parent) for file in self.files if not Path(file).is_absolute()]


def inside(path: str, base: str) -> str:
    """The base is cut out of a path; a path outside of it stays whole."""
    return path.replace(base, "", 1).lstrip("/")


def unlinked(picked: Picked) -> list[str]:
    """Of two files with one name one is linked; a file is not where no folder was made for it."""
    sources: dict[str, set[str]] = {}
    for source, name in picked.links():
        sources.setdefault(name, set()).add(source)
    lost = [
        f"{name}: {len(files)} files have this name, one is linked" for name, files in sources.items() if len(files) > 1
    ]
    there = {".", *picked.made()}
    far = [name for name in sources if str(Path(name).parent) not in there]
    return lost + [f"/{name} is not linked, it lies outside of {picked.base}" for name in far]


def ticked(asked: Asked) -> Any:
    """The default is saved as it is; below a text field there is no box for a default that is empty or 0."""
    if asked.one["type"] in ("number", "string") and not asked.one.get("default"):
        raise AppError("it has no box Use Default, for its default is empty or 0")
    return asked.one.get("default", NOTHING)


def member_number(asked: Asked, picked: Picked) -> Any:
    """The leading digits are the number, 0.5 is 0 and 1e3 is 1; `min`, `max` and `step` are not looked at."""
    if asked.given is Tick.USE_DEFAULT:
        return ticked(asked)
    text = number_field(asked.given)
    digits = re.match(r"-?\d+", text)
    if digits is None and asked.one.get("required"):
        raise AppError("Please set value")
    value = None if digits is None else int(digits[0])
    if value is None or value != float(text):
        picked.lost.append(f"{asked.name}: {asked.given} arrives as {json.dumps(value)}")
    return value


def member_string(asked: Asked, picked: Picked) -> Any:
    """What is typed is saved under a type that nothing reads: the value of the owner's form arrives."""
    kept = None if asked.before is NOTHING else asked.before
    typed = ticked(asked) if asked.given is Tick.USE_DEFAULT else str(asked.given)
    if asked.one.get("required") and not typed:
        raise AppError("Please set value")
    if typed != kept:
        picked.lost.append(f"{asked.name}: what a member types into a string is lost, {kept!r} arrives")
    return asked.before


def member_boolean(asked: Asked, picked: Picked) -> Any:
    """A switch is on after one click and off after two, whatever it shows."""
    return ticked(asked) if asked.given is Tick.USE_DEFAULT else offered(asked.given, [True, False])


def member_object(asked: Asked, picked: Picked) -> Any:
    """The editor fails at the first key; only its default can be saved."""
    if asked.given is not Tick.USE_DEFAULT:
        raise AppError("the editor fails at the first key, only Use Default works")
    return ticked(asked)


def member_files(asked: Asked, picked: Picked) -> Any:
    """The files' base names arrive, from whichever folders they were picked."""
    files = chosen(asked, picked)
    picked.base = str(Path(files[0]).parent)
    picked.files += files
    return [Path(file).name for file in files]


def member_directory(asked: Asked, picked: Picked) -> Any:
    """The folder's path on the member's machine arrives; its files come along from any depth."""
    folder = Path(asked.given).absolute()
    if not folder.is_dir():
        raise AppError(f"there is no folder {folder}")
    below = sorted(folder.rglob("*"))
    picked.base = str(folder)
    picked.folders += [str(path) for path in (folder, *below) if path.is_dir()]
    picked.files += [str(path) for path in below if not path.is_dir() and ".DS_Store" not in str(path)]
    return str(folder)


def member_csv(asked: Asked, picked: Picked) -> Any:
    """A table's first column names files, which are linked; its other columns are dragged to the owner's variables.

    Rows with equal first cells are one, the last one; a row that has no value of a variable's type is left out.
    """
    files = chosen(asked, picked)
    (header, *lines), columns = read_csv(Path(files[0])), {row["name"]: row["type"] for row in rows(asked.before)}
    dragged = auto_mapped(columns, header[1:])
    if missing := sorted(columns.keys() - dragged):
        raise AppError(f"Missing fields: {', '.join(missing)} of {', '.join(header[1:])}")
    cells = {as_key(line[0]): dict(zip(header[1:], line[1:], strict=False)) for line in lines}
    if len(cells) < len(lines) or files[1:]:
        picked.lost.append(f"{asked.name}: rows kept: {len(cells)} of {len(lines)}, of {Path(files[0]).name} alone")
    picked.base = str(Path(files[0]).parent)
    value = {}
    for file, row in cells.items():
        try:
            value[os.path.normpath(file)] = {name: cast(kind, row.get(dragged[name])) for name, kind in columns.items()}
        except AppError as error:
            picked.lost.append(f"{asked.name}: {file} is left out: {error}")
        else:
            picked.files.append(file)
    return value


MEMBER: dict[str, Callable[[Asked, Picked], Any]] = {
    "number": member_number,
    "string": member_string,
    "boolean": member_boolean,
    "object": member_object,
    "files": member_files,
    "directory": member_directory,
    "csv": member_csv,
}


def chosen(asked: Asked, picked: Picked) -> list[str]:
    """The dialog shows files with one of the `extensions`, and all after a click; a nested list filters nothing."""
    given = asked.given if isinstance(asked.given, list | tuple) else [asked.given]
    files = [str(Path(file).absolute()) for file in given]
    if not files:
        raise AppError('The "path" argument must be of type string: no file is chosen')
    endings = asked.one.get("extensions", [])
    filtered = bool(endings) and not picked.all_files and all(isinstance(ending, str) for ending in endings)
    for file in files:
        if not Path(file).is_file():
            raise AppError(f"there is no file {file}")
        if filtered and not file.lower().endswith(tuple(f".{ending.lower()}" for ending in endings)):
            raise AppError(f"the dialog does not show {Path(file).name}, only {', '.join(endings)}")
    return files


def read_csv(file: Path) -> list[list[Any]]:
    """Cells lose the spaces around them; below the header, true, false and what looks like a number become such."""
    with file.open(newline="", encoding="utf-8-sig") as text:
        header, *lines = [[cell.strip() for cell in line or [""]] for line in csv.reader(text)] or [[""]]
    return [header, *([parsed(cell) for cell in line] for line in lines)]


def parsed(cell: str) -> Any:
    """A cell of a table; 007 becomes 7."""
    if cell in ("true", "false"):
        return cell == "true"
    number = re.fullmatch(r"[-+]?\d+(\.\d*)?([eE]\+\d+)?|\d*\.\d+", cell)
    return as_sent(float(cell)) if number else cell


def as_key(cell: Any) -> str:
    """A cell that names a file."""
    return cell if isinstance(cell, str) else json.dumps(cell)


def auto_mapped(columns: Mapping[str, str], header: Sequence[str]) -> dict[str, str]:
    """Auto Map finds columns by their names; of its guesses at similar ones there is nothing here."""
    return {name: column for name in columns for column in header if column.lower() == name.lower()}


def cast(kind: str, cell: Any) -> Any:
    """A variable's cell; 0 and 1 are no booleans, as they are numbers already, and the empty text is no text."""
    if kind == "number" and (number := re.match(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", as_key(cell))):
        return float(number[0])
    if kind == "boolean" and as_key(cell).lower() in ("true", "false"):
        return as_key(cell).lower() == "true"
    if kind == "string" and cell not in ("", None):
        return as_key(cell)
    raise AppError(f"Could not convert {cell} to a {kind}")
