"""The platform against computations of a few lines: that it keeps the contract, and notices who does not."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from tests.coinstac.client import AbnormalCloseError, ComputationError, Limits, PlatformError
from tests.coinstac.nodes import Node, ProcessNode
from tests.coinstac.platform import Faults, Platform, shuffled_ids

Handler = Callable[["ThreadNode", ServerConnection, dict[str, Any]], Any]
SITES = [{"value": {"value": 3}}, {"value": {"value": 4}}, {"value": {"value": 5}}]


class ThreadNode(Node):
    """A computation in a thread; `handler` answers a message, and `lives` counts its starts."""

    def __init__(self, *place: Any, handler: Handler, compression: str | None = None) -> None:
        super().__init__(*place)
        self.handler, self.lives, self.probes, self.compression = handler, 0, 0, compression
        self.server: Server | None = None

    def directories(self) -> dict[str, str]:
        return {"outputDirectory": str(self.output)}

    def _start(self) -> None:
        self.close()
        self.lives += 1
        self.server = serve(self.connection, "127.0.0.1", 0, compression=self.compression, max_size=None)
        self.port = self.server.socket.getsockname()[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def connection(self, connection: ServerConnection) -> None:
        for text in connection:
            answer = self.handler(self, connection, json.loads(text))
            connection.send(answer if isinstance(answer, str | bytes) else json.dumps(answer))
            return
        self.probes += 1

    def alive(self) -> bool:
        return self.server is not None

    def kill(self) -> None:
        self.close()

    def _stop(self, grace: float) -> int:
        self.close()
        return 0

    def close(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server = None


def answer(output: Any, success: bool = False, **cache: Any) -> dict[str, Any]:
    return {"type": "stdout", "data": {"output": output, "cache": cache, "success": success}, "end": True}


def add(node: ThreadNode, connection: ServerConnection, message: dict[str, Any]) -> Any:
    """Three rounds of a sum; each cache names its last iteration, and one more key."""
    given, state = message["data"]["input"], message["data"]["state"]
    number = state["iteration"]
    if message["mode"] == "remote":
        return answer({"sum": sum(given.values())}, number == 3, iteration=number)
    return answer(given["value"] if number == 1 else given["sum"], **{"iteration": number, f"life{number}": node.lives})


def platform(folder: Path, handler: Handler = add, **options: Any) -> Platform:
    return Platform(SITES, folder, partial(ThreadNode, handler=handler), **options)


def test_three_iterations(tmp_path: Path) -> None:
    messages: list[tuple[str, dict[str, Any]]] = []

    def recording(node: ThreadNode, connection: ServerConnection, message: dict[str, Any]) -> Any:
        messages.append((node.name, message))
        return add(node, connection, message)

    run = platform(tmp_path, recording)
    assert run.run() == {"sum": 12 * 9}
    names = [name for name, _ in messages]
    assert [sorted(names[i : i + 4]) for i in (0, 4, 8)] == [["local0", "local1", "local2", "remote"]] * 3
    assert names[3::4] == ["remote"] * 3  # after all locals
    third = next(message for name, message in messages[8:] if name == "local1")
    node = run.nodes["local1"]
    assert third == {
        "mode": "local",
        "data": {
            "input": {"sum": 36},
            "cache": {"iteration": 2, "life1": 1, "life2": 1},
            "state": {
                "outputDirectory": str(node.output),
                "clientId": node.client_id,
                "iteration": 3,
                "owner": run.sites[0].client_id,
            },
        },
    }
    assert messages[3][1]["data"]["input"] == {site.client_id: i + 3 for i, site in enumerate(run.sites)}
    call = run.iterations[2].calls["local1"]
    assert call.bytes_in == len(json.dumps(third, separators=(",", ":")))
    assert call.cache == {"iteration": 3, "life1": 1, "life2": 1, "life3": 1}
    assert run.cache_bytes() == call.cache_bytes == len('{"iteration":3,"life1":1,"life2":1,"life3":1}')
    assert 0 < call.seconds < run.iterations[2].seconds
    assert [stop.status for stop in run.stops.values()] == [0] * 4
    assert all(isinstance(node, ThreadNode) and node.probes == 3 for node in run.sites)


def test_ids_are_not_in_the_order_of_the_sites() -> None:
    for count in (2, 3, 20):
        ids = shuffled_ids(count)
        assert len(set(ids)) == count
        assert ids != sorted(ids)


@pytest.mark.slow
def test_a_fresh_process_every_iteration(tmp_path: Path) -> None:
    run = platform(tmp_path, faults=Faults(fresh_every_iteration=True))
    assert run.run() == {"sum": 108}
    assert run.iterations[2].calls["local0"].cache == {"iteration": 3, "life1": 1, "life2": 2, "life3": 3}
    assert len(run.remote.accepted) == 3


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "during", "answered"])
def test_a_node_that_dies_is_replaced(tmp_path: Path, when: Any) -> None:
    seen, begun = list[int](), threading.Event()

    def slow(node: ThreadNode, connection: ServerConnection, message: dict[str, Any]) -> Any:
        if node.name == "local1" and message["data"]["state"]["iteration"] == 2:
            seen.append(node.lives)
            begun.set()
            if when == "during" and node.lives == 1:
                connection.recv()  # until the connection ends with the node
        return add(node, connection, message)

    run = platform(tmp_path, slow, faults=Faults(kills=[(2, "local1", when)], kill_after=begun))
    assert run.run() == {"sum": 108}
    assert seen == ([2] if when == "before" else [1, 2])
    assert len(run.nodes["local1"].accepted) == 2


def bad(reply: Any) -> Handler:
    def handler(node: ThreadNode, connection: ServerConnection, message: dict[str, Any]) -> Any:
        if node.name == "local1" and message["data"]["state"]["iteration"] == 2:
            if isinstance(reply, int):
                connection.close(reply)
            return reply
        return add(node, connection, message)

    return handler


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        ({"type": "stderr", "data": "no data", "code": 1, "end": True}, ComputationError, "^no data$"),
        ({"type": "stderr", "data": "no data", "end": True}, PlatformError, "without `code`"),
        ({"type": "stdout", "data": {"output": 1, "cache": {}}, "end": True}, PlatformError, "success"),
        (answer(1) | {"end": False}, PlatformError, "without `end`"),
        (answer(float("nan")), PlatformError, "NaN"),
        (answer(2**53 + 1), PlatformError, "9007199254740993 does not fit"),
        (json.dumps(answer(1)).encode(), PlatformError, "text message"),
        (answer("x" * 2000), PlatformError, "more than 2000 bytes"),
        (1000, PlatformError, "wait for ever"),
        (1011, AbnormalCloseError, "closed with 1011"),
    ],
)
def test_what_ends_a_run(tmp_path: Path, reply: Any, error: type[Exception], words: str) -> None:
    run = platform(tmp_path, bad(reply), limits=Limits(message=2000))
    with pytest.raises(error, match=words) as caught:
        run.run()
    assert caught.type is error
    assert run.errors.keys() == {"local1"}
    assert [sorted(iteration.calls) for iteration in run.iterations] == [
        ["local0", "local1", "local2", "remote"],
        ["local0", "local2"],
    ]
    assert run.stops.keys() == run.nodes.keys()


def test_too_large_a_message_to_a_node(tmp_path: Path) -> None:
    def large(node: ThreadNode, connection: ServerConnection, message: dict[str, Any]) -> Any:
        return answer("x" * 1000)

    with pytest.raises(PlatformError, match="remote: a message of 3"):
        platform(tmp_path, large, limits=Limits(message=2000)).run()


def test_deflate_is_to_be_declined(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="local0 took up per-message deflate"):
        Platform(SITES, tmp_path, partial(ThreadNode, handler=add, compression="deflate")).run()


def test_silence_ends(tmp_path: Path) -> None:
    def silent(node: ThreadNode, connection: ServerConnection, message: dict[str, Any]) -> Any:
        connection.recv()

    with pytest.raises(PlatformError, match=r"local0 did not answer in 0\.2 s"):
        platform(tmp_path, silent, limits=Limits(answer=0.2)).run()


def test_numbers_are_those_of_the_platform(tmp_path: Path) -> None:
    def numbers(node: ThreadNode, connection: ServerConnection, message: dict[str, Any]) -> Any:
        return answer([2.0, -0.0, 0.1, 2**53], message["mode"] == "remote")

    assert json.dumps(platform(tmp_path, numbers).run()) == "[2, 0, 0.1, 9007199254740992]"


def test_the_input_is_not_to_be_changed(tmp_path: Path) -> None:
    def writing(node: ThreadNode, connection: ServerConnection, message: dict[str, Any]) -> Any:
        (node.input / "data.csv").write_text("changed")
        return answer(1, True)

    run = platform(tmp_path, writing)
    (run.nodes["local0"].input / "data.csv").write_text("a,b")
    with pytest.raises(PlatformError, match="read-only"):
        run.run()


SERVER = """
    import argparse, json, os, signal, sys, time
    from websockets.sync.server import serve
    options = argparse.ArgumentParser()
    options.add_argument("--host", default="0.0.0.0")
    options.add_argument("--port", type=int, default=int(os.environ.get("COINSTAC_PORT", 8881)))
    options = options.parse_args()
    def handle(connection):
        for text in connection:
            message = json.loads(text)
            data = message["data"]
            folder, number = data["state"]["outputDirectory"], data["state"]["iteration"]
            with open(folder + "/log", "a") as log:
                log.write(f"{number} ")
            time.sleep(0.1)
            done = {"output": open(folder + "/log").read(), "cache": {"pid": os.getpid()}, "success": number == 2}
            connection.send(json.dumps({"type": "stdout", "data": done, "end": True}))
            return
    server = serve(handle, options.host, options.port, compression=None)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server.serve_forever()
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    path = tmp_path / "image" / "server.py"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(SERVER))
    return path


@pytest.mark.slow
def test_processes(tmp_path: Path, server: Path) -> None:
    # The first call is long enough that it has begun, even on a busy machine, when its process is killed.
    sleep = "time.sleep(1.5 if os.path.getsize(log.name) == 2 else 0)"
    server.write_text(server.read_text().replace("time.sleep(0.1)", sleep))
    start = partial(ProcessNode, command=[sys.executable, str(server)])
    faults = Faults(kills=[(1, "local1", "during"), (2, "remote", "before")], kill_after=1.0)
    run = Platform(SITES[:2], tmp_path / "run", start, faults=faults)
    began = time.perf_counter()
    assert run.run() == "1 2 "
    assert time.perf_counter() - began < 60
    assert [len(node.accepted) for node in run.nodes.values()] == [1, 2, 2]
    assert (run.nodes["local1"].output / "log").read_text() == "1 1 2 "
    assert {name: stop.status for name, stop in run.stops.items()} == {"local0": 0, "local1": 0, "remote": 0}
    assert max(stop.seconds for stop in run.stops.values()) < 5  # of 10
    assert not any(node.alive() for node in run.nodes.values())


@pytest.mark.slow
def test_singularity_leaves_the_old_process_running(tmp_path: Path, server: Path) -> None:
    start = partial(ProcessNode, command=[sys.executable, str(server)], port_in_environment=True)
    faults = Faults(fresh_every_iteration=True, leave_old_running=True)
    run = Platform(SITES[:1], tmp_path / "run", start, faults=faults)
    assert run.run() == "1 2 "
    pids = {iteration.calls["local0"].cache["pid"] for iteration in run.iterations}
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_a_process_that_does_not_mind_sigterm(tmp_path: Path, server: Path) -> None:
    server.write_text(server.read_text().replace("lambda *_: os._exit(0)", "signal.SIG_IGN"))
    start = partial(ProcessNode, command=[sys.executable, str(server)])
    run = Platform(SITES[:1], tmp_path / "run", start, limits=Limits(grace=0.2))
    run.run()
    assert [stop.status for stop in run.stops.values()] == [137, 137]
    assert all(0.2 <= stop.seconds < 5 for stop in run.stops.values())


def test_a_process_that_dies_at_once(tmp_path: Path) -> None:
    start = partial(ProcessNode, command=[sys.executable, "-c", "raise SystemExit('no such thing')"])
    run = Platform(SITES[:1], tmp_path, start)
    with pytest.raises(PlatformError, match="died before it listened"):
        run.run()
    assert run.nodes["local0"].log.read_text() == "no such thing\n"
    assert run.stops["local0"].status == 1
