"""What the product logs: each record names the run and the site, and becomes a line for people or a JSON object.

Loggers are called `rankdad.…` after their modules. What a command results in is printed instead.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
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


def set_up(options: LogOptions, file: TextIO | None = None) -> None:
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

    def __init__(self, file: TextIO | None, level: int) -> None:
        super().__init__(level)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # the disk is full, or nobody reads any more: the run goes on
            print(self.format(record), file=self._file or sys.stderr, flush=True)
