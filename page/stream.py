"""What viewers receive: everything when they come, then once a second what has changed, made once for all of them."""

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

PERIOD = 1.0  # seconds between two events
MAX_VIEWERS = 50  # streams of one viewer at once
MAX_BEHIND = 30  # events that a viewer has not taken: its stream is then ended, and it asks for everything again
_log = logging.getLogger(__name__)


class Stream:
    """Tells viewers of a run. Without any it does nothing.

    Args:
        document: returns where the run stands, by part; a part is told of when it has changed.
        history: the run's curves.
        period: seconds between two events.
        everybody: how many look on at this and at other streams, by viewer, if the limit is one for all of them.
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
        self._told: dict[str, str] = {}  # parts as JSON
        self._seen: dict[str, Seen] = {}
        self._whole: str | None = None  # made since the last event
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False

    def is_full(self, viewer: str) -> bool:
        """Tell whether a viewer has as many streams as one may have."""
        return self._everybody[viewer] >= MAX_VIEWERS

    def whole(self) -> str:
        """Return everything as JSON. What is told next fits behind it."""
        if self._whole is None:
            curves, _ = self._history.patches({})
            self._whole = _joined({**self._parts(), "curves": curves, "now": f"{time.time():.3f}"})
            if self._ticking is None:  # nobody is told of changes: those since now are new to everybody
                made, self._whole = self._whole, None
                return made
        return self._whole

    async def events(self, viewer: str = "") -> AsyncGenerator[bytes]:
        """Yield server-sent events until the stream is closed; none if the viewer has too many streams by now."""
        if self.is_full(viewer):  # of many who ask at once all are let in before the first is told anything
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
        """Tell the last of it, and end all streams."""
        if self._closed:
            return
        if self._viewers:
            self._tell()
        self._closed = True
        for queue in self._viewers:
            with contextlib.suppress(asyncio.QueueFull):  # whose viewer does not wait for it
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
            except Exception:  # a fault of the page's is not the run's
                _log.exception("what the page shows cannot be made; the run goes on")

    def _tell(self) -> None:
        """Tell all viewers what has changed."""
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
