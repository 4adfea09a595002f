"""The files of a run's directory: what a reader finds is whole, or grows line by line."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Sequence
from pathlib import Path

from rankdad.common.documents import load_json
from rankdad.common.errors import UserError, visible
from rankdad.common.files import make_folder
from rankdad.common.spec.tree import TOP

PLAN = "plan.json"


def new_directory(directory: Path) -> None:
    """Make a run's directory.

    Raises:
        UserError: it cannot be made, or already holds a run.
    """
    if (directory / "run.json").exists():
        raise UserError(
            f"{directory}: already holds a run; choose another --output or remove it",
            code="already-there",
            field="--output",
        )
    make_folder(directory)


def owner_of(directory: Path) -> str | None:
    """Return whose a run's directory is: the name of a region, or of the aggregator above all; None if it is not said.

    Raises:
        UserError: its plan.json cannot be read.
    """
    path = directory / PLAN
    document = load_json(path) if path.exists() else None
    owner = document.get("aggregator") if isinstance(document, dict) else None
    return None if owner is None else visible(str(owner), 64)


def check_owner(directory: Path, name: str) -> None:
    """Check that the directory of a run that goes on is this aggregator's own: another's has other children.

    Raises:
        UserError: it is another's.
    """
    if (owner := owner_of(directory)) not in (None, name):
        there, here = (f"region {one}" if one != TOP else "the aggregator above all" for one in (owner, name))
        raise UserError(
            f"--output: {directory} is the directory of {there}, and this is {here}: choose its own",
            code="directory-of-another",
            field="--output",
        )


class Table:
    """A CSV file that a reader can follow line by line.

    Args:
        path: of the file.
        columns: its head.
        size: in bytes of what stands, if an earlier process has written so far; what it wrote beyond goes.
    """

    def __init__(self, path: Path, columns: Sequence[str], size: int | None = None) -> None:
        stands = size is not None and path.exists() and path.stat().st_size >= size
        if stands:
            os.truncate(path, size or 0)
        self._file = path.open("a" if stands else "w", newline="", encoding="utf-8", buffering=1)
        self.width = len(columns)
        self._path, self._writer = path, csv.writer(self._file, lineterminator="\n")
        if not stands:
            self._writer.writerow(columns)

    def row(self, values: Sequence[object]) -> None:
        """Write a row.

        Raises:
            UserError: the disk is full or broken.
        """
        try:
            self._writer.writerow(values)
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written: {error.strerror}", code="cannot-write") from None

    def size(self) -> int:
        """Return how many bytes stand."""
        self._file.flush()
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what did not fit has been said
            self._file.close()
