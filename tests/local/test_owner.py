"""Commands of a run's owner, without a service."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from rankdad.common.errors import UserError
from rankdad.common.protocol.service import State
from rankdad.local import owner
from rankdad.local.drivers.service import ServiceClient
from tests.conftest import site_config

LINES = [f"2026-11-25 10:00:0{second} INFO small: Köln: 患者 {second} ✓" for second in range(3)] + [
    "the last, cut off ä"
]
LOG = "\n".join(LINES).encode()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 41, 1 << 20])
def test_a_log_is_whole_lines_wherever_its_pieces_end(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Of a service that hands out so many bytes at once, and of a run that goes on meanwhile."""
    states = iter([State.RUNNING, State.RUNNING, *[State.ENDED] * 3])
    there = iter([len(LOG) // 3, len(LOG) // 2])

    class Service:
        grown = 0

        def run(self, run: str) -> SimpleNamespace:
            self.grown = next(there, len(LOG))
            return SimpleNamespace(state=next(states), reason="")

        def log(self, run: str, after: int) -> bytes:
            return LOG[after : min(after + size, self.grown)]

    @contextmanager
    def service(*arguments: object) -> Iterator[Service]:
        yield Service()

    monkeypatch.setattr(owner, "_service", service)
    monkeypatch.setattr(owner, "LOG_PERIOD", 0.0)
    app = typer.Typer()
    app.command()(owner.logs)
    done = CliRunner().invoke(app, ["small-1", "--to", "http://localhost", "--follow"])
    assert done.exit_code == 0, done.exception
    assert done.stdout.splitlines() == LINES


@pytest.mark.slow
def test_results_that_come_in_crumbs_break_off_in_a_sentence() -> None:
    def serve() -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200_000)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        with (
            ServiceClient(site_config(listening.getsockname()[1])) as client,
            pytest.raises(UserError, match="download was interrupted"),
            client.results("small-1") as pieces,
        ):
            list(pieces)
        thread.join()
