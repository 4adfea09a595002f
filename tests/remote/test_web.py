"""Hostile connections: endless bodies, too many, or no HTTP at all. What nginx holds off is in `test_nginx`."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rankdad.remote.audit import MAX_PER_MINUTE, Audit
from rankdad.remote.auth import Identity, hashed
from rankdad.remote.connections import MAX_PER_SITE, MAX_UNAUTHENTICATED, ConnectionRegistry, Timeouts
from tests.conftest import SITES
from tests.remote.serving import Served, serving

TOKEN, CHUNKED = "a" * 64, "transfer-encoding: chunked\r\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    timeouts = Timeouts(refused=0.1)
    with serving(tmp_path / "run", Identity(SITES, dict.fromkeys(SITES, hashed(TOKEN))), timeouts=timeouts) as running:
        yield running


def head(served: Served, line: str = "POST /rounds/alpha", more: str = "") -> bytes:
    run = f"x-rankdad-run: {served.aggregator.run_id}\r\nauthorization: Bearer {TOKEN}\r\n"
    return f"{line} HTTP/1.1\r\nhost: localhost\r\n{run}{more}\r\n".encode()


def all_of(caller: socket.socket) -> bytes:
    """What comes until the other end closes."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while data := caller.recv(65536):
            answer += data
    return answer


def statuses(served: Served) -> list[int]:
    return [line["status"] for line in served.audited() if line["what"] == "refused"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /run\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\n\r\n",
        b"POST /rounds/alpha HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /rounds/alpha HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /rounds/alpha HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /run HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ],
)
def test_what_is_no_request_of_ours_is_never_an_error_of_the_server(served: Served, sent: bytes) -> None:
    with served.connect() as caller:
        caller.sendall(sent)
        found = re.match(rb"HTTP/1\.1 (\d+) ", all_of(caller))
    assert found is None or 400 <= int(found[1]) < 500
    with served.connect() as caller:
        caller.sendall(head(served, "GET /run", "connection: close\r\n"))
        assert all_of(caller).startswith(b"HTTP/1.1 200 ")


def resident() -> int:
    """Return this process's memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_an_endless_body_is_refused_early_and_takes_no_memory(served: Served, known: bool) -> None:
    chunk, before, sent = b"100000\r\n" + bytes(1 << 20) + b"\r\n", resident(), 0
    opening = head(served, more="transfer-encoding: chunked\r\n")
    with served.connect() as caller:
        caller.sendall(opening if known else opening.replace(TOKEN.encode(), b"b" * 64))
        with contextlib.suppress(ConnectionError):
            while sent < 1_500_000_000:
                caller.sendall(chunk)
                sent += len(chunk)
    assert sent < 1_500_000_000
    assert resident() - before < 60_000_000
    served.until(lambda: statuses(served))
    assert statuses(served) == [413 if known else 401]
    with served.connect() as caller:
        caller.sendall(head(served, more="content-length: 1500000000\r\n"))
        assert caller.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert served.aggregator.barrier.missing() == SITES


@pytest.mark.slow
def test_chunks_as_a_proxy_makes_them_are_taken(served: Served) -> None:
    body = served.hello("alpha")
    parts = [body[at : at + 64] for at in range(0, len(body), 64)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nx-checksum: 1\r\n\r\n"
    with served.connect() as caller:
        caller.sendall(head(served, more=CHUNKED) + chunks)
        served.until(lambda: served.aggregator.barrier.holds("alpha"))
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as connection:
        for _ in range(200):  # the bytes of one request do not count against the next
            connection.request("GET", "/status", headers={"authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            assert (answer.status, answer.read()[:1]) == (200, b"{")


def test_the_unauthenticated_are_few_and_a_site_gets_in(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        unauthenticated = [stack.enter_context(served.connect()) for _ in range(MAX_UNAUTHENTICATED + 6)]
        with served.connect() as site:
            site.sendall(head(served, "GET /run"))
            assert site.recv(4096).startswith(b"HTTP/1.1 200 ")
            assert all(all_of(oldest) == b"" for oldest in unauthenticated[:6])
            unauthenticated[-1].sendall(head(served, "GET /run"))
            assert unauthenticated[-1].recv(4096).startswith(b"HTTP/1.1 200 ")
        for stranger in unauthenticated:
            stranger.close()


@pytest.mark.slow
def test_a_fifth_request_of_a_site_takes_the_place_of_its_first(served: Served) -> None:
    body = served.hello("alpha")
    with contextlib.ExitStack() as stack:
        waiting: list[socket.socket] = []
        for _ in range(MAX_PER_SITE + 1):
            served.until(lambda: len(served.host._held.get("alpha", ())) == len(waiting))
            waiting.append(stack.enter_context(served.connect()))
            waiting[-1].sendall(head(served, more=f"content-length: {len(body)}\r\n") + body)
        answer = all_of(waiting[0])
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"more than 4 connections of one site" in answer
        served.until(lambda: len(served.host._held["alpha"]) == MAX_PER_SITE)
        waiting[1].close()
        served.until(lambda: len(served.host._held["alpha"]) == MAX_PER_SITE - 1)
    assert served.aggregator.barrier.missing() == SITES[1:]


def test_the_log_of_refusals_is_bounded_and_escaped(tmp_path: Path) -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    audit = Audit(tmp_path / "audit.jsonl", lambda: now[0])
    for _ in range(MAX_PER_MINUTE + 7):
        audit.refused("10.0.0.1", "a\n\x1b[2J", 422, "no")
    audit.refused("10.0.0.2", "", 401, "who?")
    now[0] += timedelta(minutes=1)
    audit.refused("10.0.0.1", "", 401, "again")
    audit.close()
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert len(lines) == MAX_PER_MINUTE + 3
    assert lines[0] == (
        '{"time": "2030-01-01T00:00:00.000+00:00", "what": "refused", "address": "10.0.0.1", "site": '
        '"a\\\\n\\\\x1b[2J", "status": 422, "reason": "no"}'
    )
    assert '"what": "left out", "address": "10.0.0.1", "lines": 7' in lines[-2]
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in (Path("/dev/full"), tmp_path / "nowhere" / "audit.jsonl"):
        audit = Audit(path)
        audit.note("run started")
        audit.note("run ended")
        audit.close()
    assert caplog.messages == [
        "/dev/full: cannot be written: No space left on device; the run continues without it",
        f"{tmp_path}/nowhere/audit.jsonl: cannot be written: No such file or directory; the run continues without it",
    ]


class Caller:
    def __init__(self, address: str) -> None:
        self.site, self.address, self.evicted = "", address, False

    def evict(self) -> None:
        self.evicted = True


def test_one_machine_with_many_connections_does_not_keep_others_out(tmp_path: Path) -> None:
    registry = ConnectionRegistry(Audit(tmp_path / "audit.jsonl"))
    first, crowd = Caller("10.0.0.1"), [Caller("10.0.0.2") for _ in range(3 * MAX_UNAUTHENTICATED)]
    for caller in (first, *crowd):
        registry.add(caller)
    assert not first.evicted
    assert [caller.evicted for caller in crowd].count(False) == MAX_UNAUTHENTICATED - 1
