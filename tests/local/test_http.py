"""The HTTP driver against a server that holds, refuses or babbles, and through a proxy."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import ssl
import threading
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.errors import SpecError, UnreachableError, UserError
from rankdad.common.models import build_model
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, Failure, Kind, Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.service import Reply
from rankdad.common.rounds.goodbye import Goodbye
from rankdad.common.run.weight_sketch import PARTS
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.http import AggregatorClient, RefusedError
from rankdad.local.drivers.http_library import httpx
from rankdad.local.drivers.service import ServiceClient
from rankdad.local.site import Site
from tests.conftest import run_spec, site_config
from tests.remote.certificates import Authority

RUN = (200, b'{"id": "0123456789abcdef"}')
PROXY_WORDS = "Basic bWU6c8OpY3JldA=="
NOT_YET, NOTHING = (202, b'{"status": "not yet"}'), (204, b"")


class Server(ThreadingHTTPServer):
    """Answers with (status, body), one after the other; None holds the request for two seconds."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[tuple[int, bytes] | None] = []
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.released = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.headers.append({key.lower(): value for key, value in self.headers.items()})
        reply = self.server.script.pop(0)
        if reply is None:
            self.server.released.wait(2)
            self.close_connection = True
            return
        self.send_response(reply[0])
        self.send_header("content-length", str(len(reply[1])))
        self.end_headers()
        self.wfile.write(reply[1])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.05,))
        thread.start()
        yield serving
        serving.released.set()
        serving.shutdown()
        thread.join()


def client_of(server: Server, patience: float = 1.0, **seconds: Any) -> AggregatorClient:
    return AggregatorClient(site_config(server.server_port, patience=patience), **seconds)


@pytest.mark.slow
def test_a_body_is_sent_once_however_long_the_others_take(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.script = [RUN, NOT_YET, NOT_YET, (200, b"update")]
    caplog.set_level(logging.INFO, "rankdad")
    with client_of(server, report=0.0) as client:
        assert client.exchange(b"contribution", 7) == b"update"
    assert server.asked == ["GET /run", "POST /rounds/alpha", "GET /rounds/alpha/7", "GET /rounds/alpha/7"]
    assert server.bodies == [b"contribution"]
    assert [request.get("x-rankdad-run") for request in server.headers] == [None] + ["0123456789abcdef"] * 3
    assert len({request["x-rankdad-process"] for request in server.headers}) == 1
    assert [line.split(" after")[0] for line in caplog.messages] == ["still waiting for the other sites"] * 2


@pytest.mark.slow
def test_a_body_that_was_lost_with_the_aggregator_is_sent_again(server: Server) -> None:
    server.script = [RUN, NOT_YET, NOTHING, (200, b"update")]
    with client_of(server) as client:
        assert client.exchange(b"contribution", 7) == b"update"
    assert server.bodies == [b"contribution"] * 2


@pytest.mark.slow
def test_a_silent_link_is_tried_again_and_not_for_ever(server: Server) -> None:
    server.script = [RUN, None, (200, b"update"), None, None, None, None]
    with client_of(server, patience=0.3, held=0.4) as client:
        assert client.exchange(b"first", 7) == b"update"
        with pytest.raises(UnreachableError, match="no answer within"):
            client.exchange(b"second", 8)
    assert server.bodies == [b"first", b"first", b"second", b"second", b"second"]


@pytest.mark.slow
def test_a_wait_for_other_sites_does_not_use_up_the_patience_with_an_aggregator_that_goes_away(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [RUN, None, (200, b"update")]  # held for two seconds, then cut off
    with client_of(server, patience=1.0) as client:
        assert client.exchange(b"contribution", 7) == b"update"
    assert ["(patience 1 s)" in line for line in caplog.messages] == [True]


def test_a_trainer_may_ask_whether_a_round_is_complete(server: Server) -> None:
    spec = run_spec()
    plan = make_plan(spec, build_model(spec))
    update = Message(Kind.GOODBYE, 3, Goodbye(weights_sha256="0" * 64, sketch=torch.zeros(PARTS, dtype=torch.float64)))
    told = pack(Message(Kind.FAILURE, 3, Failure(site="beta", reason="ill")), plan, up=False)
    server.script = [RUN, (200, told), NOTHING, NOT_YET, (200, told)]

    def training() -> Generator[Message | Ask, Message | None, list[Message | None]]:
        answers = []
        for question in (Ask(3), Ask(4), Ask(5), update):
            answers.append((yield question))
        return answers

    with client_of(server) as client:
        first, second, third, last = drive(Site(training(), plan), client, "alpha")
    assert first is not None
    assert last is not None
    assert (first.body, second, third) == (last.body, None, None)
    assert server.asked[1:] == [*(f"GET /rounds/alpha/{round_}" for round_ in (3, 4, 5)), "POST /rounds/alpha"]


def test_an_answer_has_a_site_remember_nothing() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, headers={"set-cookie": "who=alpha"}, content=RUN[1])

    with AggregatorClient(site_config(1), httpx.MockTransport(answer)) as client:
        assert client.run() == client.run()
    assert [str(request.url) for request in asked] == ["http://127.0.0.1:1/run"] * 2
    assert not any("cookie" in request.headers for request in asked)


def test_a_snapshot_is_asked_for(server: Server) -> None:
    server.script = [RUN, NOTHING, (200, b"state")]
    with client_of(server) as client:
        assert client.snapshot() is None
        assert client.snapshot() == b"state"
    assert server.asked[1:] == ["POST /snapshots/alpha"] * 2


@pytest.mark.slow
def test_a_request_that_waits_for_nobody_runs_out_of_patience(server: Server) -> None:
    server.script = [None] * 9
    with client_of(server, 0.2, prompt=0.4) as client, pytest.raises(UnreachableError, match="no answer within"):
        client.run()


@pytest.mark.slow
def test_server_errors_are_tried_again_and_refusals_are_not(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    taken_up = (503, b'{"error": "digits-1 is being taken up"}')
    server.script = [RUN, (503, b"busy"), taken_up, (200, b"update"), (409, b'{"error": "the run is in round 7"}')]
    with client_of(server) as client:
        assert client.exchange(b"first", 6) == b"update"
        with pytest.raises(RefusedError, match=r"refused \(409\): the run is in round 7"):
            client.exchange(b"second", 7)
    assert "answered 503; trying again" in caplog.messages[0]
    assert "answered 503: digits-1 is being taken up; trying again" in caplog.messages[1]


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconte", b"HTTP/1.1 409 No\r\n"])
def test_an_answer_whose_head_breaks_off_is_asked_for_again(head: bytes) -> None:
    def serve() -> None:
        run = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(RUN[1]), RUN[1])
        for answer in (run, head, b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nupdate"):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        with AggregatorClient(site_config(listening.getsockname()[1], patience=5.0)) as client:
            assert client.exchange(b"contribution", 0) == b"update"
        thread.join()


def test_a_refused_site_tells_the_aggregator_that_it_cannot_go_on(server: Server) -> None:
    spec = run_spec()
    plan = make_plan(spec, build_model(spec))
    server.script = [RUN, (422, b'{"error": "g: got inf", "code": "not-finite", "field": "g"}'), (200, b"")]

    def training() -> Generator[Message | Ask, Message | None, None]:
        yield Message(Kind.GOODBYE, 3, Goodbye(weights_sha256="0" * 64, sketch=torch.zeros(PARTS, dtype=torch.float64)))

    with client_of(server) as client, pytest.raises(RefusedError) as error:
        drive(Site(training(), plan), client, "alpha")
    assert (error.value.exit_code, error.value.code, error.value.field) == (1, "not-finite", "g")
    told = unpack(server.bodies[1], plan, up=True)
    assert told.round == 3
    assert isinstance(told.body, Failure)
    assert (told.body.code, told.body.field) == ("not-finite", "g")
    assert "g: got inf" in told.body.reason


def test_a_code_that_no_error_has_is_left_out(server: Server) -> None:
    server.script = [(422, b'{"error": "x", "code": "not-finite\\n", "field": "\\u001b[2J"}')]
    with client_of(server) as client, pytest.raises(RefusedError) as error:
        client.snapshot()
    assert (error.value.code, error.value.field) == ("refused", "\\x1b[2J")


@contextlib.contextmanager
def proxy(server: Server, heads: list[str], answer: bytes = b"200 OK") -> Iterator[int]:
    """A proxy that takes one CONNECT after the other to whatever name, and leads it to the server."""

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            near, _ = listening.accept()
            with near, socket.create_connection(("127.0.0.1", server.server_port)) as far:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += near.recv(65536)
                heads.append(head.decode())
                near.sendall(b"HTTP/1.0 " + answer + b"\r\n\r\n")
                back = threading.Thread(target=pump, args=(far, near))
                back.start()
                pump(near, far)
                back.join()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def config_of(port: int, **changes: Any) -> SiteConfig:
    fields = {"name": "alpha", "data": "data", "output": "out", "patience": 1.0}
    fields |= {"aggregator": "http://far.example:8765", "proxy": f"http://me:s%C3%A9cret@127.0.0.1:{port}"}
    return SiteConfig.model_validate(fields | changes)


def test_the_aggregator_is_reached_through_a_proxy_that_sees_no_more_than_its_name(
    server: Server, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("far", ["far.example"]))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.script = [RUN, (200, b"update")]
    heads: list[str] = []
    with proxy(server, heads) as port:
        config = config_of(port, aggregator="https://far.example:8765", ca=str(authority.pem))
        with AggregatorClient(config) as client:
            assert client.exchange(b"contribution", 0) == b"update"
    assert heads[0].startswith("CONNECT far.example:8765 HTTP/1")
    assert f"Proxy-Authorization: {PROXY_WORDS}" in heads[0]
    assert len(heads) == 1, "one connection for all"
    assert not any("proxy-authorization" in request for request in server.headers)


def test_without_encryption_a_proxy_is_asked_to_pass_every_request_on(server: Server) -> None:
    server.script = [RUN, (200, b"update")]
    with AggregatorClient(config_of(server.server_port)) as client:
        assert client.exchange(b"contribution", 0) == b"update"
    assert server.asked == ["GET http://far.example:8765/run", "POST http://far.example:8765/rounds/alpha"]
    assert [request["proxy-authorization"] for request in server.headers] == [PROXY_WORDS] * 2


def test_a_key_of_another_certificate_is_said_to_be_that(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (certificate, _), (_, key) = authority.issue("own", []), authority.issue("other", [])
    pair = {"ca": str(authority.pem), "certificate": str(certificate), "key": str(key)}
    with pytest.raises(UserError, match="the key belongs to another certificate") as error:
        AggregatorClient(config_of(1, aggregator="https://far.example:8765", **pair))
    assert error.value.code == "certificate-unusable"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("place", ["127.0.0.1:1", "proxy.invalid:3128"])
def test_a_proxy_that_is_not_there_is_named_and_not_the_aggregator(scheme: str, place: str) -> None:
    config = config_of(0, aggregator=f"{scheme}://far.example:8765", proxy=f"http://me:secret@{place}", patience=0.1)
    with AggregatorClient(config) as client, pytest.raises(UserError, match=place) as error:
        client.run()
    assert (error.value.code, error.value.field) == ("unreachable", "proxy")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_another_password_is_said_without_ours(
    server: Server, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    with proxy(server, [], b"407 Proxy Authentication Required\r\ncontent-length: 0") as port:
        client = AggregatorClient(config_of(port, aggregator=f"{scheme}://far.example:8765"))
        with client, pytest.raises(UserError, match="another user and password") as error:
            client.run()
    assert not caplog.messages
    assert "cret" not in str(error.value)


def test_a_token_travels_in_a_header_and_comes_from_a_file_or_the_environment(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("f" * 64 + "\n")
    server.script = [RUN, RUN]
    config = config_of(0, aggregator=f"http://127.0.0.1:{server.server_port}", proxy=None)
    with AggregatorClient(config.model_copy(update={"token_file": str(tmp_path / "token")})) as client:
        client.run()
    monkeypatch.setenv("RANKDAD_TOKEN", "e" * 64)
    with AggregatorClient(config) as client:
        client.run()
    assert [request["authorization"] for request in server.headers] == [f"Bearer {'f' * 64}", f"Bearer {'e' * 64}"]
    (tmp_path / "token").write_text("two lines\nof secrets")
    with pytest.raises(UserError, match="holds no token") as error:
        AggregatorClient(config.model_copy(update={"token_file": str(tmp_path / "token")}))
    assert "secrets" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregator": "http://far.example:8765"},
        {"aggregator": "http://127.0.0.1:999999"},
        {"aggregator": "https://far.example", "certificate": "a.pem"},
        {"aggregator": "http://127.0.0.1:1", "ca": "ca.pem"},
        {"proxy": "http://me:secret@proxy.example"},
        *(
            {"aggregator": f"{far}"}
            for far in ("https://me:secret@host:1", "https://host:1/?token=secret", "http://host#secret")
        ),
    ],
)
def test_a_site_file_that_would_be_unsafe_or_cannot_work_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Addresses hold no secret, since they are logged."""
    document = {"name": "alpha", "aggregator": "https://far.example", "data": "data", "output": "out"} | changes
    (tmp_path / "site.json").write_text(json.dumps(document))
    with pytest.raises(SpecError) as error:
        SiteConfig.read(tmp_path / "site.json")
    assert "secret" not in str(error.value)
    if changes.get("aggregator") == "http://far.example:8765":
        (tmp_path / "site.json").write_text(json.dumps(document | {"allow_plain_http": True}))
        assert SiteConfig.read(tmp_path / "site.json").allow_plain_http


def test_a_service_that_has_nothing_to_say_is_not_heard_for_long(server: Server) -> None:
    server.script = [(200, bytes(1 << 17))]
    reply = Reply(id="0123456789abcdef", answer="accepted")
    with ServiceClient(site_config(server.server_port)) as client, pytest.raises(UserError, match="than 65,536 bytes"):
        client.reply("small-1", reply)


@pytest.mark.slow
def test_who_answers_without_http_is_asked_about_https_until_somebody_has_answered(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A service with TLS hangs up on plain HTTP, and so does an aggregator that is killed."""
    server.script = [None, RUN, None, (200, b"update")]
    server.released.set()
    with client_of(server) as client:
        client.run()
        assert client.exchange(b"contribution", 0) == b"update"
    assert ["does its address begin with https://?" in line for line in caplog.messages] == [True, False]
