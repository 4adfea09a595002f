"""A TCP relay between sites and aggregator, with slow links and faults from a seeded script.

Without faults it passes on bytes without parsing, including TLS. With faults it parses requests and responses. It reads
no faster than it writes, so its memory is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.relay.faults import (
    IN_VAIN,
    Cut,
    Delay,
    Direction,
    Drop,
    Duplicate,
    Fault,
    RelaySpec,
    Reorder,
    Reset,
    Script,
)
from benchmarks.relay.framing import Framer
from benchmarks.relay.shaping import Gate, Line
from rankdad.common.seeds import derive

CHUNK = 65536  # bytes read at once

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _CutError(Exception):
    """A fault ends a connection."""

    def __init__(self, *, reset: bool = False) -> None:
        self.reset = reset


@dataclass
class _Connection:
    number: int
    requests: Framer = field(default_factory=Framer)
    unanswered: deque[int] = field(default_factory=deque)  # numbers of requests
    copy: Streams | None = None  # for the duplicate of the present request


@dataclass
class _Held:
    """A request that waits for another to pass it."""

    connection: int
    overtaken: asyncio.Event


class Relay:
    """Relays connections.

    Args:
        spec: delays and faults.
        host: the aggregator's.
        port: the aggregator's.
    """

    def __init__(self, spec: RelaySpec, host: str, port: int) -> None:
        self._spec, self._to = spec, (host, port)
        self._script = Script(spec)
        shared = spec.shared_bandwidth
        self._shared = {d: [Gate(shared)] if shared else [] for d in ("request", "response")}
        self._connections = self._requests = self._unparsed = 0
        self._bytes = {"request": 0, "response": 0}
        self._held: dict[int, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket, stop: asyncio.Event) -> None:
        """Relay all connections until `stop` is set."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(self._connect((reader, writer)))

        server = await asyncio.start_server(accept, sock=listening, limit=CHUNK)
        try:
            await stop.wait()
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def report(self) -> dict[str, Any]:
        """Return counts of traffic and faults."""
        return {
            "connections": self._connections,
            "unparsed_connections": self._unparsed,
            "requests": self._requests,
            "bytes": dict(self._bytes),
            "faults": self._script.counts,
        }

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, near: Streams) -> None:
        """Relay one connection to its end."""
        self._connections += 1
        connection = _Connection(self._connections)
        try:
            far = await asyncio.open_connection(*self._to, limit=CHUNK)
        except OSError:
            _close(near, reset=False)
            return
        up, down = self._line("request", connection, far), self._line("response", connection, near)
        pumps = [
            asyncio.create_task(self._carry("request", connection, near[0], up)),
            asyncio.create_task(self._carry("response", connection, far[0], down)),
        ]
        late = [asyncio.create_task(line.deliver()) for line in (up, down) if line.shaped]
        reset = False
        try:
            both: asyncio.Future[Any] = asyncio.gather(*pumps)
            done, _ = await asyncio.wait({both, *late}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except _CutError as cut:
            reset = cut.reset
        except OSError:
            pass  # one end has closed; the other follows
        finally:
            for task in (*pumps, *late):
                task.cancel()
            await asyncio.gather(*pumps, *late, return_exceptions=True)
            self._unparsed += not connection.requests.parses
            for streams in (near, far, connection.copy):
                if streams is not None:
                    _close(streams, reset=reset)

    def _line(self, direction: Direction, connection: _Connection, to: Streams) -> Line:
        spec, drawn = self._spec, Random(derive(self._spec.seed, "jitter", connection.number, direction))
        # asyncio sets this only for sockets with a protocol number, unlike those of `socket.create_server`.
        to[1].get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        to[1].transport.set_write_buffer_limits(0)  # drained bytes are sent and survive a reset
        gates = self._shared[direction] + ([Gate(spec.bandwidth)] if spec.bandwidth else [])
        late = spec.delay or spec.jitter
        return Line(to[1], gates, (lambda: (spec.delay + drawn.uniform(0, spec.jitter)) / 1000) if late else None)

    async def _carry(
        self, direction: Direction, connection: _Connection, reader: asyncio.StreamReader, line: Line
    ) -> None:
        """Relay one direction, message by message if there are faults."""
        if not self._spec.faults:
            while data := await reader.read(CHUNK):
                self._bytes[direction] += len(data)
                await line.send(data)
            await line.finish()
            return
        framer = connection.requests if direction == "request" else Framer()
        number, fault, left = 0, None, None  # of the present message; `left`: bytes before it breaks off
        while data := await reader.read(CHUNK):
            self._bytes[direction] += len(data)
            for piece in framer.split(data):
                if piece.size is not None:
                    number = self._number(direction, connection)
                    fault = self._script.choose(direction, number, connection.number) if number else None
                    left = await self._apply(fault, number, connection, reader, piece.size)
                if isinstance(fault, Cut) and left is not None and left <= len(piece.data):
                    await line.send(piece.data[:left])
                    await line.flush()
                    self._script.count(fault.kind, direction, number)
                    raise _CutError(reset=isinstance(fault, Reset))
                left = None if left is None else left - len(piece.data)
                await line.send(piece.data)
                if direction == "request":
                    await self._copy(connection, piece.data, last=piece.last)
                    if piece.last:
                        self._passed(number, connection)
        if rest := framer.rest():
            await line.send(rest)
        await line.finish()

    def _number(self, direction: Direction, connection: _Connection) -> int:
        """Return the number of a new message; 0 for a response without a request."""
        if direction == "response":
            return connection.unanswered.popleft() if connection.unanswered else 0
        self._requests += 1
        connection.unanswered.append(self._requests)
        return self._requests

    async def _apply(
        self, fault: Fault | None, number: int, connection: _Connection, reader: asyncio.StreamReader, size: int
    ) -> int | None:
        """Apply a fault before a message's first byte; return the number of bytes before a cut, if any.

        Raises:
            _CutError: the message is dropped.
        """
        if fault is None:
            return None
        if isinstance(fault, Cut):
            return fault.place(size, number, self._spec.seed)
        if isinstance(fault, Reorder):
            in_time = await self._overtaken(fault, number, connection)
            self._script.count(fault.kind if in_time else IN_VAIN, fault.direction, number)
            return None
        self._script.count(fault.kind, fault.direction, number)
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.seconds)  # the fault itself
        elif isinstance(fault, Drop):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(fault.seconds):
                    while await reader.read(CHUNK):
                        pass
            raise _CutError
        elif isinstance(fault, Duplicate):
            with contextlib.suppress(OSError):
                connection.copy = await asyncio.open_connection(*self._to, limit=CHUNK)
        return None

    async def _overtaken(self, fault: Reorder, number: int, connection: _Connection) -> bool:
        """Hold a request back; return whether another has passed it in time."""
        held = self._held[number] = _Held(connection.number, asyncio.Event())
        try:
            async with asyncio.timeout(fault.seconds):
                await held.overtaken.wait()
        except TimeoutError:
            return False
        finally:
            del self._held[number]
        return True

    def _passed(self, number: int, connection: _Connection) -> None:
        """Release requests that this one has overtaken."""
        for earlier, held in self._held.items():
            if earlier < number and held.connection != connection.number:
                held.overtaken.set()

    async def _copy(self, connection: _Connection, data: bytes, *, last: bool) -> None:
        """Send a request's bytes a second time."""
        if connection.copy is None:
            return
        with contextlib.suppress(OSError):  # errors of the copy do not matter
            connection.copy[1].write(data)
            await connection.copy[1].drain()
        if last:
            self._spawn(_hear_out(connection.copy))
            connection.copy = None


async def _hear_out(streams: Streams) -> None:
    """Discard one response."""
    framer = Framer()
    try:
        with contextlib.suppress(OSError):
            while data := await streams[0].read(CHUNK):
                if any(piece.last for piece in framer.split(data)):
                    break
    finally:
        _close(streams, reset=False)


def _close(streams: Streams, *, reset: bool) -> None:
    writer = streams[1]
    if reset:
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()  # drained bytes are still sent; nobody waits for others


def run_relay(
    spec: RelaySpec,
    listening: socket.socket,
    to: tuple[str, int],
    lifeline: int | None = None,
) -> dict[str, Any]:
    """Relay until Ctrl-C or SIGTERM; return the report with the processor time.

    Args:
        spec: delays and faults.
        listening: socket for the sites.
        to: host and port of the aggregator.
        lifeline: file descriptor that ends it by becoming readable.
    """
    relay, began = Relay(spec, *to), time.process_time()

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if lifeline is not None:
            loop.add_reader(lifeline, stop.set)
        await relay.serve(listening, stop)

    asyncio.run(serve())
    return relay.report() | {"processor_seconds": time.process_time() - began}


def show_report(report: dict[str, Any], say: Callable[[str], None]) -> None:
    """Print a report, one line for each kind of fault."""
    moved = report["bytes"]
    say(
        f"relay: {report['connections']} connections, {report['requests']} requests, "
        f"{moved['request']:,} bytes up, {moved['response']:,} down"
    )
    for kind, done in report["faults"].items():
        places = [f"{part} {', '.join(map(str, done[part]))}" for part in ("requests", "responses") if part in done]
        say(f"{kind}: {done['count']} ({'; '.join(places)})")
