"""`python -m benchmarks service`: a service's answers with many runs in its queue, and while rounds run beside it."""

from __future__ import annotations

import json
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console

from benchmarks.step import bare_clients, bare_run
from rankdad.common.protocol.service import Reply, Submission
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.local.drivers.http_library import httpx

MOST_OFFERS, MOST_HEALTHZ = 5.0, 50.0  # milliseconds that are promised
POLLS = 40  # of every site, between which memory is read
LOCKED, FREE = 1.0, 1.0  # seconds with and without the queue's lock held, alternating


@dataclass(frozen=True)
class Found:
    """What a service took.

    Args:
        offers: milliseconds of an agent's answer, median.
        grown: MiB by which memory has grown from the first half of the polls to the second.
        healthz: milliseconds of `/healthz` while rounds run, the 99th of a hundred.
        rounds: that were completed meanwhile.
    """

    offers: float
    grown: float
    healthz: float
    rounds: int


def bench_service(runs: int, sites: int, clients: int, seconds: float, console: Console) -> Found:
    """Measure and print both.

    Args:
        runs: in the queue.
        sites: that are named by each.
        clients: that train in one process.
        seconds: for which they do.
        console: where to print.
    """
    names = [f"site-{number + 1}" for number in range(max(sites, clients))]
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), names) as (url, memory):
        offers, grown = _polled(url, names[:sites], runs, memory)
        console.print(
            f"{runs:,} runs of {sites} sites: an agent is answered in {offers:.1f} ms; {grown:+.1f} MiB later"
        )
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), names) as (url, _):
        times, rounds = _beside_rounds(url, Path(folder), names[:clients], seconds)
        *_, late = quantiles(times, n=100)
        console.print(
            f"{clients} clients, {rounds} rounds in {seconds:g} s, a lock on the queue and reports: /healthz in "
            f"{median(times):.1f} ms, 99 of 100 within {late:.1f} ms"
        )
    return Found(offers, grown, late, rounds)


@contextmanager
def serving(folder: Path, sites: list[str]) -> Iterator[tuple[str, Callable[[], float]]]:
    """Start a service; yield its address, and a function that returns its memory in MiB."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    document = {"name": "bench", "aggregator": "https://unused.example", "sites": sites, "max_queue": 10_000}
    (folder / "consortium.json").write_text(json.dumps(document))
    words = ["serve", str(folder / "consortium.json"), "--output", str(folder / "service"), "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "rankdad", *words], stdout=log, stderr=log)

    def memory() -> float:
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        return pages * 4096 / 2**20

    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(trust_env=False) as client:
            _until(lambda: _answers(client, url))
        yield url, memory
    finally:
        process.terminate()
        process.wait(60)


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("the service does not come to it")
        time.sleep(0.05)


def _submitted(client: httpx.Client, url: str, spec: dict[str, Any]) -> tuple[str, str]:
    """Submit a run; return its name and number."""
    id_ = secrets.token_hex(8)
    content = Submission(id=id_, **OUR_VERSION, spec=spec).model_dump_json()
    return client.post(f"{url}/runs", content=content).raise_for_status().json()["run"], id_


def _polled(url: str, sites: list[str], runs: int, memory: Callable[[], float]) -> tuple[float, float]:
    """Return milliseconds of an agent's answer, and by how much memory grows."""
    spec = bare_run(len(sites), 4000).model_dump(mode="json")
    poll, times, used = json.dumps({**OUR_VERSION, "known": ""}), list[float](), list[float]()
    with httpx.Client(trust_env=False, timeout=60) as client:
        for _ in range(runs):
            _submitted(client, url, spec)
        for _ in range(POLLS):
            for site in sites:
                began = time.perf_counter()
                client.post(f"{url}/agents/{site}", content=poll).raise_for_status()
                times.append(1e3 * (time.perf_counter() - began))
            used.append(memory())
    return median(times), max(used[POLLS // 2 :]) - max(used[: POLLS // 2])


def _beside_rounds(url: str, folder: Path, sites: list[str], seconds: float) -> tuple[list[float], int]:
    """Return milliseconds of `/healthz` while sites train, reports are made and the lock is held; and the rounds."""
    over = threading.Event()
    with httpx.Client(trust_env=False, timeout=60) as client:
        ended = _ended_run(client, url, sites[:1])
        spec = bare_run(len(sites), 40_000)
        run, id_ = _submitted(client, url, spec.model_dump(mode="json"))
        _agree(client, url, run, id_, sites)
        done = bare_clients(f"{url}/runs/{run}", spec, over)
        work = (_hold_locks, folder / "service" / "queue.sqlite"), (_report, folder / "service" / "runs" / ended)
        threads = [threading.Thread(target=each, args=(path, over)) for each, path in work]
        for thread in threads:
            thread.start()
        _until(lambda: client.get(f"{url}/runs/{run}").json()["step"] > 0)
        first = client.get(f"{url}/runs/{run}").json()["step"]
        # in a process of its own: beside the clients' threads, it is their interpreter that would be measured
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            times = process.submit(_healthz, url, seconds).result()
        rounds = client.get(f"{url}/runs/{run}").json()["step"] - first
        over.set()
        for thread in threads:
            thread.join()
        client.post(f"{url}/runs/{run}/cancel")
        done()
    return times, rounds


def _healthz(url: str, seconds: float) -> list[float]:
    times, end = list[float](), time.monotonic() + seconds
    with httpx.Client(trust_env=False, timeout=60) as client:
        while time.monotonic() < end:
            began = time.perf_counter()
            client.get(f"{url}/healthz").raise_for_status()
            times.append(1e3 * (time.perf_counter() - began))
            time.sleep(0.02)
    return times


def _agree(client: httpx.Client, url: str, run: str, id_: str, sites: list[str]) -> None:
    for site in sites:
        reply = Reply(id=id_, answer="accepted", reason="").model_dump_json()
        client.post(f"{url}/agents/{site}/runs/{run}", content=reply).raise_for_status()


def _ended_run(client: httpx.Client, url: str, sites: list[str]) -> str:
    """Let a run end; return its name."""
    over, spec = threading.Event(), bare_run(len(sites), 4000)
    run, id_ = _submitted(client, url, spec.model_dump(mode="json"))
    _agree(client, url, run, id_, sites)
    done = bare_clients(f"{url}/runs/{run}", spec, over)
    _until(lambda: client.get(f"{url}/runs/{run}").json()["step"] > 5)
    over.set()
    client.post(f"{url}/runs/{run}/cancel")
    done()
    _until(lambda: client.get(f"{url}/runs/{run}").json()["state"] == "cancelled")
    return run


def _hold_locks(path: Path, over: threading.Event) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        while not over.is_set():
            database.execute("begin immediate")
            over.wait(LOCKED)
            database.execute("rollback")
            over.wait(FREE)


def _report(directory: Path, over: threading.Event) -> None:
    """Make reports, one after the other, in processes of their own, as the service does."""
    while not over.is_set():
        words = [sys.executable, "-m", "rankdad", "report", str(directory), "--output", str(directory / "made.html")]
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
