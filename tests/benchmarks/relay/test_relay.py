"""The relay between clients and a server of bytes, all in one event loop: what each end sees of every fault."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import pytest

from benchmarks.relay.faults import RelaySpec
from benchmarks.relay.framing import Framer
from benchmarks.relay.relay import Relay, Streams
from rankdad.common.documents import validate
from rankdad.common.errors import SpecError

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789"


def request(body: bytes, path: str = "/") -> bytes:
    return f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Upstream:
    """Answers every request, and remembers what it received: the requests in their order, and each connection's end."""

    def __init__(self, answer: bytes = ANSWER) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.received: list[bytes] = []
        self.ends: list[str] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        framer, whole = Framer(), b""
        self.received.append(b"")
        place = len(self.received) - 1
        try:
            while data := await reader.read(65536):
                self.received[place] += data
                for piece in framer.split(data):
                    whole += piece.data
                    if piece.last:
                        self.requests.append(whole)
                        whole = b""
                        writer.write(self.answer)
            self.ends.append("eof")
        except ConnectionResetError:
            self.ends.append("reset")
        finally:
            writer.close()


Client = Callable[[], Awaitable[Streams]]


@asynccontextmanager
async def relayed(upstream: Any, **spec: Any) -> AsyncIterator[tuple[Relay, Client]]:
    server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0)
    relay = Relay(validate(RelaySpec, spec), *server.sockets[0].getsockname()[:2])
    listening, stop = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    serving = asyncio.create_task(relay.serve(listening, stop))
    address = listening.getsockname()[:2]
    clients: list[Streams] = []

    async def connect() -> Streams:
        clients.append(await asyncio.open_connection(*address))
        return clients[-1]

    try:
        async with asyncio.timeout(20):
            yield relay, connect
    finally:
        for _, writer in clients:
            writer.close()
        stop.set()
        await serving
        server.close()
        await asyncio.sleep(0.05)  # the upstream's connections end


async def ask(streams: Streams, message: bytes, answer: bytes = ANSWER) -> None:
    streams[1].write(message)
    assert await streams[0].readexactly(len(answer)) == answer


async def everything(streams: Streams) -> tuple[bytes, str]:
    """Read until the connection ends, and tell how it did."""
    data = b""
    try:
        while more := await streams[0].read(65536):
            data += more
    except ConnectionResetError:
        return data, "reset"
    return data, "eof"


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;x=y\r\nhello\r\nB\r\n\r\n\r\n\r\n\r\n123\r\n0\r\nend: 1\r\n\r\n"
)
CHUNKED_PUT = b"PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
STREAMS = {
    "requests": (request(b"one") + b"GET / HTTP/1.1\r\n\r\n" + request(b"\r\n\r\n" * 9), [3, 0, 36], True),
    "responses": (ANSWER + b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER + b"HTTP/1.1 204 No\r\n\r\n", [10, 10, 0], True),
    "chunks": (CHUNKED + ANSWER, [5, 10], True),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\nGET / HTTP/1.1\r\n\r\n", [0], False),
    "no HTTP": (b"\x16\x03\x01\r\n\r\nGET / HTTP/1.1\r\n\r\n", [], False),
    "a negative size": (CHUNKED.replace(b"5;", b"-5;"), [5], False),
    "no length": (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nlength\r\nGET / HTTP/1.1\r\n\r\n", [5], False),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_messages_are_found_however_the_bytes_arrive(name: str, step: int) -> None:
    stream, bodies, parses = STREAMS[name]
    framer, pieces = Framer(), []
    for start in range(0, len(stream), step):
        pieces += list(framer.split(stream[start : start + step]))
    assert b"".join(piece.data for piece in pieces) + framer.rest() == stream
    heads = [piece for piece in pieces if piece.size is not None]
    assert [piece.size - len(piece.data) for piece in heads if piece.size is not None] == bodies
    assert framer.parses == parses
    assert not parses or sum(piece.last for piece in pieces) == len(heads)


@pytest.mark.slow
def test_delay_is_one_way_and_keeps_the_order_of_bytes() -> None:
    async def main() -> None:
        body = bytes(range(256)) * 1000
        async with relayed(upstream := Upstream(), delay=50, jitter=20) as (_, connect):
            streams = await connect()
            for _ in range(2):
                began = time.perf_counter()
                await ask(streams, request(body))
                assert 0.1 <= time.perf_counter() - began < 0.35
        assert upstream.requests == [request(body)] * 2

    asyncio.run(main())


@pytest.mark.slow
def test_bandwidth_is_each_connections_own_and_the_shared_one_everybodys() -> None:
    async def main(clients: int, **spec: float) -> float:
        async with relayed(Upstream(), **spec) as (_, connect):
            streams = [await connect() for _ in range(clients)]
            began = time.perf_counter()
            await asyncio.gather(*(ask(each, request(bytes(200_000))) for each in streams))
            return time.perf_counter() - began

    assert 0.19 <= asyncio.run(main(2, bandwidth=1_000_000)) < 0.35
    assert 0.38 <= asyncio.run(main(2, shared_bandwidth=1_000_000)) < 0.6


@pytest.mark.parametrize(("kind", "end"), [("truncate", "eof"), ("reset", "reset")])
def test_a_request_breaks_off(kind: str, end: str) -> None:
    async def main() -> None:
        async with relayed(upstream := Upstream(), faults=[{"kind": kind, "at": [2], "after": 1000}]) as (
            relay,
            connect,
        ):
            streams = await connect()
            await ask(streams, request(b"whole"))
            streams[1].write(request(bytes(5000)))
            answer, how = await everything(streams)
            assert (answer, how) in [(b"", end), (b"", "reset")]
            await asyncio.sleep(0.05)  # the other end hears of it
            assert upstream.ends == [end]
            assert len(upstream.received[0]) == len(request(b"whole")) + 1000
            assert relay.report()["faults"] == {kind: {"count": 1, "requests": [2]}}

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "end"), [("truncate", "eof"), ("reset", "reset")])
@pytest.mark.parametrize("after", [0, 20, len(ANSWER) - 1])
def test_a_response_breaks_off(kind: str, end: str, after: int) -> None:
    async def main() -> None:
        rule = {"kind": kind, "direction": "response", "at": [2], "after": after}
        async with relayed(upstream := Upstream(), faults=[rule]) as (relay, connect):
            streams = await connect()
            await ask(streams, request(b"first"))
            streams[1].write(request(b"second"))
            answer, how = await everything(streams)
            assert how == end
            assert answer == ANSWER[:after] or kind == "reset"
            assert upstream.requests == [request(b"first"), request(b"second")]
            assert relay.report()["faults"] == {kind: {"count": 1, "responses": [2]}}

    asyncio.run(main())


@pytest.mark.parametrize(
    "message",
    [request(bytes(300_000)), request(b""), CHUNKED_PUT],
)
def test_a_request_is_sent_twice_and_answered_once(message: bytes) -> None:
    async def main() -> None:
        rule = {"kind": "duplicate", "at": [1]}
        async with relayed(upstream := Upstream(), faults=[rule]) as (relay, connect):
            streams = await connect()
            await ask(streams, message)
            await ask(streams, request(b"next"))
            await asyncio.sleep(0.05)  # the copy is answered
            assert upstream.ends == ["eof"], "the copy's connection"
            assert sorted(map(len, upstream.received)) == sorted([len(message), len(message + request(b"next"))])
            assert upstream.requests.count(message) == 2
            assert not streams[0]._buffer, "nothing but two answers"  # type: ignore[attr-defined]
            assert relay.report()["faults"] == {"duplicate": {"count": 1, "requests": [1]}}

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_dropped_message_is_followed_by_silence_and_the_end(direction: str) -> None:
    async def main() -> None:
        rule = {"kind": "drop", "direction": direction, "at": [2], "seconds": 0.3}
        async with relayed(upstream := Upstream(), faults=[rule]) as (relay, connect):
            streams = await connect()
            await ask(streams, request(b"first"))
            began = time.perf_counter()
            streams[1].write(request(b"second"))
            assert await everything(streams) == (b"", "eof")
            assert 0.3 <= time.perf_counter() - began < 0.8
            await asyncio.sleep(0.05)  # the other end hears of it
            assert len(upstream.requests) == (1 if direction == "request" else 2)
            assert relay.report()["faults"] == {"drop": {"count": 1, f"{direction}s": [2]}}

    asyncio.run(main())


@pytest.mark.slow
def test_a_request_is_overtaken_by_another_connections_or_waits_in_vain() -> None:
    async def main() -> None:
        rules = [{"kind": "reorder", "at": [1, 3], "seconds": 0.3}, {"kind": "delay", "at": [4], "seconds": 0.2}]
        async with relayed(upstream := Upstream(), faults=rules) as (relay, connect):
            first, second = await connect(), await connect()
            asking = asyncio.create_task(ask(first, request(b"first")))
            await asyncio.sleep(0.05)  # it is held back by now
            await ask(second, request(b"second"))
            await asking
            for least, body in ((0.3, b"third"), (0.2, b"fourth")):
                began = time.perf_counter()
                await ask(first, request(body))
                assert least <= time.perf_counter() - began < least + 0.3
        assert upstream.requests == [request(body) for body in (b"second", b"first", b"third", b"fourth")]
        assert relay.report()["faults"] == {
            "delay": {"count": 1, "requests": [4]},
            "not overtaken": {"count": 1, "requests": [3]},
            "reorder": {"count": 1, "requests": [1]},
        }

    asyncio.run(main())


def test_the_examples_are_relays() -> None:
    for path in files("benchmarks.relay").iterdir():
        if path.name.endswith(".json"):
            assert validate(RelaySpec, json.loads(path.read_text())) != RelaySpec()


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"kind": "reset"}, "selects no message, expected one of probability, every and at"),
        ({"kind": "duplicate", "at": [1], "direction": "response"}, 'faults[0].direction: got "response"'),
        ({"kind": "corrupt", "at": [1]}, "got the name 'corrupt', expected one of 'drop', 'delay'"),
        ({"kind": "drop", "at": [0]}, "faults[0].at[0]: got 0"),
        ({"kind": "drop", "at": [1], "sconds": 3}, "sconds: is not known here: did you mean seconds?"),
    ],
)
def test_a_wrong_rule_is_named(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        validate(RelaySpec, {"faults": [rule]})
    assert said in str(error.value)
