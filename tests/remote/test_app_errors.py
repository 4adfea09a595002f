"""Errors of the aggregator itself: logged, tried again, or the run pauses; sites wait or hear that it has failed."""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from rankdad.common.errors import RankdadError
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Failure
from rankdad.common.rounds.base import Collected
from rankdad.common.rounds.hello import Roster
from rankdad.local.drivers.http import AggregatorClient
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.updates import Update
from tests.conftest import SITES, site_config
from tests.remote.serving import Later, Served, ask, complete_hello, reason, serving
from tests.remote.serving import served as served


@pytest.mark.slow
def test_an_error_of_the_aggregators_own_is_logged_and_no_sites_fault(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take(site: str, body: bytes) -> dict[str, bytes]:
        raise KeyError("of a sample\nof beta's")

    monkeypatch.setattr(served.aggregator, "take", take)
    for _ in range(3):
        answer = reason(ask(served, "POST", "/rounds/alpha", b"anything"))
        assert answer == (500, "an internal error of the aggregator (KeyError): see its log")
    (logged,) = caplog.records
    assert logged.exc_info is not None
    assert logged.exc_info[0] is KeyError
    (line,) = [line for line in served.audited() if line["what"] == "internal error"]
    assert line["reason"] == 'KeyError: "of a sample\\nof beta\'s"'
    assert "test_app_errors.py:" in line["place"]
    problem = {"aggregator": line["reason"]}
    assert json.loads(ask(served, "GET", "/status")[1])["problems"] == problem
    assert json.loads((served.directory / "summary.json").read_text())["problems"] == problem
    monkeypatch.undo()
    complete_hello(served)
    assert json.loads(ask(served, "GET", "/status")[1])["problems"] == {}


@pytest.mark.slow
def test_a_round_that_cannot_be_aggregated_is_tried_again_and_the_sites_wait(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.aggregator.retries, "delay", 0.05)
    make, tries = served.aggregator.source.make, []

    def faulty(here: Collected) -> Update | None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise MemoryError
        return make(here)

    monkeypatch.setattr(served.aggregator.source, "make", faulty)
    updates: dict[str, bytes] = {}

    def take_part(site: str) -> None:
        with AggregatorClient(site_config(served.port, name=site)) as client:
            updates[site] = client.exchange(served.hello(site), 0)

    sites = [threading.Thread(target=take_part, args=(site,)) for site in SITES]
    for site in sites:
        site.start()
    for site in sites:
        site.join(10)
    assert len(tries) == 3
    first, second = (after - before for before, after in itertools.pairwise(tries))
    assert first < second, "later and later"
    assert set(updates) == set(SITES)
    (update,) = set(updates.values())
    assert isinstance(unpack(update, served.aggregator.plan, up=False).body, Roster)
    assert (served.aggregator.barrier.round, served.aggregator.recorder.progress.problems) == (1, {})


def exchange_steps(served: Served, patience: float) -> dict[str, bytes | RankdadError]:
    """Send every site's contribution to the first step, and return what becomes of it."""
    outcomes: dict[str, bytes | RankdadError] = {}

    def take_part(site: str) -> None:
        with AggregatorClient(site_config(served.port, name=site, patience=patience)) as client:
            try:
                outcomes[site] = client.exchange(served.step(site, 1), 1)
            except RankdadError as error:
                outcomes[site] = error

    sites = [threading.Thread(target=take_part, args=(site,)) for site in SITES]
    for site in sites:
        site.start()
    for site in sites:
        site.join(10)
    return outcomes


@pytest.mark.slow
def test_a_method_that_fails_each_time_pauses_the_run_and_another_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = list[str]()

    def faulty(*arguments: object) -> NoReturn:
        tries.append("")
        raise IndexError("patient 4711")

    with serving(tmp_path / "run", ledger=LedgerOptions()) as served:
        complete_hello(served)
        method = type(served.aggregator.state.method)
        monkeypatch.setattr(method, "aggregate", faulty)
        monkeypatch.setattr(served.aggregator.retries, "delay", 0.05)
        outcomes = exchange_steps(served, 0.6)
        assert {getattr(outcome, "code", "") for outcome in outcomes.values()} == {"unreachable"}, "they wait"
        assert all("IndexError" in str(outcome) and "4711" not in str(outcome) for outcome in outcomes.values())
        assert len(tries) == 3
        paused = served.aggregator.retries.paused
        assert paused is not None
        assert paused.code == "run-paused"
        assert ask(served, "POST", "/rounds/alpha", served.step("alpha", 1), x_rankdad_process="b")[0] == 500
        assert ask(served, "GET", "/rounds/alpha/1", x_rankdad_process="b")[0] == 500
        assert ask(served, "GET", "/rounds/alpha/0", x_rankdad_process="b")[0] == 200, "what is complete is given"
        problems = json.loads((served.directory / "summary.json").read_text())["problems"]
        assert set(problems) == {"aggregator"}
        (line,) = [line for line in served.audited() if line["what"] == "paused"]
        assert line["reason"] == problems["aggregator"]
        assert not served.aggregator.ended
    monkeypatch.undo()
    with serving(tmp_path / "run", ledger=LedgerOptions()) as served:
        served.aggregator.resume()
        outcomes = exchange_steps(served, 5.0)
        assert {type(outcome) for outcome in outcomes.values()} == {bytes}
        assert (served.aggregator.barrier.round, served.aggregator.recorder.progress.problems) == (2, {})


@pytest.mark.slow
def test_a_method_that_fails_each_time_ends_a_run_that_nobody_could_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "run") as served:
        complete_hello(served)
        monkeypatch.setattr(type(served.aggregator.state.method), "aggregate", lambda *arguments: 1 / 0)
        monkeypatch.setattr(served.aggregator.retries, "delay", 0.02)
        outcomes = exchange_steps(served, 5.0)
        answers = [answer for answer in outcomes.values() if isinstance(answer, bytes)]
        bodies = [unpack(answer, served.aggregator.plan, up=False).body for answer in answers]
        assert [isinstance(body, Failure) and body.site for body in bodies] == ["aggregator"] * len(SITES)
        assert served.aggregator.outcome[0] == "failed"


@pytest.mark.slow
def test_an_error_half_way_to_the_next_round_ends_the_process_and_another_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "run", ledger=LedgerOptions()) as served:
        monkeypatch.setattr(served.aggregator.store, "follow", lambda *arguments: 1 / 0)
        held = [Later(served, "POST", f"/rounds/{site}", served.hello(site)) for site in SITES]
        said = (500, "an internal error of the aggregator (ZeroDivisionError): see its log")
        assert {reason(request.wait()) for request in held} == {said}, "nobody hears of what is half done"
        served.until(lambda: served.host.crashed and served.host.ended.is_set())
        assert "ZeroDivisionError: division by zero; the ledger is complete" in str(served.host.error)
        assert not served.aggregator.barrier.failed
    with serving(tmp_path / "run", ledger=LedgerOptions()) as served:
        served.aggregator.resume()
        assert served.aggregator.tick().keys() == set(SITES), "what sites had sent is there"
        assert ask(served, "GET", "/rounds/alpha/0")[0] == 200
        assert served.aggregator.state.roster == ((10, 11, 12),)
