"""Logging: each record has the run and the site, and becomes a line of text or a JSON object.

Loggers are named `rankdad.…` after their modules. Results of commands are printed instead.
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

MAX_PROGRESS = 100  # characters of a progress line without a terminal
MIN_NAME = 12  # least number of them for the site's name
MAX_ERROR = 4000  # characters of an error, which may quote others
PLACES = ("code", "field", "site", "file", "row")  # fields of an error's record
MAX_LINE = 2000  # characters of a line, which may quote others

_log = logging.getLogger("rankdad")
_names: ContextVar[tuple[str, str]] = ContextVar("names", default=("", ""))


@dataclass(frozen=True)
class LogOptions:
    """Options of a command's log.

    Args:
        level: least important level that is written.
        as_json: whether a record is a JSON object.
    """

    level: int = logging.INFO
    as_json: bool = False

    @classmethod
    def of(cls, *, verbose: bool, quiet: bool, as_json: bool) -> LogOptions:
        """Return the options for a command's flags.

        Raises:
            UserError: they contradict each other.
        """
        if verbose and quiet:
            raise UserError("--verbose and --quiet: give one of them", code="option-unused", field="--quiet")
        level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        return cls(level, as_json)

    @property
    def flags(self) -> list[str]:
        """Return the flags of another command with these options."""
        level = {logging.DEBUG: ["--verbose"], logging.WARNING: ["--quiet"]}.get(self.level, [])
        return level + ["--log-json"] * self.as_json


@contextmanager
def log_names(*, run: str | None = None, site: str | None = None) -> Iterator[None]:
    """Add the run, the site or both to records within a `with`."""
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
    """Report the error that ends a command, as a record if the log is JSON, otherwise as a sentence with its code."""
    first, *others = (visible(line, MAX_ERROR) for line in (str(error), *error.quoted))
    if any(isinstance(handler.formatter, JsonFormatter) for handler in _log.handlers):
        about = {name: value for name in PLACES if (value := getattr(error, name)) not in ("", None)}
        _log.error("%s", "\n".join((first, *others)), extra={"event": about})
    else:
        print("\n".join((error_line(first, error.code), *others)), file=sys.stderr)


def error_line(sentence: str, code: str) -> str:
    """Return the last line of a failed command's output or a process's log; see `ended_with`."""
    return f"error: {sentence} [{code}]"


def ended_with(error: str) -> tuple[str, str]:
    """Return the sentence and the code from a printed error."""
    found = re.match(r"(.*) \[([a-z0-9-]+)\]$", error.partition("\n")[0])
    return (found[1], found[2]) if found else (error, "")


def progress(site: str, line: str) -> None:
    """Report a site's progress, as a record if the log is JSON, otherwise as a line; nothing if it is quiet."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in _log.handlers):
        _log.info("%s", line)
    elif _log.isEnabledFor(logging.INFO):
        with suppress(OSError):  # the reader has stopped; the run continues
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
        if anew:
            with suppress(OSError):  # a process that still writes to the old file writes nothing into this one
                path.unlink(missing_ok=True)
        self._open()

    def _open(self) -> bool:
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
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
    """Add the names of the run and the site to every record; empty while unknown."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the names."""
        record.run, record.site = _names.get()
        return True


class JsonFormatter(logging.Formatter):
    """Format a record as a JSON object on one line, with an event's own fields: `extra={"event": {…}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object."""
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
    """Format a record as a line, safe for terminals."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by a traceback."""
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
    """Write lines to a file, or to the current standard error, which a live view may replace."""

    def __init__(self, file: TextIO | LogFile | None, level: int) -> None:
        super().__init__(level)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # the disk is full, or the reader has stopped; the run continues
            print(self.format(record), file=self._file or sys.stderr, flush=True)
