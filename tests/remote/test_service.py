"""A service without its processes: what it takes from those who may ask, and what that can cost the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankdad.common import __version__
from rankdad.common.documents import validate
from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.service import Described, Listing, Reply, State, Submission
from rankdad.common.protocol.versions import OUR_VERSION, WIRE
from rankdad.local.drivers.http_library import httpx
from rankdad.remote.audit import Audit
from rankdad.remote.auth import hashed
from rankdad.remote.beginning import Options
from rankdad.remote.config import Access
from rankdad.remote.consortium import Consortium
from rankdad.remote.service.app import service_app
from rankdad.remote.service.board import Board
from rankdad.remote.service.queue import FILE, Queue
from rankdad.remote.service.running import RunningRun
from rankdad.remote.service.service import MAX_AGAIN, Service
from tests.conftest import SITES, run_document

ID = "0123456789abcdef"


class Connection:
    """An end of a connection of which nothing is known."""

    site, address, waiting = "", "127.0.0.1", None

    def names(self, headers: object) -> tuple[str, ...]:
        """Have no certificate."""
        return ()

    def evict(self) -> None:
        """Stay: there are few."""


def with_service(
    test: Callable[[Service], Coroutine[Any, Any, None]], folder: Path, sites: Sequence[str] = SITES
) -> None:
    """Run a test against a service in this thread. Everybody's token is his name."""

    async def run() -> None:
        people = {"sites": list(sites), "owners": ["anna"], "viewers": ["vera"]}
        consortium = validate(Consortium, {"name": "test", "aggregator": "https://unused.example", **people})
        tokens = folder / "tokens.json"
        tokens.write_text(json.dumps({name: hashed(name) for name in consortium.members}))
        with contextlib.closing(Queue(folder / FILE)) as queue, contextlib.closing(Audit(folder / "audit")) as audit:
            service = Service(consortium, folder, queue, Access(tokens=tokens), Options(), audit)
            await test(service)
            await service.leave()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def asking(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    app = service_app(service)

    async def connected(scope: Any, receive: Any, send: Any) -> None:
        await app(scope | {"state": {"connection": Connection()}}, receive, send)

    transport = httpx.ASGITransport(connected)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        await client.get("/healthz")  # FastAPI makes its routes ready for the first request
        yield client


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def submitted(service: Service, number: str = ID, **changes: Any) -> str:
    submission = Submission(id=number, **OUR_VERSION, spec=run_document(**changes))
    return (await service.submit(lambda: submission, "anna")).run


def test_sites_are_answered_while_a_large_spec_is_read(tmp_path: Path) -> None:
    released = threading.Event()

    def slowly() -> Submission:
        assert released.wait(10), "nothing else goes on meanwhile"
        return Submission(id=ID, **OUR_VERSION, spec=run_document())

    async def both(service: Service) -> None:
        reading = asyncio.create_task(service.submit(slowly, "anna"))
        await asyncio.sleep(0.01)
        released.set()
        assert (await reading).run == "small-1"

    with_service(both, tmp_path)


@pytest.mark.slow
def test_a_spec_with_thousands_of_mistakes_is_refused_in_a_sentence(tmp_path: Path) -> None:
    spec = json.dumps(run_document() | {f"k{number}": 0 for number in range(20_000)})

    async def submit(service: Service) -> None:
        async with asking(service) as client:
            for path, body in (
                (f"/runs/submit?id={ID}", spec),
                ("/runs", f'{{"id": "{ID}", "version": "{__version__}", "wire": {WIRE}, "spec": {spec}}}'),
            ):
                refused = await client.post(path, content=body, headers=as_("anna"))
                assert (refused.status_code, "has 20,000 mistakes" in refused.text) == (422, True)

    with_service(submit, tmp_path)


def test_a_run_that_asks_for_a_library_that_is_missing_here_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)

    async def submit(service: Service) -> None:
        with pytest.raises(ProtocolError, match=r"record\.tensorboard: needs TensorBoard, which is not installed"):
            await submitted(service, record={"tensorboard": True})
        assert not service.queue.newest(1)

    with_service(submit, tmp_path)


def test_an_answer_is_written_once_and_never_taken_back(tmp_path: Path) -> None:
    async def reply(service: Service) -> None:
        run = await submitted(service)
        said = ["asked", "asked", "accepted", "asked", "accepted"]
        changes = []
        for answer in said:
            before = service.queue.changes
            await service.reply(run, "alpha", Reply.model_validate({"id": ID, "answer": answer}))
            changes.append(service.queue.changes > before)
        assert changes == [True, False, True, False, False]
        assert service.queue.entry(run).answers["alpha"].answer == "accepted"

    with_service(reply, tmp_path)


def test_what_is_said_of_a_run_that_waits_for_a_thousand_sites_can_be_read(tmp_path: Path) -> None:
    sites = [f"{'x' * 50}{number}" for number in range(1000)]

    async def listed(service: Service) -> None:
        run = await submitted(service, federation={"sites": sites})
        entry = service.queue.entry(run)
        validate(Listing, {"runs": [json.loads(service.described(entry).model_dump_json())]})
        problems = SimpleNamespace(problems=dict.fromkeys(sites, "is ill" * 80), step=1, steps=2)
        host = SimpleNamespace(aggregator=SimpleNamespace(status=problems, ended=False))
        service.running[run] = SimpleNamespace(host=host, problem="")  # type: ignore[assignment]
        described = service.described(replace(entry, state=State.RUNNING))
        validate(Described, json.loads(described.model_dump_json()))
        assert "is ill" in described.reason
        service.running.clear()

    with_service(listed, tmp_path, sites)


def test_an_error_of_the_services_own_is_a_sentence_and_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("its own")

    async def ask(service: Service) -> None:
        monkeypatch.setattr(service.queue, "newest", broken)
        monkeypatch.setattr(service, "routes", broken)
        async with asking(service) as client:
            for path, name in (("/runs", "vera"), ("/runs/small-1/status", "alpha")):
                answer = await client.get(path, headers=as_(name))
                said = "an internal error of the service (KeyError): see its log"
                assert (answer.status_code, answer.json()) == (
                    500,
                    {"error": said, "code": "service-failed", "field": ""},
                )

    with_service(ask, tmp_path)
    assert [bool(record.exc_info) for record in caplog.records if record.levelname == "ERROR"] == [True, True]


def test_a_stranger_learns_of_no_run_and_writes_into_no_log(tmp_path: Path) -> None:
    async def ask(service: Service) -> None:
        run = await submitted(service)
        (tmp_path / "logs").mkdir()
        service.logs.open(run)
        service.running[run] = SimpleNamespace(served=None)  # type: ignore[assignment]  # is being taken up
        logging.getLogger("rankdad").addHandler(service.logs)
        logging.getLogger("rankdad").setLevel(logging.INFO)
        async with asking(service) as client:
            for path in (f"/runs/{run}/status", f"/runs/{run}", f"/runs/{run}/log", f"/runs/{run}/results"):
                answer = await client.get(path)
                assert (answer.status_code, run in answer.text) == (401, False), path
            assert (await client.post(f"/runs/{run}/cancel")).status_code == 401
        service.logs.shut(run)
        assert (tmp_path / "logs" / f"{run}.log").read_text() == ""
        service.running.clear()

    with_service(ask, tmp_path)


@pytest.mark.slow
def test_a_site_that_never_has_enough_does_not_fill_the_memory_with_runs_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(service: Service) -> None:
        runs = [await submitted(service, f"{number:016x}") for number in range(MAX_AGAIN + 1)]
        for run in runs:
            service.queue.move(run, State.ENDED, where=[State.WAITING])

        async def held(self: RunningRun, *_: object) -> None:
            await asyncio.sleep(0.1)

        async def at_once(self: RunningRun) -> object:
            return object()

        monkeypatch.setattr(RunningRun, "run_until_finished", held)
        monkeypatch.setattr(RunningRun, "routes", at_once)
        for run in runs[:-1]:
            await service.routes(run)
        assert not any(run.trains for run in service.running.values()), "those whose turn it is do not wait for them"
        with pytest.raises(ProtocolError, match="is reopened after others"):
            await service.routes(runs[-1])
        await asyncio.sleep(0.2)
        await service.routes(runs[-1])

    with_service(ask, tmp_path)


def test_a_service_that_is_stopping_has_sites_wait_and_tells_none_that_its_run_is_over(tmp_path: Path) -> None:
    """A site takes 410 for the end: one that asked while a run was let go, and the port still open, gave up."""

    async def ask(service: Service) -> None:
        run = await submitted(service)
        with pytest.raises(ProtocolError, match="has not begun") as error:  # after an older queue was restored
            await service.routes(run)
        assert error.value.status == 503
        service.queue.move(run, State.RUNNING, where=[State.WAITING])
        await service.leave()
        with pytest.raises(ProtocolError, match="resumes when the service restarts") as error:
            await service.routes(run)
        assert error.value.status == 503

    with_service(ask, tmp_path)


def test_a_site_that_has_only_looked_is_no_agent(tmp_path: Path) -> None:
    """As `rankdad check SITE.json` does: it polls once, and knows nothing yet."""

    async def ask(service: Service) -> None:
        async with asking(service) as client:
            for known, kind in (("", "absent"), ("0" * 64, "in")):
                body = {**OUR_VERSION, "known": known}
                assert (await client.post("/agents/alpha", json=body, headers=as_("alpha"))).status_code == 200
                row = next(row for row in Board(service).document()["sites"] if row["name"] == "alpha")
                assert row["kind"] == kind

    with_service(ask, tmp_path)


def test_the_board_names_methods_without_reading_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(service: Service) -> None:
        run = await submitted(service, method={"name": "powersgd", "rank": 2})
        monkeypatch.setattr(service.queue, "spec", None)
        (row,) = Board(service).document()["runs"]
        assert (row["name"], row["method"]) == (run, "powersgd")

    with_service(look, tmp_path)


def test_all_sites_that_refuse_a_run_are_named_and_none_is_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first refusal ended the asking: an owner mended one line, and met the next site's."""

    async def refuse(service: Service) -> None:
        run = await submitted(service)
        for site in ("alpha", "beta"):
            assert [offered.run for offered in service.offers(site).runs] == [run]
            await service.reply(
                run, site, Reply.model_validate({"id": ID, "answer": "refused", "reason": f"no {site}"})
            )
        described = service.described(service.queue.entry(run))
        assert (described.state, described.reason) == (State.REFUSED, "alpha: no alpha; beta: no beta")
        assert service.offers("alpha").runs == ()
        assert len(service.offers("gamma").runs) == 1
        monkeypatch.setattr("rankdad.remote.service.queue.ASKS_ON", 0.0)
        assert service.offers("gamma").runs == ()

    with_service(refuse, tmp_path)


def test_a_receipt_comes_at_the_end_of_a_run_or_never(tmp_path: Path) -> None:
    """A site could not tell the one from the other, and asked once."""

    async def ask(service: Service) -> None:
        run, codes = await submitted(service), list[str]()

        def told() -> None:
            with pytest.raises(ProtocolError) as caught:
                service.receipt(run, "alpha")
            codes.append(caught.value.code)

        told()
        await service.cancel(run, "anna")
        service.running[run] = None  # type: ignore[assignment]  # its sites hear of the end
        told()
        del service.running[run]
        told()
        assert codes == ["run-not-over", "run-not-over", "no-receipt"]

    with_service(ask, tmp_path)
