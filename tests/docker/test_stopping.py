"""`docker stop` ends a container within six seconds, whatever it is at, and started again it goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rankdad.remote.tables import count_of
from tests.coinstac.client import Limits, exchange, probe
from tests.coinstac.nodes import ContainerNode
from tests.conftest import run_document, write_policy, write_site
from tests.docker.images import STOP, container, docker, image, logs_of, network, stop, wait_for
from tests.platforms.test_service import platform_of, small, write_member

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.docker, pytest.mark.timeout(600)]

DNS = ("--dns", "127.0.0.1", "--dns-opt", "timeout:1", "--dns-opt", "attempts:1")  # as in compose.yaml
SITES = ("site-0", "site-1")
DEAF = """
import ctypes, signal

def make():
    signal.signal(signal.SIGTERM, lambda *_: None)  # does not run before the call into C returns, which it never does
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    print("in C", flush=True)
    while lock(mutex) == 0:
        pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is mounted as /run: a long run of two sites, their data, and a factory that hears no signal."""
    folder = tmp_path_factory.mktemp("run")
    training = {"epochs": 100_000, "batch_size": 8}
    (folder / "run.json").write_text(json.dumps(run_document(federation={"sites": SITES}, training=training)))
    (folder / "mine.py").write_text(DEAF)
    for place, name in enumerate(SITES):
        write_site(folder / name, 40, place)
        write_policy(folder)
        site = {"name": name, "aggregator": "http://aggregator:8765", "data": name, "output": f"out/{name}"}
        site["policy"] = "policy.json"
        (folder / f"{name}.json").write_text(json.dumps(site | {"allow_plain_http": True}))
    (folder / "out").mkdir()
    for path in (folder, folder / "out"):
        path.chmod(0o777)
    return folder


@pytest.fixture(scope="module")
def net() -> Iterator[str]:
    with network() as name:
        yield name


def test_parties_of_a_run_stop_in_every_phase_and_go_on(folder: Path, net: str) -> None:
    mounts = ("--volume", f"{folder}:/run", "--network", net, *DNS)
    serve = ("aggregator", "/run/run.json", "--output", "/run/out/run", "--host", "0.0.0.0")
    plain = ("--exposed", "--allow-plain-http", "--allow-anyone")

    def steps() -> int:
        return count_of(folder / "out" / "run", "steps")

    with (
        container(*mounts, image(), "site", "/run/site-0.json") as one,
        container(*mounts, image(), "site", "/run/site-1.json") as other,
    ):

        def train() -> None:
            so_far = steps()
            wait_for(lambda: steps() > so_far + 20, 60, lambda: logs_of(one) + logs_of(other))

        wait_for(lambda: "trying" in logs_of(one), 60, lambda: logs_of(one))
        stop(one)  # it waits for an aggregator whose name nobody knows
        with container(*mounts, "--network-alias", "aggregator", image(), *serve, *plain) as aggregator:
            docker("start", one)
            train()
            stop(aggregator)  # rounds go on
            time.sleep(1)
            stop(one)  # in mid-run, and the aggregator is gone
            docker("start", aggregator, one)
            train()
            stop(one)  # it trains, and writes before it leaves
            assert list((folder / "out" / "site-0").rglob("*checkpoint*"))
            time.sleep(1)
            stop(other)  # it waits for the other site
            stop(aggregator)  # it waits for both
            docker("start", aggregator, one, other)
            train()


@pytest.mark.parametrize("seconds", [0.1, 1.2])
def test_a_container_that_has_just_started_stops_at_once(folder: Path, seconds: float) -> None:
    with container("--volume", f"{folder}:/run:ro", image(), "check", "/run/run.json") as name:
        time.sleep(seconds)
        stop(name)


def test_a_command_that_does_not_hear_the_signal_is_ended(folder: Path) -> None:
    factory = ("--set", 'model={"name": "factory", "factory": "mine:make"}', "--allow-factory", "mine:make")
    with container("--volume", f"{folder}:/models:ro", image(), "check", "/models/run.json", *factory) as name:
        wait_for(lambda: "in C" in logs_of(name), 60, lambda: logs_of(name))
        stop(name)


def test_the_platforms_service_stops_while_it_computes(tmp_path: Path) -> None:
    _, form = small(1)
    platform = platform_of(form, tmp_path / "platform", write_member, start=partial(ContainerNode, image=image()))
    (node,) = platform.sites

    async def stop_in_the_middle() -> None:
        node.start()
        await probe(node, Limits())
        given = platform.inputs[0]
        state = node.directories() | {"clientId": node.client_id, "iteration": 1}
        message = json.dumps({"mode": "local", "data": {"input": given, "cache": {}, "state": state}})
        waiting = asyncio.create_task(exchange(node, message, Limits()))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        ended = await asyncio.to_thread(node.stop, 10)
        assert ended.seconds < STOP
        assert ended.status == 0
        await asyncio.gather(waiting, return_exceptions=True)

    try:
        asyncio.run(stop_in_the_middle())
    finally:
        node.close()
