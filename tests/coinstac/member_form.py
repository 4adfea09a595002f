"""The members' side of the form: a rule takes what was asked, adds what was picked, and returns what is saved.

Every rule is what the platform does, faults included.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.coinstac.typed import AppError, Input, Tick, number_field


@dataclass(frozen=True)
class Asked:
    """A field, and what the member gives."""

    name: str
    one: Input
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
        """A directory's folders are made beforehand."""
        return [inside(folder, self.base) for folder in self.folders[1:]]


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


def member_number(asked: Asked, picked: Picked) -> Any:
    """The leading digits are the number, 0.5 is 0 and 1e3 is 1; `min`, `max` and `step` are not looked at."""
    if asked.given is Tick.USE_DEFAULT:
        if not asked.one.get("default"):
            raise AppError("it has no box Use Default, for its default is empty or 0")
        return asked.one["default"]
    text = number_field(asked.given)
    digits = re.match(r"-?\d+", text)
    if digits is None and asked.one.get("required"):
        raise AppError("Please set value")
    value = None if digits is None else int(digits[0])
    if value is None or value != float(text):
        picked.lost.append(f"{asked.name}: {asked.given} arrives as {json.dumps(value)}")
    return value


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


MEMBER: dict[str, Callable[[Asked, Picked], Any]] = {
    "number": member_number,
    "files": member_files,
    "directory": member_directory,
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
