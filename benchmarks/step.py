"""`python -m benchmarks step`: time of a step by part, and its excess over the floor of the same bytes."""

from __future__ import annotations

import contextlib
import csv
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError, UserError
from rankdad.common.logs import LogOptions, set_up
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.rounds.hello import Hello
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.http import AggregatorClient
from rankdad.local.site import Site
from rankdad.remote.journal import PAGE
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.run_file import JOURNAL_PAGES
from rankdad.simulations.simulator import import_before_forking, simulate
from rankdad.simulations.spec import SimulationFile

WARM_UP = 20  # steps left out of every figure
STRETCHES = ("compute", "reduce", "pack", "wait")  # of a site's step
REPETITIONS = 5  # of each kind of barrier, in turn, so that a slow spell of the machine meets all of them


@dataclass(frozen=True)
class Barriers:
    """Milliseconds per step of the same bytes through several barriers, and the median ratio of two of them.

    Args:
        ours: client, protocol, barrier, averaging and replica of the product, without any training.
        ledger: the same with everything written to the ledger.
        http: `httpx.Client` and a bare FastAPI barrier.
        streams: raw asyncio streams.
        database: the same bytes committed to SQLite by themselves, with `synchronous=FULL`.
        ratio: ours over http, median over repetitions.
        ledger_ratio: ledger over http and database, likewise.
    """

    ours: float
    ledger: float
    http: float
    streams: float
    database: float
    ratio: float
    ledger_ratio: float


def bench_step(file: SimulationFile, counts: list[int], size: int, steps: int, console: Console) -> list[Barriers]:
    """Measure and print both tables.

    Args:
        file: simulation whose steps are taken apart.
        counts: numbers of sites.
        size: bytes of the payload through the bare barriers.
        steps: per repetition.
        console: where to print.
    """
    import benchmarks.floor  # noqa: F401

    import_before_forking()
    split = Table("sites", "step", "compute", "reduction", "packing", "waiting", "aggregator's reduction", "up", "down")
    bare = Table(
        "sites", "ours", "with ledger", "httpx + FastAPI", "streams", "SQLite", "ours / httpx", "ledger / both"
    )
    results = []
    for count in counts:
        split.add_row(str(count), *measure_step(file, count))
        found = measure_barriers(count, size, steps)
        results.append(found)
        bare.add_row(str(count), *(f"{figure:.2f}" for figure in astuple(found)))
    console.print(f"One step of {file.run.name}, {file.run.method.name}: median milliseconds of a site; bytes per site")
    console.print(split)
    console.print(f"The same {size} bytes each way and no training: median milliseconds per step")
    console.print(bare)
    return results


def measure_step(file: SimulationFile, sites: int) -> list[str]:
    """Run a simulation for ten steps or more, and return the medians of a site's stretches."""
    run = file.run.model_dump(mode="json")
    run["training"]["epochs"] = 2 + sites // 4  # the more share the samples, the fewer steps an epoch has
    run["federation"]["sites"] = [f"site-{i + 1}" for i in range(sites)]
    simulation = file.simulation.model_copy(update={"policy": EVERYTHING})  # no data leave a site here
    one = SimulationFile(run=validate(RunSpec, run), simulation=simulation)
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        directory = Path(folder) / "run"
        out = os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        try:
            summary = simulate(one, directory)
        finally:
            os.dup2(out, 1)
            os.close(out)
        rows, total = _rows(directory / "sites" / "site-1" / "timings.csv")[1:], step_seconds(directory)
        steps = _rows(directory / "steps.csv")[1:]
    times = [median(float(row[name]) for row in rows) for name in STRETCHES]
    times.append(median(float(row["aggregation_seconds"]) for row in steps))
    sizes = [f"{summary[f'bytes_{way}_per_site_step']:.0f}" for way in ("up", "down")]
    return [f"{seconds * 1e3:.2f}" for seconds in (total, *times)] + sizes


def step_seconds(directory: Path) -> float:
    """Return the median seconds of a step of the first site of a run."""
    timings = min(directory.glob("sites/*/timings.csv"))
    return median(sum(float(row[name]) for name in STRETCHES) for row in _rows(timings)[1:])


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measure_barriers(sites: int, size: int, steps: int) -> Barriers:
    """Return the cost of a step without training, through our barrier and through minimal ones."""
    from benchmarks import floor

    kinds: dict[str, tuple[Callable[..., None], Callable[..., list[float]]]] = {
        "ours": (partial(_our_server, None), _our_client),
        "ledger": (partial(_our_server, LedgerOptions()), _our_client),
        "http": (floor.fastapi_server, floor.httpx_client),
        "streams": (floor.streams_server, floor.streams_client),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(REPETITIONS):
        for kind, (server, client) in kinds.items():
            found[kind].append(barrier_seconds(server, client, sites, size, steps))
        found.setdefault("database", []).append(database_seconds(sites, size, steps))
    turns = list(zip(*found.values(), strict=True))
    ratio = median(turn[0] / turn[2] for turn in turns)
    ledger_ratio = median(turn[1] / (turn[2] + turn[4]) for turn in turns)
    ours, ledger, http, streams, database = (1e3 * median(own) for own in found.values())
    return Barriers(ours, ledger, http, streams, database, ratio, ledger_ratio)


def database_seconds(sites: int, size: int, steps: int) -> float:
    """Return the mean seconds in which SQLite commits a step's contributions and update, synced, as a run's file."""
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder) / "t.sqlite")) as db:
        db.executescript(
            f"PRAGMA page_size = {PAGE}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
            f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}; CREATE TABLE bodies (body BLOB)"
        )
        body = os.urandom(size)
        began = perf_counter()
        for _ in range(steps):
            with db:
                db.executemany("INSERT INTO bodies VALUES (?)", [(body,)] * (sites + 1))
        return (perf_counter() - began) / steps


def barrier_seconds(
    server: Callable[..., None], client: Callable[..., list[float]], sites: int, size: int, steps: int
) -> float:
    """Start a server and its clients as processes; return the median seconds of a step over all clients.

    Raises:
        UserError: a client has ended before it had measured.
    """
    context = multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        port = listening.getsockname()[1]
        serving = context.Process(target=_quietly, args=(server, listening, sites, size), daemon=True)
        serving.start()
        pipes, clients = [], []
        for index in range(sites):
            here, there = context.Pipe(duplex=False)
            arguments = (there, client, port, size, steps + WARM_UP, index, sites)
            clients.append(context.Process(target=_timed, args=arguments, daemon=True))
            clients[-1].start()
            there.close()
            pipes.append(here)
    try:
        seconds: list[list[float]] = [pipe.recv() for pipe in pipes]
    except EOFError:
        raise UserError(
            f"a client of the barrier for {sites} sites has ended before all was measured", code="client-ended"
        ) from None
    finally:
        serving.terminate()
        for process in (*clients, serving):
            process.join(5)
    return median(fmean(step) for step in list(zip(*seconds, strict=True))[WARM_UP:])


def _quietly(server: Callable[..., None], listening: socket.socket, sites: int, size: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    set_up(LogOptions(logging.WARNING))
    if isinstance(server, partial):
        server(listening, sites, size)
    else:
        server(listening, sites)


def _timed(
    pipe: Connection, client: Callable[..., list[float]], port: int, size: int, steps: int, index: int, sites: int
) -> None:
    pipe.send(client(port, size, steps, index, sites) if client is _our_client else client(port, size, steps))


def bare_run(sites: int, size: int) -> RunSpec:
    """Return a run whose gradient has so many bytes: one linear layer from n inputs to ten classes."""
    inputs = size // 4 // 10 - 1
    document: dict[str, Any] = {
        "name": "barrier",
        "task": {"name": "classification", "classes": 10},
        "model": {"name": "mlp", "hidden": []},
        "data": {"shape": [inputs]},
        "training": {"epochs": 1, "batch_size": 1, "optimizer": {"name": "sgd", "lr": 0.001}},
        "method": {"name": "dsgd"},
        "federation": {"sites": [f"site-{i + 1}" for i in range(sites)], "compare_every": 0},
    }
    return validate(RunSpec, document)


def _our_server(ledger: LedgerOptions | None, listening: socket.socket, sites: int, size: int) -> None:
    from rankdad.remote.beginning import Options
    from rankdad.remote.process import InterruptedRunError, run_aggregator

    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere)
        with contextlib.suppress(InterruptedRunError):  # told to stop when all sites have measured
            run_aggregator(bare_run(sites, size), Path(folder), listening, console, Options(ledger=ledger))


def _our_client(port: int, size: int, steps: int, index: int, sites: int) -> list[float]:
    import torch

    torch.set_num_threads(1)
    spec = bare_run(sites, size)
    return _take_steps(f"http://127.0.0.1:{port}", make_plan(spec, Replica(spec).model), index, range(1, steps + 1))


def bare_clients(address: str, spec: RunSpec, over: threading.Event) -> Callable[[], None]:
    """Let all sites of a run take steps without training, each in a thread; return what waits for them.

    Args:
        address: of the run.
        spec: of the run.
        over: set when they are to take no more.
    """
    plan = make_plan(spec, Replica(spec).model)

    def take_steps(index: int) -> None:
        with contextlib.suppress(RankdadError):  # the run was cancelled
            _take_steps(address, plan, index, itertools.takewhile(lambda _: not over.is_set(), itertools.count(1)))

    threads = [threading.Thread(target=take_steps, args=(index,)) for index in range(len(plan.sites))]
    for thread in threads:
        thread.start()

    def wait() -> None:
        for thread in threads:
            thread.join()

    return wait


def _take_steps(address: str, plan: Plan, index: int, rounds: Iterable[int]) -> list[float]:
    """Send the same gradient over and over, as a trainer would send its own; return seconds of each step."""
    import torch

    def steps_alone() -> Generator[Message | Ask, Message | None, list[float]]:
        hello = Hello(
            **OUR_VERSION,
            spec_sha256=plan.spec_sha256,
            plan_sha256=plan.sha256(),
            weights_sha256=plan.weights_sha256,
            samples=((20_000, 0, 0),),  # an epoch that does not end: these steps are all there is
            dropped=0,
            warnings=[],
        )
        yield Message(Kind.HELLO, 0, hello)
        payload = tuple(torch.full(route.matrix, 1e-6) for route in plan.routes)
        seconds = []
        for round_ in rounds:
            began = perf_counter()
            yield Message(Kind.STEP, round_, Step(1.0, 0.0, 0.0, payload))
            seconds.append(perf_counter() - began)
        return seconds

    site = plan.sites[index]
    config = SiteConfig(name=site, aggregator=address, data="", output="", patience=10.0)
    with AggregatorClient(config) as client:
        return drive(Site(steps_alone(), plan), client, site)
