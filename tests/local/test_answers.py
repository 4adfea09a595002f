"""A site trusts no answer: whatever bytes come back, it goes on or ends in one sentence, soon, in little memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.documents import MAX_DEPTH
from rankdad.common.errors import RankdadError
from rankdad.common.models import build_model
from rankdad.common.protocol.messages import Ask
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.run.replica import Replica
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.bounded import BoundedTransport, TooLargeError
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.http import AggregatorClient
from rankdad.local.drivers.http_library import httpcore, httpx
from rankdad.local.drivers.running import run_site
from rankdad.local.site import Site
from rankdad.local.taking_part import check_site
from tests.conftest import examples, run_document, run_spec, sampled, site_config, write_policy, write_site

Behaviour = Callable[[socket.socket], object]
OK, RUN_ID = b"HTTP/1.1 200 OK\r\n", "0123456789abcdef"
SOON = 6.0  # seconds: tries, patience and waits are less than one each
MOST_FLOODED = 64 << 20
TIMEOUT = httpx.Timeout(1.0).as_dict()


class Hostile:
    """Takes connections, reads a request's head, and does what it likes. Counts what it could send."""

    def __init__(self, behaviour: Behaviour, *, reads: bool = True) -> None:
        self.behaviour, self.reads = behaviour, reads
        self.heads: list[bytes] = []
        self.sent = 0
        self.ended = threading.Event()

    def __enter__(self) -> Hostile:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.thread.join()

    def _serve(self) -> None:
        while not self.ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self.listening.accept()
                connection.settimeout(2)
                with connection, contextlib.suppress(OSError):
                    while self.reads and b"\r\n\r\n" not in (head := connection.recv(65536)) and head:
                        pass
                    self.heads.append(head if self.reads else b"")
                    self.behaviour(connection)

    def flood(self, piece: bytes, first: bytes = b"") -> None:
        """Send without an end."""
        block = piece * (65536 // len(piece) + 1)

        def behaviour(connection: socket.socket) -> None:
            connection.sendall(first)
            while self.sent < MOST_FLOODED and not self.ended.is_set():
                connection.sendall(block)
                self.sent += len(block)

        self.behaviour = behaviour

    def drip(self, piece: bytes, first: bytes = b"") -> None:
        """Send a little now and then, for ever."""

        def behaviour(connection: socket.socket) -> None:
            connection.sendall(first)
            place = 0
            while not self.ended.wait(0.03):
                connection.sendall(piece[place : place + 1])
                place = (place + 1) % len(piece)

        self.behaviour = behaviour


def answers(data: bytes) -> Behaviour:
    return lambda connection: connection.sendall(data)


def whole(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    head = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, head, len(body), body)


@contextlib.contextmanager
def soon() -> Iterator[pytest.ExceptionInfo[RankdadError]]:
    began = time.monotonic()
    with pytest.raises(RankdadError) as error:
        yield error
    assert time.monotonic() - began < SOON
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 800


def config_of(url: str, folder: Path) -> SiteConfig:
    data, output, policy = str(folder / "data"), str(folder / "out"), write_policy(folder)
    return SiteConfig(name="alpha", aggregator=url, data=data, output=output, policy=policy, patience=0.3)


def client_of(config: SiteConfig) -> AggregatorClient:
    return AggregatorClient(config, prompt=0.4, held=0.4)


def ask(port: int, scheme: str = "http", patience: float = 0.3) -> str:
    """Ask for the run, which ends in a sentence."""
    config = site_config(port, aggregator=f"{scheme}://127.0.0.1:{port}", patience=patience)
    with client_of(config) as client, soon() as error:
        client.run()
    return str(error.value)


NO_AGGREGATOR = "is not an aggregator of rankdad"
BODIES: list[tuple[bytes, str]] = [
    (whole(b""), NO_AGGREGATOR),
    (whole(b'["a"]'), NO_AGGREGATOR),
    (whole(b'{"a":' * 100_000), NO_AGGREGATOR),
    (whole(b'{"id": ' + b"9" * 5000 + b"}"), NO_AGGREGATOR),
    (whole(b'{"id": "a", "id": "b"}'), NO_AGGREGATOR),
    (whole(b'{"id": "\xff"}'), NO_AGGREGATOR),
    (whole(b" " * ((8 << 20) + 1)), "answered with more than 8,388,608 bytes"),
    (whole(gzip.compress(b"{}")[:9], b"200 OK", b"content-encoding: gzip"), "in the encoding gzip"),
    (whole(b"", b"302 Found", b"location: http://evil.example/\x1b[31m"), "with a redirect to http://evil.example/"),
    (whole(b"", b"308 Moved"), "with a redirect to nowhere"),
    (whole(b"", b"201 Created"), "answered 201"),
    (whole(b'{"error": "\\u001b]0;owned\\nline two"}', b"403 No"), r"refused \(403\): \\x1b]0;owned\\nline"),
    (whole(b'{"error":' + b"[" * 100_000, b"403 No"), r"refused \(403\): "),
    (whole(b"x" * 100_000, b"403 No"), r"refused \(403\): xxx"),
    (whole(b"\xff\xfe\x1b[2J", b"403 No"), r"refused \(403\): "),
]


@pytest.mark.parametrize(("data", "said"), BODIES, ids=[f"{place}" for place in range(len(BODIES))])
def test_a_whole_answer_that_is_none_ends_in_a_sentence(data: bytes, said: str) -> None:
    with Hostile(answers(data)) as hostile:
        sentence = ask(hostile.port)
    assert len(hostile.heads) == 1, "nothing to try again"
    assert re.search(said, sentence), sentence


BROKEN: list[bytes] = [
    b"",
    b"SSH-2.0-OpenSSH_9.6\r\n\x1b[31m",
    b"\x15\x03\x01\x00\x02\x02\x46",
    b"HTTP/1.1 103 Early Hints\r\n\r\n" * 999,
    b"HTTP/9.9 200 OK\r\n\r\n",
    OK + b"content-length: 5\r\n\r\n{}",
    OK + b"content-length: " + b"9" * 5000 + b"\r\n\r\n{}",
    OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}",
    OK + b"x: y\r\n" * 200 + b"\r\n",
    whole(b"", b"503 \x1b[31mBusy"),
]


BROKEN_BY = [*(("http", each) for each in BROKEN), *(("https", each) for each in BROKEN[:3])]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "data"), BROKEN_BY, ids=range(len(BROKEN_BY)))
def test_a_broken_answer_is_tried_again_until_patience_ends(scheme: str, data: bytes) -> None:
    with Hostile(answers(data), reads=scheme == "http") as hostile:
        sentence = ask(hostile.port, scheme)
    assert re.search("no aggregator for 0 s|does not speak TLS|no TLS 1.2", sentence), sentence
    assert len(hostile.heads) > 1 or "TLS" in sentence


CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
ENDLESS: list[tuple[bytes, bytes]] = [
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    (b"", b"x"),
    (OK, b"x: y\r\n"),
    (OK + b"x: ", b"y"),
    (OK + b"content-length: 999999999999\r\n\r\n", b"x"),
    (CHUNKED, b"1\r\nx\r\n"),
    (CHUNKED + b"7fffffffffffffff\r\n", b"x"),
    (CHUNKED + b"2;", b"x"),
    (CHUNKED + b"0\r\n", b"A: b\r\n"),
]
ids = ["1xx", "status", "headers", "header", "length", "chunks", "chunk", "extension", "trailers"]


@pytest.mark.parametrize(("first", "piece"), ENDLESS, ids=ids)
def test_an_answer_without_an_end_is_left_while_memory_is_flat(first: bytes, piece: bytes) -> None:
    with Hostile(answers(b"")) as hostile:
        hostile.flood(piece, first)
        ask(hostile.port)
    assert hostile.sent < MOST_FLOODED / 2


@pytest.mark.slow
@pytest.mark.parametrize(("first", "piece"), sampled(ENDLESS, 10), ids=ids)
def test_an_answer_that_drips_does_not_outlast_patience(first: bytes, piece: bytes) -> None:
    with Hostile(answers(b"")) as hostile:
        hostile.drip(piece, first)
        assert "no aggregator for 0 s" in ask(hostile.port)


PAIRS = zip(
    ["http", "https", "http", "https"], [*[Hostile.flood] * 2, *[Hostile.drip] * 2], ENDLESS[1:4] * 2, strict=False
)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "how", "endless"), sampled(PAIRS, 4))
def test_nor_does_a_proxy(tmp_path: Path, scheme: str, how: Callable[..., None], endless: tuple[bytes, bytes]) -> None:
    with Hostile(answers(b"")) as hostile:
        how(hostile, endless[1], endless[0])
        proxy = f"http://127.0.0.1:{hostile.port}"
        config = config_of(f"{scheme}://far.example:1", tmp_path).model_copy(update={"proxy": proxy})
        with client_of(config) as client, soon():
            client.run()
    assert hostile.sent < MOST_FLOODED / 2


@pytest.mark.slow
def test_a_burst_pays_for_no_drip() -> None:
    with Hostile(answers(b"")) as hostile:
        hostile.drip(b"x", OK + b"content-length: 8000000\r\n\r\n" + b"x" * 7_000_000)
        assert "slowly" in ask(hostile.port)


@pytest.mark.slow
def test_tls_that_drips_or_babbles_ends_in_a_sentence() -> None:
    for first, piece in (
        (b"", b"\x16\x03\x03\x40\x00"),
        (b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x00"),
        (b"", b"\xff"),
    ):
        with Hostile(answers(b""), reads=False) as hostile:
            hostile.drip(piece, first)
            ask(hostile.port, "https")


def test_a_redirect_is_not_followed() -> None:
    with Hostile(answers(whole(b"{}"))) as target, Hostile(answers(b"")) as hostile:
        location = f"location: http://127.0.0.1:{target.port}/run".encode()
        for status in (b"301 Moved", b"302 Found", b"303 See", b"307 Temporary", b"308 Permanent"):
            hostile.behaviour = answers(whole(b"", status, location))
            assert "with a redirect to" in ask(hostile.port)
    assert not target.heads


@pytest.mark.slow
def test_a_contribution_that_nobody_takes_is_not_waited_for() -> None:
    def behaviour(connection: socket.socket) -> None:
        if hostile.heads[-1].startswith(b"GET"):
            connection.sendall(whole(json.dumps({"id": RUN_ID}).encode(), b"200 OK", b"connection: close"))
            return
        while not hostile.ended.wait(0.03):
            connection.recv(1)

    with Hostile(behaviour) as hostile, client_of(site_config(hostile.port, patience=0.4)) as client, soon():
        client.exchange(bytes(64 << 20), 0)


@pytest.mark.slow
def test_who_says_not_yet_at_once_is_not_asked_at_once_again() -> None:
    run = whole(json.dumps({"id": RUN_ID}).encode(), b"200 OK", b"connection: close")

    def behaviour(connection: socket.socket) -> None:
        first = hostile.heads[-1].startswith(b"GET /run")
        status = b"500 No" if len(hostile.heads) > 5 else b"202 Accepted"
        connection.sendall(run if first else whole(b"", status, b"connection: close"))

    with Hostile(behaviour) as hostile:
        began = time.monotonic()
        with client_of(site_config(hostile.port, patience=0.2)) as client, pytest.raises(RankdadError):
            client.exchange(b"contribution", 0)
    assert time.monotonic() - began > sum(0.1 * 2**tries for tries in range(4))


@pytest.mark.parametrize("update", [b"", b"\x80", b"\xdf\xff\xff\xff\xff", b"\x91" * 5000])
def test_an_update_that_is_none_names_its_round_and_ends_in_a_sentence(update: bytes) -> None:
    spec = run_spec()
    plan = make_plan(spec, build_model(spec))
    run = whole(json.dumps({"id": RUN_ID}).encode(), b"200 OK", b"connection: close")

    def behaviour(connection: socket.socket) -> None:
        first = hostile.heads[-1].startswith(b"GET /run")
        connection.sendall(run if first else whole(update, b"200 OK", b"connection: close"))

    def training() -> Any:
        yield Ask(7)

    with Hostile(behaviour) as hostile, soon() as error:
        drive(Site(training(), plan), client_of(site_config(hostile.port, patience=0.4)), "alpha")
    assert "the aggregator's update of round 7 cannot be used: " in str(error.value)


DOCUMENT = {**OUR_VERSION, "id": RUN_ID, "oldest": 0, "resumes": True, "run": run_document()}
BOUNDED: dict[str, dict[str, Any]] = {
    "threads": {"training": {"threads": 10**9}},
    "widths": {"model": {"name": "mlp", "hidden": [10**12]}},
    "weights": {"model": {"name": "mlp", "hidden": [10**6] * 1000}},
    "frames": {"model": {"name": "gru", "hidden": [8]}, "data": {"shape": [10**9, 1]}},
    "sites": {"federation": {"sites": [f"s{place}" for place in range(2000)]}},
    "key": {"\x1b[31m" + "k" * 100_000: 1},
}
OFFERED: dict[str, dict[str, Any]] = {
    **{name: {"run": run_document(**changes)} for name, changes in BOUNDED.items()},
    "no training": {"run": {"training": None}},
    "version": {"version": "\x1b]0;owned\x07" + "9" * 100_000},
    "run": {"run": [[]] * 100_000},
    "deep": {"run": json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))},
    "id": {"id": "../../\x1b[31m"},
    "oldest": {"oldest": {}, "resumes": []},
}


@pytest.mark.slow
@pytest.mark.parametrize("offered", OFFERED.values(), ids=OFFERED)
@pytest.mark.parametrize("take_part", [run_site, check_site])
def test_a_run_that_asks_for_the_impossible_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offered: dict[str, Any], take_part: Callable[..., Any]
) -> None:
    write_site(tmp_path / "data", 30, 0)
    Replica(run_spec())  # what an optimizer imports takes seconds, once
    body = json.dumps(DOCUMENT | offered).encode()

    def behaviour(connection: socket.socket) -> None:
        connection.sendall(
            whole(body if hostile.heads[-1].startswith(b"GET /run") else b"", b"200 OK", b"connection: close")
        )

    with Hostile(behaviour) as hostile:
        config = config_of(f"http://127.0.0.1:{hostile.port}", tmp_path)
        began = time.monotonic()
        try:
            take_part(config)
        except RankdadError as error:
            said = str(error)
        else:
            said = ""
    assert time.monotonic() - began < SOON
    assert said or take_part is check_site
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
    assert "\x1b" not in said
    assert len(said) < 3000


@given(
    st.binary()
    | st.lists(
        st.sampled_from(sorted({*BROKEN, *(first for first, _ in ENDLESS), b"\r\n", b"2\r\n{}\r\n", b"0\r\n"}))
    ).map(b"".join)
)
@settings(deadline=5000, max_examples=examples(300))
def test_whatever_bytes_come_they_are_an_answer_or_an_error_of_the_link(data: bytes) -> None:
    request = httpx.Request("GET", "http://far.example/run", extensions={"timeout": TIMEOUT, "size": 1000})
    transport = BoundedTransport(backend=httpcore.MockBackend([data]))
    with transport, contextlib.suppress(httpx.TransportError, TooLargeError):
        assert sum(map(len, transport.handle_request(request).iter_raw())) <= 1000
