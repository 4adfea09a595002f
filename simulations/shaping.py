"""Slow links: bytes leave at a bandwidth, and arrive after a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

MAX_PIECE, MIN_PIECE = 65536, 1024  # bytes of a piece
PIECE = 0.01  # seconds that a piece takes to leave, within these sizes
AHEAD = 0.02  # seconds of sending that are planned in advance: timers are late by a millisecond, the rate must not be
ON_THE_WAY = 128  # pieces that have left and not arrived; with these on the way, the sender waits


class Gate:
    """A bandwidth: bytes leave one after the other.

    Args:
        rate: bytes per second.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free = 0.0

    def leave(self, size: int, now: float) -> float:
        """Return when bytes that are there now have left."""
        self._free = max(self._free, now) + size / self.rate
        return self._free


class Line:
    """One direction of a connection; `deliver` runs beside whoever sends.

    Args:
        writer: where the bytes arrive.
        gates: that they leave through, in parallel.
        delay: returns the seconds that a piece takes; null delivers at once.
    """

    def __init__(self, writer: asyncio.StreamWriter, gates: Sequence[Gate], delay: Callable[[], float] | None) -> None:
        self._writer, self._gates, self._delay = writer, gates, delay
        slowest = min((gate.rate for gate in gates), default=float("inf"))
        self._piece = int(min(max(slowest * PIECE, MIN_PIECE), MAX_PIECE))
        self._arrives = 0.0
        self._way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(ON_THE_WAY)

    @property
    def shaped(self) -> bool:
        """Whether anything has to be delivered later than it is sent."""
        return bool(self._gates) or self._delay is not None

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting while too many are on the way."""
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
                await asyncio.sleep(left - now - AHEAD)  # the bytes take their time to leave

    async def flush(self) -> None:
        """Wait until all that was sent has arrived."""
        await self._way.join()
        await self._writer.drain()

    async def finish(self) -> None:
        """Let all arrive, and say that no more will come."""
        await self.flush()
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def deliver(self) -> None:
        """Write what is on the way when it has arrived, without end."""
        clock = asyncio.get_running_loop().time
        while True:
            arrives, piece = await self._way.get()
            if (left := arrives - clock()) > 0:
                await asyncio.sleep(left)  # the bytes are on the way
            self._writer.write(piece)
            await self._writer.drain()
            self._way.task_done()
