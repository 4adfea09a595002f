"""A real aggregator on a socket, in a thread, for tests that speak to it by hand."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn

from rankdad.common.protocol.codec import pack
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.rounds.hello import Hello
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.app import Routes
from rankdad.remote.application import application
from rankdad.remote.audit import Audit
from rankdad.remote.auth import Context, Identity
from rankdad.remote.connections import Timeouts
from rankdad.remote.live import Pages
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.process import OneRun
from rankdad.remote.proxies import Proxy
from rankdad.remote.run_session import RunSession
from rankdad.remote.server import Uvicorn, listen_behind
from rankdad.remote.web import HttpConnection
from tests.conftest import SITES, run_spec

SOCKET = "socket"  # beside a run's directory, where a proxy is asked for


@dataclass
class Served:
    """What a test sees of the aggregator."""

    aggregator: Aggregator
    host: RunSession
    port: int
    directory: Path

    def hello(self, site: str = "alpha", **changes: Any) -> bytes:
        """A site's first contribution."""
        plan = self.aggregator.plan
        fields = {
            **OUR_VERSION,
            "spec_sha256": plan.spec_sha256,
            "plan_sha256": plan.sha256(),
            "weights_sha256": plan.weights_sha256,
            "samples": ((10 + SITES.index(site), 2, 2),),
            "dropped": 0,
            "warnings": [],
        }
        return pack(Message(Kind.HELLO, 0, Hello.model_validate(fields | changes)), plan, up=True)

    def step(self, site: str, round_: int) -> bytes:
        """A site's contribution to a step, of gradients that are 0."""
        plan, state = self.aggregator.plan, self.aggregator.state
        payload = tuple(torch.zeros(slot.rows, *slot.widths) for slot in plan.layout(0, up=True).slots)
        weight = float(state.weight(plan.sites.index(site)))
        return pack(Message(Kind.STEP, round_, Step(weight, 0.0, 0.0, payload)), plan, up=True)

    def connect(self, seconds: float = 5.0) -> socket.socket:
        """A bare connection."""
        if not self.port:
            caller = socket.socket(socket.AF_UNIX)
            caller.settimeout(seconds)
            caller.connect(str(self.directory.parent / SOCKET))
            return caller
        return socket.create_connection(("127.0.0.1", self.port), seconds)

    def audited(self) -> list[dict[str, Any]]:
        """The audit log's lines."""
        path = self.directory / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, condition: Any) -> None:
        """Wait until the server has come so far."""
        deadline = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)  # the server is another thread


@contextlib.contextmanager
def serving(
    directory: Path,
    identity: Identity | None = None,
    secure: Callable[[], Context] | None = None,
    ledger: LedgerOptions | None = None,
    timeouts: Timeouts = Timeouts(),  # noqa: B008
    viewers: Mapping[str, str] | None = None,
    proxy: Proxy | None = None,
    **changes: Any,
) -> Iterator[Served]:
    """Serve a run's routes until the test ends."""
    spec = run_spec(**changes)
    aggregator = Aggregator(spec, Replica(spec), directory, time.perf_counter, ledger=ledger)
    if proxy is None:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    else:
        listening, port = listen_behind(directory.parent / SOCKET), 0
    with contextlib.closing(Audit(directory / "audit.jsonl")) as audit:
        known, unseen = identity or Identity(SITES), {"show": None}
        runs, ready = OneRun(aggregator, audit, known, viewers or {}, **unseen), threading.Event()  # type: ignore[arg-type]
        host, registry = runs.host, runs.registry
        registry.timeouts, host._seconds = timeouts, timeouts.hold
        runs.open.open(Routes(host, runs.identity, registry))
        app = application(runs, Pages(runs))
        options: dict[str, Any] = {"ws": "none", "loop": "none", "log_config": None, "lifespan": "off"}
        config = uvicorn.Config(app, http=HttpConnection, timeout_graceful_shutdown=1, log_level="critical", **options)
        web = Uvicorn(config, registry, secure, print, proxy)

        async def serve() -> None:
            task = asyncio.create_task(web.serve(sockets=[listening]))
            while not web.started:
                await asyncio.sleep(0.005)
            ready.set()
            while not task.done():
                host.tick()
                await asyncio.sleep(0.01)
            await host.close()

        def run() -> None:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert ready.wait(5)
            yield Served(aggregator, host, port, directory)
        finally:
            if runs.open.page is not None:
                runs.open.page.close()
            runs.tail.stop()
            web.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "run") as running:
        yield running


def ask(served: Served, verb: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    run = {"x-rankdad-run": served.aggregator.run_id}
    try:
        connection.request(verb, path, body, {key.replace("_", "-"): value for key, value in (run | headers).items()})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def reason(answer: tuple[int, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[1])["error"]


class Later(threading.Thread):
    """A request that is held."""

    def __init__(self, served: Served, *question: Any, **headers: Any) -> None:
        super().__init__()
        self.answer: tuple[int, bytes] = (0, b"")
        self._ask: Callable[[], tuple[int, bytes]] = lambda: ask(served, *question, **headers)
        self.start()

    def run(self) -> None:
        self.answer = self._ask()

    def wait(self) -> tuple[int, bytes]:
        self.join(10)
        return self.answer


def complete_hello(served: Served, **headers: str) -> bytes:
    """Let all sites say hello, and return the answer."""
    held = [Later(served, "POST", f"/rounds/{site}", served.hello(site), **headers) for site in SITES]
    answers = {request.wait() for request in held}
    ((status, update),) = answers
    assert status == 200
    return update
