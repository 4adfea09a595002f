"""The audit log: connections and refusals, each a JSON line in the run's directory and a log record."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from rankdad.common.errors import visible
from rankdad.common.logs import log_names

AUDIT = "audit.jsonl"  # in a run's directory
MAX_PER_MINUTE = 100  # lines for each address
MAX_ADDRESSES = 1000  # counted separately in a minute; also names
MAX_REASON = 200  # characters of the last refusal of a site
STRANGERS = (400, 401, 403, 404, 405, 408, 421)  # status codes for unauthenticated callers
_log = logging.getLogger(__name__)


class Audit:
    """An append-only log that does not flood the disk, and does not end the run if the disk is full.

    Args:
        path: the file, readable by its owner only.
        now: clock.
    """

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path, self._now = path, now
        self._file: int | None = None
        self._torn = self._broken = False
        self._minute = ""
        self._counts: dict[str, int] = {}  # lines in this minute, by address
        self.refusals: dict[str, tuple[int, str]] = {}  # number and last reason by site

    def note(self, what: str, *, address: str = "", site: str = "", **details: str | int) -> None:
        """Write a line; lines beyond `MAX_PER_MINUTE` of an address are only counted."""
        time = self._now().isoformat(timespec="milliseconds")
        if time[:16] != self._minute:
            self._begin_minute(time)
        if address:
            known = address in self._counts or len(self._counts) < MAX_ADDRESSES
            key = address if known else "others"
            self._counts[key] = self._counts.get(key, 0) + 1
            if self._counts[key] > MAX_PER_MINUTE:
                return
        self._write({"time": time, "what": what, "address": address, "site": site, **details})

    def refused(self, address: str, site: str, status: int, reason: str) -> None:
        """Record a refused request."""
        count, _ = self.refusals.get(site, (0, ""))
        if site and (count or len(self.refusals) < MAX_ADDRESSES):  # an unauthenticated caller may claim any name
            self.refusals[site] = count + 1, visible(reason, MAX_REASON)
        with log_names(run="") if status in STRANGERS else nullcontext():  # strangers do not appear in a run's log
            self.note("refused", address=address, site=site, status=status, reason=reason)

    def close(self) -> None:
        """Write the number of omitted lines, and close the file."""
        self._begin_minute(self._now().isoformat(timespec="milliseconds"))
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _begin_minute(self, time: str) -> None:
        for address, count in self._counts.items():
            if count > MAX_PER_MINUTE:
                self._write({"time": time, "what": "left out", "address": address, "lines": count - MAX_PER_MINUTE})
        self._counts, self._minute = {}, time[:16]

    def _write(self, line: dict[str, str | int]) -> None:
        words = {key: visible(value) if isinstance(value, str) else value for key, value in line.items() if value != ""}
        event = {key: value for key, value in words.items() if key not in ("time", "what")}
        _log.info("%s", words["what"], extra={"event": event})
        data = b"\n" * self._torn + json.dumps(words).encode() + b"\n"
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._torn = os.write(self._file, data) < len(data)
        except OSError as error:
            self._torn = self._file is not None
            if not self._broken:
                self._broken = True
                _log.warning("%s: cannot be written: %s; the run continues without it", self._path, error.strerror)
