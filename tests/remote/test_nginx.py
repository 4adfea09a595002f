"""A real nginx, with the settings of compose.yaml, holds off what an unpatched server would not."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from rankdad.remote.auth import Identity, hashed
from rankdad.remote.connections import Timeouts
from rankdad.remote.proxies import Proxy
from tests.conftest import SITES
from tests.e2e.test_reverse_proxy import proxy, settings
from tests.ports import free_port
from tests.remote.certificates import Authority
from tests.remote.nginx import NGINX, started_by
from tests.remote.serving import SOCKET, Served, serving
from tests.remote.test_web import CHUNKED, all_of, head, resident, statuses

pytestmark = [
    pytest.mark.nginx,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx (Debian: apt-get install nginx)"),
]
TOKEN, OTHER = "a" * 64, "b" * 64
ENDLESS = {
    # what comes for ever after which beginning of a request
    "trailers": (CHUNKED, b"0\r\n", b"A: b\r\n"),
    "trailers of a body": (CHUNKED, b"4\r\nbody\r\n0\r\n", b"A: b\r\n"),
    "the name of a trailer": (CHUNKED, b"0\r\n", b"A" * 6),
    "the value of a trailer": (CHUNKED, b"0\r\nA: ", b"b" * 6),
    "an extension of a chunk": (CHUNKED, b"1;a=", b"b" * 6),
    "the size of a chunk": (CHUNKED, b"", b"0" * 6),
    "chunks of one byte": (CHUNKED, b"", b"1\r\nx\r\n"),
    "empty lines": ("connection: keep-alive\r\n", b"", b"\r\n"),
}
SHORT = {"client_header_timeout 10s": "client_header_timeout 1s", "client_body_timeout 10s": "client_body_timeout 1s"}


@dataclass
class Behind:
    """An aggregator behind a proxy."""

    served: Served
    connect: Callable[..., socket.socket]

    def answers(self) -> bool:
        """Whether somebody else is answered."""
        with self.connect() as caller:
            caller.sendall(head(self.served, "GET /run", "connection: close\r\n"))
            return all_of(caller).startswith(b"HTTP/1.1 200 ")


@pytest.fixture
def behind(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Behind]:
    kit, outside = tmp_path / "kit", free_port()
    authority = Authority(kit, "ca")
    authority.issue("server", ["127.0.0.1"])
    members = {site: authority.issue(site, [site]) for site in SITES[:2]}
    stranger = Authority(tmp_path / "other", "ca").issue(SITES[0], [SITES[0]])
    tokens = dict.fromkeys(SITES, hashed(TOKEN)) | {SITES[1]: hashed(OTHER)}
    timeouts = Timeouts(body=2, refused=0.1, hold=0.3)

    def connect(who: str | None = SITES[0]) -> socket.socket:
        context = ssl.create_default_context(cafile=str(authority.pem))
        if who is not None:
            context.load_cert_chain(*members.get(who, stranger))
        raw = socket.create_connection(("127.0.0.1", outside), 10)
        return context.wrap_socket(raw, server_hostname="127.0.0.1")

    identity, (run, at) = Identity(SITES, tokens, certificates=True), (tmp_path / "run", tmp_path / SOCKET)
    with serving(run, identity, timeouts=timeouts, proxy=Proxy(authority.pem)) as served:
        words = started_by(tmp_path, outside, kit, at, SHORT | getattr(request, "param", {}))
        with proxy(words, outside, tmp_path / "proxy.log"):
            yield Behind(served, connect)


def cut_off(caller: socket.socket, begun: bytes, endless: bytes) -> None:
    """Send without end, and see that nginx does not take it for long."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        caller.sendall(begun)
        while time.monotonic() - began < 20:
            caller.sendall(endless)
            time.sleep(0.001)  # of a fast network: without a pause nginx reads on and looks at no clock
        pytest.fail("it is cut off")


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET /ru", b"GET /run HTTP/1.1\r\nhost: x\r\nx: y"])
def test_headers_that_do_not_come_are_not_waited_for(behind: Behind, sent: bytes) -> None:
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(behind.connect()) for _ in range(20)]
        for caller in callers:
            caller.sendall(sent)
        assert behind.answers(), "meanwhile"
        for caller in callers:
            assert b" 200 " not in all_of(caller)
    assert 0.9 < time.monotonic() - began < 5
    assert statuses(behind.served) == [], "the aggregator has seen nothing of it"


@pytest.mark.slow
def test_headers_that_trickle_are_not_waited_for_either(behind: Behind) -> None:
    began = time.monotonic()
    with behind.connect() as slow, contextlib.suppress(OSError):
        for letter in head(behind.served, "GET /status") * 2:
            slow.sendall(bytes([letter]))
            time.sleep(0.02)
        pytest.fail("it is cut off")
    assert time.monotonic() - began < 4


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"y" * 10_000, b"y\r\nx: " * 1000], ids=["a value", "headers"])
def test_headers_without_end_are_refused(behind: Behind, piece: bytes) -> None:
    before = resident()
    with behind.connect() as caller:
        cut_off(caller, head(behind.served, "GET /run")[:-2] + b"x: ", piece)
    assert resident() - before < 20_000_000
    assert statuses(behind.served) == []
    assert behind.answers()


@pytest.mark.slow
def test_requests_before_the_last_is_answered_come_one_after_another(behind: Behind) -> None:
    body = behind.served.hello("alpha")
    one = head(behind.served, more=f"content-length: {len(body)}\r\n") + body
    with behind.connect() as caller:
        caller.sendall(one * 5)
        began, most, answer = time.monotonic(), 0, b""
        caller.settimeout(0.05)
        while answer.count(b"HTTP/1.1 202 ") < 5 and time.monotonic() - began < 10:
            most = max(most, len(behind.served.host._held.get("alpha", ())))
            with contextlib.suppress(TimeoutError):
                answer += caller.recv(65536)
        assert (answer.count(b"HTTP/1.1 202 "), most) == (5, 1)
        assert time.monotonic() - began > 1.2, "each is held, and none beside another"


@pytest.mark.slow
def test_requests_without_end_take_no_memory(behind: Behind) -> None:
    body = behind.served.hello("alpha")
    one = head(behind.served, more=f"content-length: {len(body)}\r\n") + body
    before, sent = resident(), 0
    with behind.connect() as caller:
        caller.settimeout(0.5)
        with contextlib.suppress(OSError):
            while sent < 50_000_000:
                caller.sendall(one * 100)
                sent += len(one) * 100
        assert sent < 50_000_000, "it is not read on"
        assert len(behind.served.host._held.get("alpha", ())) <= 1
        assert behind.answers()
    assert resident() - before < 20_000_000


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("what", ENDLESS)
def test_whatever_frames_a_request_is_cut_off(behind: Behind, what: str, known: bool) -> None:
    more, begun, endless = ENDLESS[what]
    opening = head(behind.served, "GET /status" if what == "empty lines" else "POST /rounds/alpha", more) + begun
    before = resident()
    with behind.connect() as caller:
        cut_off(caller, opening if known else opening.replace(TOKEN.encode(), b"c" * 64), endless * 1000)
    assert resident() - before < 30_000_000
    assert behind.answers()


@pytest.mark.slow
def test_a_body_that_goes_on_after_its_answer_is_cut(behind: Behind) -> None:
    with behind.connect() as caller:
        cut_off(caller, head(behind.served, "GET /status", CHUNKED), b"10000\r\n" + bytes(1 << 16) + b"\r\n")
    assert behind.answers()


@pytest.mark.slow
@pytest.mark.parametrize("behind", [{"limit_conn rankdad 100": "limit_conn rankdad 4"}], indirect=True)
def test_one_address_has_so_many_requests_at_once(behind: Behind) -> None:
    body = behind.served.hello("alpha")
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(behind.connect()) for _ in range(6)]
        for caller in callers:
            caller.sendall(head(behind.served, more=f"content-length: {len(body)}\r\nconnection: close\r\n") + body)
        found = [re.match(rb"HTTP/1\.1 (\d+) ", all_of(caller)) for caller in callers]
    assert sorted(int(one[1]) for one in found if one) == [202] * 4 + [429] * 2


@pytest.mark.slow
def test_who_has_no_certificate_of_the_consortium_does_not_reach_the_aggregator(behind: Behind) -> None:
    before = len(behind.served.audited())
    for who in (None, "stranger"):
        with behind.connect(who) as caller:
            caller.sendall(head(behind.served, "GET /run", "connection: close\r\n"))
            assert all_of(caller).startswith(b"HTTP/1.1 400 ")
    assert len(behind.served.audited()) == before
    assert behind.answers()


@pytest.mark.slow
def test_a_certificate_and_an_address_that_a_caller_writes_into_headers_are_not_passed_on(behind: Behind) -> None:
    other = quote((behind.served.directory.parent / "kit" / f"{SITES[1]}.pem").read_text(), safe="")
    for name in ("X-Client-Certificate", "x-client-certificate", "X_Client_Certificate"):
        forged = f"{name}: {other}\r\nX-Real-IP: 10.9.8.7\r\nconnection: close\r\n"
        asks = head(behind.served, "GET /run", forged)
        for token, status in ((TOKEN, 200), (OTHER, 403)):
            with behind.connect() as caller:
                caller.sendall(asks.replace(TOKEN.encode(), token.encode()))
                assert all_of(caller).startswith(b"HTTP/1.1 %d " % status), (name, token)
    refused = [line for line in behind.served.audited() if line["what"] == "refused"]
    assert {(line["status"], line["address"]) for line in refused} == {(403, "127.0.0.1")}


def test_the_documented_settings_have_the_limits_of_compose() -> None:
    def limits(text: str) -> set[str]:
        lines = (re.sub(" *#.*", "", line).strip() for line in text.splitlines())
        return {line for line in lines if re.match("(client|large|keepalive|lingering|reset|limit|proxy_[rbh])", line)}

    own = {line for line in limits((NGINX / "rankdad.conf").read_text()) if "X-" not in line or "Proto" in line}
    assert own == limits(settings("nginx", {}))
    assert len(own) == 16
