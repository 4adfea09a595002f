"""What the product logs: each record names the run and the site, and becomes a line for people or a JSON object.

Loggers are called `rankdad.…` after their modules. What a command results in is printed instead.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from rankdad.common.errors import RankdadError, UserError, visible

MAX_PROGRESS = 100  # characters of a line on progress, where no terminal wraps it
MIN_NAME = 12  # of them for the site's name, whatever else the line says
MAX_ERROR = 4000  # characters of an error, which may quote what others have written
PLACES = ("code", "field", "site", "file", "row")  # what a record of an error has beside its sentence
MAX_LINE = 2000  # characters of a line, in which others may be quoted

_log = logging.getLogger("rankdad")
_names: ContextVar[tuple[str, str]] = ContextVar("names", default=("", ""))


@dataclass(frozen=True)
class LogOptions:
    """What a command logs.

    Args:
        level: of the least important records that are written.
        as_json: whether a record is a JSON object.
    """

    level: int = logging.INFO
    as_json: bool = False

    @classmethod
    def of(cls, *, verbose: bool, quiet: bool, as_json: bool) -> LogOptions:
        """Return the options that a command's flags stand for.

        Raises:
            UserError: they contradict each other.
        """
        if verbose and quiet:
            raise UserError("--verbose and --quiet: give one of them", code="option-unused", field="--quiet")
        level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        return cls(level, as_json)


@contextmanager
def log_names(*, run: str | None = None, site: str | None = None) -> Iterator[None]:
    """Name the run, the site or both in what is logged within a `with`."""
    known_run, known_site = _names.get()
    token = _names.set((known_run if run is None else run, known_site if site is None else site))
    try:
        yield
    finally:
        _names.reset(token)


def set_up(options: LogOptions, file: TextIO | LogFile | None = None) -> None:
    """Log to standard error. With a file all records go there, and only warnings to standard error as well."""
    handlers = [_Lines(None, options.level if file is None else logging.WARNING)]
    if file is not None:
        handlers.append(_Lines(file, options.level))
    for handler in handlers:
        handler.addFilter(NamesFilter())
        handler.setFormatter(JsonFormatter() if options.as_json else LineFormatter())
    _log.handlers[:] = handlers
    _log.setLevel(options.level)


def end_with(error: RankdadError) -> None:
    """Say what ends a command: in a record where the log is JSON, else in a plain sentence with the error's code."""
    first, *others = (visible(line, MAX_ERROR) for line in (str(error), *error.quoted))
    if any(isinstance(handler.formatter, JsonFormatter) for handler in _log.handlers):
        about = {name: value for name in PLACES if (value := getattr(error, name)) not in ("", None)}
        _log.error("%s", "\n".join((first, *others)), extra={"event": about})
    else:
        print("\n".join((error_line(first, error.code), *others)), file=sys.stderr)


def error_line(sentence: str, code: str) -> str:
    """Return the line that ends a command's output, or a process's log: `ended_with` reads it."""
    return f"error: {sentence} [{code}]"


def ended_with(error: str) -> tuple[str, str]:
    """Return the sentence and the code of an error as a command prints it."""
    found = re.match(r"(.*) \[([a-z0-9-]+)\]$", error.partition("\n")[0])
    return (found[1], found[2]) if found else (error, "")


def progress(site: str, line: str) -> None:
    """Say how far a site is: in a record where the log is JSON, else in a line for people; nothing if it is quiet."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in _log.handlers):
        _log.info("%s", line)
    elif _log.isEnabledFor(logging.INFO):
        with suppress(OSError):  # nobody reads any more: the run goes on
            most = MAX_LINE if sys.stdout.isatty() else MAX_PROGRESS
            name = visible(site, max(MIN_NAME, most - len(line) - len(": ")))
            print(visible(f"{name}: {line}", most), flush=True)


class LogFile(io.TextIOBase):
    """A log that only its owner can read. What a full disk does not take of it is lost, and the run goes on.

    Args:
        path: of the file, to which lines are added.
        anew: whether what it holds goes.

    Attributes:
        problem: why it could not be opened; None if it is open. Each line tries again.
    """

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        self._path, self._file = path, -1
        self.problem: OSError | None = None
        self._open(os.O_TRUNC if anew else 0)

    def _open(self, flags: int = 0) -> bool:
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | flags, 0o600)
                os.fchmod(self._file, 0o600)
                self.problem = None
            except OSError as error:
                self.problem = error
        return self._file >= 0

    def write(self, text: str) -> int:
        """Add a text."""
        with suppress(OSError):
            if self._open():
                os.write(self._file, text.encode(errors="replace"))
        return len(text)

    def writable(self) -> bool:
        """Return that it is."""
        return True

    def fileno(self) -> int:
        """Return the open file's number."""
        if not self._open():
            raise io.UnsupportedOperation("the file could not be opened")
        return self._file

    def size(self) -> int:
        """Return how many bytes it has."""
        return os.fstat(self._file).st_size if self._open() else 0

    def close(self) -> None:
        """Close it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()


class NamesFilter(logging.Filter):
    """Give every record the names of the run and the site: empty while they are not known."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the names."""
        record.run, record.site = _names.get()
        return True


class JsonFormatter(logging.Formatter):
    """Write a record as a JSON object on one line, with an event's own fields: `extra={"event": {…}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        given = vars(record)
        line = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": given["run"],
            "site": given["site"],
            "message": record.getMessage(),
        }
        if "event" in given:
            line["event"] = given["event"]
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class LineFormatter(logging.Formatter):
    """Write a record as a line for people. Nothing in it acts on a terminal, whoever wrote it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and a traceback below it."""
        given = vars(record)
        names = "/".join(filter(None, (given["run"], given["site"])))
        words = [f"{names}:" if names else "", record.getMessage()]
        words += [f"{key}={json.dumps(value)}" for key, value in given.get("event", {}).items()]
        text = visible(" ".join(filter(None, words)), MAX_LINE)
        lines = [f"{_time(record).astimezone():%Y-%m-%d %H:%M:%S} {record.levelname} {text}"]
        if record.exc_info:
            lines += [visible(line, MAX_LINE) for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


class _Lines(logging.Handler):
    """Writes lines to a file, or to what standard error is at the moment: a live view puts another in its place."""

    def __init__(self, file: TextIO | LogFile | None, level: int) -> None:
        super().__init__(level)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # the disk is full, or nobody reads any more: the run goes on
            print(self.format(record), file=self._file or sys.stderr, flush=True)
