"""The files of a run's directory: what a reader finds is whole, or grows line by line."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Sequence
from pathlib import Path

from rankdad.common.errors import UserError
from rankdad.common.files import make_folder


def new_directory(directory: Path) -> None:
    """Make a run's directory.

    Raises:
        UserError: it cannot be made, or already holds a run.
    """
    if (directory / "run.json").exists():
        raise UserError(f"{directory}: already holds a run; choose another --output or remove it")
    make_folder(directory)


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
            raise UserError(f"{self._path}: cannot be written: {error.strerror}") from None

    def size(self) -> int:
        """Return how many bytes stand."""
        self._file.flush()
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what did not fit has been said
            self._file.close()
