"""A log file for each run of a service, for owners and viewers."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from rankdad.common.errors import visible
from rankdad.common.logs import LineFormatter, LogFile, NamesFilter
from rankdad.page.tail import MAX_LENGTH, MAX_LINES, Line

LOGS = "logs"  # in a service's directory
MAX_LOG = 16 << 20  # bytes for each run
LAST = 1 << 15  # bytes searched for the last lines


class RunLogs(logging.Handler):
    """Writes log records of a run into its own file.

    Args:
        folder: the folder of all logs.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self._folder = folder
        self._files: dict[str, LogFile] = {}
        self.addFilter(NamesFilter())
        self.setFormatter(LineFormatter())

    def open(self, run: str) -> LogFile:
        """Return the file of a run that begins or goes on."""
        if run not in self._files:
            self._files[run] = LogFile(self._folder / f"{run}.log")
        return self._files[run]

    def shut(self, run: str) -> None:
        """Close the file of a run."""
        if run in self._files:
            self._files.pop(run).close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, if it is of an active run."""
        file = self._files.get(vars(record)["run"])
        if file is not None:
            with contextlib.suppress(ValueError):
                if file.size() < MAX_LOG:
                    print(self.format(record), file=file)


def read_log(folder: Path, run: str, after: int, most: int = 1 << 20) -> bytes:
    """Return what a run's log holds after so many bytes, no more than `most`."""
    try:
        with (folder / f"{run}.log").open("rb") as file:
            file.seek(after)
            return file.read(most)
    except OSError:
        return b""


class LastLines:
    """The last lines of a run's log, read again when it has grown.

    Args:
        folder: the folder of all logs.
        run: whose.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._path, self._size, self._lines = folder / f"{run}.log", 0, list[Line]()

    def __call__(self) -> list[Line]:
        """Return the lines, the oldest first; each says itself when it was written."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size != self._size:
                file.seek(max(0, size - LAST))
                texts = file.read(LAST).decode(errors="replace").split("\n")[size > LAST :]
                told = [text for text in texts if text][-MAX_LINES:]
                self._lines = [(None, _level(text), visible(text, MAX_LENGTH)) for text in told]
                self._size = size
        return self._lines


def _level(line: str) -> str:
    """Return the level that a line names behind the time, if it is one that stands out."""
    return next((level.lower() for level in ("WARNING", "ERROR") if f" {level} " in line[:32]), "info")
