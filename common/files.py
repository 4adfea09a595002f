"""Files and folders on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rankdad.common.errors import DataError, UserError


def is_within(path: Path, folder: Path) -> bool:
    """Tell whether a path lies in a folder, links followed; one that cannot be followed does not."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a name too long, one with a NUL, a loop of links
        return False


def check_file(path: Path, *, missing_ok: bool = False) -> None:
    """Check that there is a file to read.

    Args:
        path: of the file.
        missing_ok: whether there may be nothing at all.

    Raises:
        DataError: there is none, or it is something else, such as a folder or a pipe, which would be waited for.
    """
    try:
        found, is_file = path.exists(), path.is_file()
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    if not is_file and (found or not missing_ok):
        problem = "is not a file but a folder" if path.is_dir() else "is not a file"
        raise DataError(path, problem if found else "does not exist", code="file-missing")


def write_json(path: Path, document: object, *, private: bool = False) -> None:
    """Write a JSON file whole or not at all: see `write_whole`."""
    write_whole(path, json.dumps(document, indent=2) + "\n", private=private)


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file so that a reader finds, and a process that is killed leaves, either the old one or the new one.

    Args:
        path: its folder is made if it is missing.
        text: what it is to hold.
        private: whether its owner alone can read it.

    Raises:
        UserError: it cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600 if private else 0o666, exist_ok=False)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}", code="cannot-write") from None


def make_folder(path: Path, *, private: bool = False) -> Path:
    """Make a folder if it is missing, and return it.

    Args:
        path: of the folder.
        private: whether its owner alone can enter it.

    Raises:
        UserError: it cannot be made.
    """
    try:
        path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be made: {error.strerror}", code="cannot-write") from None
    return path


def sync_path(path: Path) -> None:
    """Put a file, or a folder's list of files, on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
