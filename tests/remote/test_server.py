"""The server around a run: what ends it, and what does not."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from pathlib import Path

import pytest

from rankdad.common.errors import RankdadError, UnreachableError
from rankdad.common.run.replica import Replica
from rankdad.local.drivers.http import AggregatorClient
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.application import application
from rankdad.remote.audit import Audit
from rankdad.remote.auth import Identity
from rankdad.remote.config import Access
from rankdad.remote.live import Pages
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.process import OneRun
from rankdad.remote.server import listen, serve
from tests.conftest import SITES, run_spec, site_config
from tests.remote.test_aggregator import hello_of


class Broken:
    """A view that cannot show what it is given."""

    shown = 0

    def start(self) -> None:
        self.shown += 1

    def tick(self) -> None:
        self.shown += 1
        raise ValueError("no such markup")

    def stop(self) -> None:
        self.shown += 1


@pytest.mark.slow
def test_neither_a_broken_view_nor_an_error_of_its_own_ends_a_run_for_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # pytest's own stay
    spec, view = run_spec(), Broken()
    aggregator = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LedgerOptions())
    monkeypatch.setattr(aggregator.store, "follow", lambda *arguments: 1 / 0)
    listening = listen("127.0.0.1", 0)
    port, hello = listening.getsockname()[1], hello_of(aggregator)
    told: list[bytes | UnreachableError] = []

    def take_part(site: str) -> None:
        with AggregatorClient(site_config(port, name=site, patience=1.0)) as client:
            try:
                told.append(client.exchange(hello, 0))
            except UnreachableError as error:
                told.append(error)

    sites = [threading.Thread(target=take_part, args=(site,)) for site in SITES]
    for site in sites:
        site.start()
    said = (
        "an internal error of the aggregator: ZeroDivisionError: division by zero; the ledger is complete, and the same"
    )
    with contextlib.closing(Audit(tmp_path / "audit.jsonl")) as audit:
        runs = OneRun(aggregator, audit, Identity(SITES), {}, show=lambda host: view)
        serve(runs, application(runs, Pages(runs)), listening, Access())
    assert isinstance(runs.host.error, RankdadError)
    assert str(runs.host.error).startswith(said)
    for site in sites:
        site.join(10)
    assert view.shown == 2, "it is left alone once it has failed"
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {ValueError, ZeroDivisionError}
    assert [type(one) for one in told] == [UnreachableError] * 3, "to be tried again when it is back"
    assert aggregator.recorder.progress.status == "interrupted"
