"""Slow links: bytes leave at a limited rate and arrive after a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

MAX_PIECE, MIN_PIECE = 65536, 1024  # bytes of a piece
PIECE = 0.01  # seconds for sending a piece, within these sizes
AHEAD = 0.02  # seconds of sending planned ahead, as timers are late by a millisecond
ON_THE_WAY = 128  # maximum number of pieces in transit


class Gate:
    """A bandwidth limit.

    Args:
        rate: bytes per second.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free = 0.0

    def leave(self, size: int, now: float) -> float:
        """Return the time at which bytes that are ready now have left."""
        self._free = max(self._free, now) + size / self.rate
        return self._free


class Line:
    """One direction of a connection; `deliver` runs concurrently with the sender.

    Args:
        writer: destination of the bytes.
        gates: bandwidth limits, applied in parallel.
        delay: returns the delay of a piece in seconds; None delivers at once.
    """

    def __init__(self, writer: asyncio.StreamWriter, gates: Sequence[Gate], delay: Callable[[], float] | None) -> None:
        self._writer, self._gates, self._delay = writer, gates, delay
        slowest = min((gate.rate for gate in gates), default=float("inf"))
        self._piece = int(min(max(slowest * PIECE, MIN_PIECE), MAX_PIECE))
        self._arrives = 0.0
        self._way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(ON_THE_WAY)

    @property
    def shaped(self) -> bool:
        """Whether bytes are delivered later than they are sent."""
        return bool(self._gates) or self._delay is not None

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting while too many are in transit."""
        if not self.shaped:
            self._writer.write(data)
            await self._writer.drain()
            return
        clock = asyncio.get_running_loop().time
        for start in range(0, len(data), self._piece):
            piece, now = data[start : start + self._piece], clock()
            left = max((gate.leave(len(piece), now) for gate in self._gates), default=now)
            self._arrives = max(self._arrives, left + (self._delay() if self._delay else 0.0))
            await self._way.put((self._arrives, piece))
            if left - now > AHEAD:
                await asyncio.sleep(left - now - AHEAD)  # transmission time

    async def flush(self) -> None:
        """Wait until all sent bytes have arrived."""
        await self._way.join()
        await self._writer.drain()

    async def finish(self) -> None:
        """Wait for all bytes to arrive, then send EOF."""
        await self.flush()
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def deliver(self) -> None:
        """Write pieces at their time of arrival, forever."""
        clock = asyncio.get_running_loop().time
        while True:
            arrives, piece = await self._way.get()
            if (left := arrives - clock()) > 0:
                await asyncio.sleep(left)  # transit time
            self._writer.write(piece)
            await self._writer.drain()
            self._way.task_done()
