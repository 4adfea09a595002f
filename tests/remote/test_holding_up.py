"""Nobody holds up the others: not by tables, locks, runs, threads or pages; and a browser keeps no token."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.protocol.service import Reply
from rankdad.common.run.replica import Replica
from rankdad.common.spec.tasks import Classification
from rankdad.page.stream import MAX_VIEWERS
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.audit import Audit
from rankdad.remote.beginning import Options
from rankdad.remote.config import Access
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.results.fold_metrics import FoldMetrics
from rankdad.remote.run_session import RunSession
from rankdad.remote.service.app import service_app
from rankdad.remote.service.queue import FILE
from rankdad.remote.service.running import RunningRun
from rankdad.remote.service.service import Service
from tests.common.metrics.samples import draw, tallied
from tests.conftest import SITES, run_spec
from tests.remote.test_service import ID, Connection, as_, asking, submitted, with_service


@contextlib.asynccontextmanager
async def held_up() -> AsyncIterator[list[float]]:
    """Measure for how long at a time the event loop has done nothing else, in seconds."""
    gaps, loop = list[float](), asyncio.get_running_loop()

    async def look() -> None:
        while True:
            began = loop.time()
            await asyncio.sleep(0.005)
            gaps.append(loop.time() - began)

    looking = asyncio.create_task(look())
    await asyncio.sleep(0.02)
    gaps.clear()
    yield gaps
    await asyncio.sleep(0.02)
    looking.cancel()


# The event loop


@pytest.mark.slow
def test_the_table_of_many_sites_does_not_hold_up_the_rounds(tmp_path: Path) -> None:
    """For no longer than that of a tenth of them takes."""
    task, sites = Classification(classes=2), tuple(f"site-{number}" for number in range(200))
    outputs, labels = draw(task, 40, 0)
    grouped, alone = tallied(task, outputs, labels, groups=torch.arange(40) // 2), tallied(task, outputs, labels)

    def study(names: tuple[str, ...]) -> FoldMetrics:
        found = FoldMetrics(task, names, ("local",), grouped=True)
        models, baselines = dict.fromkeys(names, grouped), dict.fromkeys(names, alone)
        found.add(models, baselines, {"local": models})
        return found

    few, many = study(sites[:20]), study(sites)
    few.by_site()
    began = time.perf_counter()
    few.by_site()
    least = time.perf_counter() - began
    done, spec = list[int](), run_spec()

    async def run() -> list[float]:
        aggregator = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter)
        with closing(aggregator), closing(Audit(tmp_path / "audit")) as audit:
            host = RunSession(aggregator, audit)
            async with held_up() as gaps:
                host.enter(lambda: done.append(len(many.by_site())))
                while not done:
                    await asyncio.sleep(0.005)
        return gaps

    gaps = asyncio.run(run())
    assert done == [200]
    assert max(gaps) < 3 * least + 0.05


def test_a_request_is_answered_with_the_update_of_its_own_round(tmp_path: Path) -> None:
    """One that comes between two rounds waits beside those of the next."""
    spec = run_spec()

    async def run() -> None:
        with closing(Audit(tmp_path / "audit")) as audit:
            host = RunSession(Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter), audit)
            with host._hold(SITES[0], Connection(), 3) as held:  # type: ignore[arg-type]
                host._settle(lambda: (dict.fromkeys(SITES, b"of round 4"), 4), None)
                assert not held.answer.done()
                host._settle(lambda: (dict.fromkeys(SITES, b"of round 3"), 3), None)
                assert held.answer.result() == b"of round 3"
            await host.close()

    asyncio.run(run())


def test_what_comes_after_the_end_is_not_heard(tmp_path: Path) -> None:
    spec = run_spec()

    async def run() -> None:
        with closing(Audit(tmp_path / "audit")) as audit:
            host = RunSession(Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter), audit)
            await host.close()
            host.depart(SITES[0], "its process has died")
            host.tick()

    asyncio.run(run())


def test_a_change_asks_the_database_no_more_often_for_more_sites(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        for number in range(5):
            await submitted(service, f"{number:016x}")
        asked = list[str]()
        service.queue.database.set_trace_callback(asked.append)
        service.offers(SITES[0])
        of_one = len(asked)
        for site in SITES[1:]:
            service.offers(site)
        assert len(asked) == of_one

    with_service(test, tmp_path)


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the database's lock for so long, as a backup does or `sqlite3` at a prompt."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")

    def release() -> None:
        other.execute("rollback")
        other.close()

    timer = threading.Timer(seconds, release)
    timer.start()
    try:
        yield
    finally:
        timer.join()


LOCK = 0.5  # seconds


@pytest.mark.slow
@pytest.mark.parametrize("what", ["reply", "readyz"])
def test_a_lock_of_the_queue_holds_up_nobody_else(tmp_path: Path, what: str) -> None:
    async def test(service: Service) -> None:
        run = await submitted(service)
        async with asking(service) as client, held_up() as gaps:
            with locked(tmp_path / FILE, LOCK):
                if what == "readyz":
                    await client.get("/readyz")
                else:
                    reply = Reply(id=ID, answer="accepted", reason="").model_dump_json()
                    path = f"/agents/{SITES[0]}/runs/{run}"
                    assert (await client.post(path, headers=as_(SITES[0]), content=reply)).status_code == 204
        assert max(gaps) < LOCK / 2

    with_service(test, tmp_path)


def test_asking_whether_the_service_is_ready_writes_nothing(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        await submitted(service)
        log = tmp_path / f"{FILE}-wal"
        before = log.read_bytes()
        async with asking(service) as client:
            assert (await client.get("/readyz")).status_code == 200
        assert log.read_bytes() == before

    with_service(test, tmp_path)


# A browser's cookie


async def cookie_of(service: Service, **headers: str) -> str:
    async with asking(service) as client:
        entered = await client.post("/runs/", headers=headers, data={"token": "anna"})
    assert entered.status_code == 303
    return entered.headers["set-cookie"]


@pytest.mark.slow
def test_a_browser_is_given_no_token_that_submits_runs(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        given = (await cookie_of(service)).partition(";")[0].partition("=")[2]
        async with asking(service) as client:
            assert (await client.get("/runs", headers=as_(given))).status_code == 401

    with_service(test, tmp_path)


def test_behind_a_proxy_with_tls_the_cookie_is_sent_through_tls_alone(tmp_path: Path) -> None:
    async def test(service: Service) -> None:
        assert service.consortium.aggregator.startswith("https:"), "where browsers find it"
        assert "; Secure" in await cookie_of(service, **{"x-forwarded-proto": "https"})

    with_service(test, tmp_path)


def test_a_service_without_tokens_answers_no_page_that_has_made_its_name_lead_here(tmp_path: Path) -> None:
    """DNS rebinding: to the browser the page and the service are one site."""

    async def ask(service: Service) -> None:
        own = Service(service.consortium, tmp_path, service.queue, Access(), Options(), service.audit)
        named = {"host": "evil.example", "origin": "http://evil.example", "sec-fetch-site": "same-origin"}
        async with asking(own) as client:
            assert (await client.get("/runs", headers=named)).status_code >= 400

    with_service(ask, tmp_path)


@pytest.mark.slow
def test_an_owner_with_many_runs_leaves_room_for_another(tmp_path: Path) -> None:
    async def ask(service: Service) -> None:
        for number in range(service.consortium.max_queue):
            await submitted(service, f"{number:016x}")
        service.queue.submit(ID, "small", "bert", SITES, {}, service.consortium.max_queue)

    with_service(ask, tmp_path)


def test_a_run_takes_no_more_threads_of_a_service_than_there_are_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[int]()

    async def ask(service: Service) -> None:
        run = await submitted(service, training={"threads": 1024})
        monkeypatch.setattr(torch, "set_num_threads", taken.append)
        RunningRun(service.queue.entry(run), service.queue.spec(run), tmp_path, Options(), KnownLogs(tmp_path))._make()

    with_service(ask, tmp_path)
    assert max(taken, default=1) <= (os.cpu_count() or 1)


def test_a_viewer_with_many_pages_open_keeps_no_other_out(tmp_path: Path) -> None:
    async def ask(service: Service) -> None:
        app, statuses = service_app(service), list[int]()

        async def look(name: str) -> None:
            begun = asyncio.Event()

            async def receive() -> dict[str, Any]:
                await asyncio.Event().wait()
                return {}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])
                elif message.get("body"):
                    begun.set()

            headers = [(key.encode(), value.encode()) for key, value in as_(name).items()]
            scope: dict[str, Any] = {
                "type": "http",
                "method": "GET",
                "path": "/runs/events",
                "headers": headers,
                "query_string": b"",
            }
            scope |= {"scheme": "http", "server": ("service", 80), "state": {"connection": Connection()}}
            looking.append(asyncio.create_task(app(scope, receive, send)))
            async with asyncio.timeout(5):
                await begun.wait()

        looking = list[asyncio.Task[None]]()
        for _ in range(MAX_VIEWERS):
            await look("vera")
        await look("anna")
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        assert statuses == [200] * (MAX_VIEWERS + 1)

    with_service(ask, tmp_path)
