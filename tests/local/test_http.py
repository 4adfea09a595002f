"""The HTTP driver against a server that holds, refuses or babbles."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from common.drift import SKETCH_BYTES
from common.errors import SpecError, UnreachableError, UserError
from common.messages import Ask, Failure, Goodbye, Kind, Message
from common.models import build_model
from common.plan import make_plan
from common.protocol import unpack
from local.drivers import http
from local.drivers.http import AggregatorClient, RefusedError, drive
from tests.conftest import run_spec


class Server(ThreadingHTTPServer):
    """Answers POSTs with (status, body), one after the other; None holds the request for two seconds."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[tuple[int, bytes] | None] = []
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


def client_of(server: Server, said: list[str], patience: float = 1.0) -> AggregatorClient:
    return AggregatorClient(f"http://127.0.0.1:{server.server_port}", "alpha", patience, said.append)


def test_a_held_request_is_waited_for_and_sent_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the others take, that is not the aggregator's silence: patience does not run out."""
    monkeypatch.setattr(http, "HELD", 0.5)
    server.script = [None, None, None, (200, b"update")]
    said: list[str] = []
    with client_of(server, said) as client:
        assert client.exchange(b"contribution") == b"update"
    assert server.bodies == [b"contribution"] * 4
    assert [line.split(" after")[0] for line in said] == ["still waiting for the other sites"] * 3


def test_a_request_that_waits_for_nobody_runs_out_of_patience(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PROMPT", 0.4)
    server.script = [None] * 9
    with client_of(server, []) as client, pytest.raises(UnreachableError, match="no answer within"):
        client.run()


def test_server_errors_are_tried_again_and_refusals_are_not(server: Server) -> None:
    server.script = [(503, b"busy"), (200, b"update"), (409, b'{"error": "the run is in round 7"}')]
    said: list[str] = []
    with client_of(server, said) as client:
        assert client.exchange(b"first") == b"update"
        with pytest.raises(RefusedError, match=r"refused \(409\): the run is in round 7"):
            client.exchange(b"second")
    assert "answered 503; trying again" in said[0]


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconte", b"HTTP/1.1 409 No\r\n"])
def test_an_answer_whose_head_breaks_off_is_asked_for_again(head: bytes) -> None:
    def serve() -> None:
        for answer in (head, b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nupdate"):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        with AggregatorClient(f"http://127.0.0.1:{listening.getsockname()[1]}", "alpha", 5.0, print) as client:
            assert client.exchange(b"contribution") == b"update"
        thread.join()


def test_a_refused_site_tells_the_aggregator_that_it_cannot_go_on(server: Server) -> None:
    spec = run_spec()
    plan = make_plan(spec, build_model(spec))
    server.script = [(422, b'{"error": "g: got inf"}'), (200, b"")]

    def training() -> Generator[Message | Ask, Message | None, None]:
        yield Message(Kind.GOODBYE, 3, Goodbye(weights_sha256="0" * 64, sketch=bytes(SKETCH_BYTES)))

    with client_of(server, []) as client, pytest.raises(RefusedError) as error:
        drive(training(), client, plan, "alpha")
    assert error.value.exit_code == 1
    told = unpack(server.bodies[1], plan, up=True)
    assert told.round == 3
    assert isinstance(told.body, Failure)
    assert "g: got inf" in told.body.reason


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[1]", b""])
def test_something_else_at_the_address_is_said(server: Server, body: bytes) -> None:
    server.script = [(200, body)]
    with client_of(server, []) as client, pytest.raises(UserError, match="not an aggregator of rankdad"):
        client.run()


def test_an_address_that_is_none_is_said() -> None:
    with pytest.raises(SpecError, match="is not an address"):
        AggregatorClient("http://127.0.0.1:999999", "alpha", 1.0, print)
