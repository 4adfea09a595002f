"""The page's document for viewers: first the whole, then changes once a second, rendered once for all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

from rankdad.page.history import History, Seen

PERIOD = 1.0  # seconds between events
MAX_VIEWERS = 50  # concurrent streams of one viewer
MAX_BEHIND = 30  # queued events, after which a stream ends and the viewer reloads
_log = logging.getLogger(__name__)


class Stream:
    """Streams a document to viewers. Without viewers it does nothing.

    Args:
        document: returns the document by part; changed parts are sent.
        history: the run's curves.
        period: seconds between events.
        everybody: counts of streams by viewer, shared by several pages with a common limit.
    """

    def __init__(
        self,
        document: Callable[[], dict[str, Any]],
        history: History,
        period: float = PERIOD,
        everybody: Counter[str] | None = None,
    ) -> None:
        self._document, self._history, self._period = document, history, period
        self._everybody = Counter[str]() if everybody is None else everybody
        self._viewers: dict[asyncio.Queue[bytes | None], str] = {}
        self._told: dict[str, str] = {}  # sent parts as JSON
        self._seen: dict[str, Seen] = {}
        self._whole: str | None = None  # cached since the last event
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False

    def is_full(self, viewer: str) -> bool:
        """Return whether a viewer has the maximum number of streams."""
        return self._everybody[viewer] >= MAX_VIEWERS

    def whole(self) -> str:
        """Return the whole document as JSON, consistent with the next change."""
        if self._whole is None:
            curves, _ = self._history.patches({})
            self._whole = _joined({**self._parts(), "curves": curves, "now": f"{time.time():.3f}"})
            if self._ticking is None:  # no viewers: do not cache
                made, self._whole = self._whole, None
                return made
        return self._whole

    async def events(self, viewer: str = "") -> AsyncGenerator[bytes]:
        """Yield server-sent events until the stream is closed; none if the viewer has too many streams."""
        if self.is_full(viewer):  # concurrent requests may all pass the first check
            return
        queue = asyncio.Queue[bytes | None](MAX_BEHIND)
        if self._ticking is None and not self._closed:
            self._told, (_, self._seen) = self._parts(), self._history.patches({})
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        self._viewers[queue] = viewer
        self._everybody[viewer] += 1
        try:
            yield _event("whole", self.whole())
            while not (self._closed and queue.empty()) and (event := await queue.get()) is not None:
                yield event
            if self._closed:
                yield _event("end", "{}")
        finally:
            self._forget(queue)
            if not self._viewers and self._ticking is not None:
                self._ticking.cancel()
                self._ticking, self._whole = None, None

    def close(self) -> None:
        """Send the last changes, and end all streams."""
        if self._closed:
            return
        if self._viewers:
            self._tell()
        self._closed = True
        for queue in self._viewers:
            with contextlib.suppress(asyncio.QueueFull):  # this viewer is not waiting
                queue.put_nowait(None)

    def _forget(self, queue: asyncio.Queue[bytes | None]) -> None:
        viewer = self._viewers.pop(queue, None)
        if viewer is not None:
            self._everybody[viewer] -= 1
            if not self._everybody[viewer]:
                del self._everybody[viewer]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            try:
                self._tell()
            except Exception:  # errors of the page do not affect the run
                _log.exception("the page cannot be updated; the run continues")

    def _tell(self) -> None:
        """Send changes to all viewers."""
        parts = self._parts()
        curves, self._seen = self._history.patches(self._seen)
        changed = {name: text for name, text in parts.items() if self._told.get(name) != text}
        self._told, self._whole = parts, None
        if curves != "{}":
            changed["curves"] = curves
        event = _event("change", _joined(changed)) if changed else b": nothing\n\n"
        for queue in list(self._viewers):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._forget(queue)
                queue.get_nowait()
                queue.put_nowait(None)

    def _parts(self) -> dict[str, str]:
        return {name: json.dumps(part, separators=(",", ":")) for name, part in self._document().items()}


def _joined(parts: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in parts.items()) + "}"


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
