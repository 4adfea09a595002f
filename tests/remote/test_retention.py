"""What sites have sent is gone when a run is over, whatever is killed when, unless all of them let it stay."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.errors import UserError
from rankdad.common.run.replica import Replica
from rankdad.remote import retention, run_file
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.check_run import faults_of
from rankdad.remote.export import export
from rankdad.remote.retention import end_again, forget
from rankdad.remote.run_file import RunFile
from rankdad.remote.run_reader import ENDED, FILE, RunReader, reading
from tests.conftest import SITES, run_spec
from tests.simulations.recovering import LEDGER_OPTIONS, Data, Run

pytestmark = pytest.mark.slow

SPEC = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2})


def held(directory: Path) -> set[int]:
    """Return the places of the sites of which something is there."""
    with reading(directory) as file:
        return {*file.sent()}


def go(folder: Path, site_data: Data, refuse: tuple[str, ...] = ("beta",)) -> tuple[Run, str]:
    run = Run(SPEC, site_data(SPEC), folder, refuse=refuse)
    return run, run.go(lambda message: None)


def taken_up(folder: Path) -> Aggregator:
    """Return the run's aggregator, as another process goes on with it."""
    aggregator = Aggregator(SPEC, Replica(SPEC), folder / "run", time.perf_counter, ledger=LEDGER_OPTIONS)
    try:
        aggregator.resume()
    except BaseException:
        aggregator.abandon()
        raise
    return aggregator


def tables(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return {"summary": summary} | {path.name: path.read_text() for path in (folder / "run").glob("*.csv")}


@pytest.mark.parametrize(("refuse", "gone"), [((), False), (("beta",), True), (SITES, True)])
def test_one_site_that_lets_nothing_stay_is_enough(
    tmp_path: Path, site_data: Data, refuse: tuple[str, ...], gone: bool
) -> None:
    run, digest = go(tmp_path, site_data, refuse)
    assert (not held(tmp_path / "run"), run.aggregator.retention is not None) == (gone, True)
    assert run.aggregator.retention is not None
    receipt = run.aggregator.retention.receipt("alpha")
    assert (receipt.deleted, receipt.status, receipt.run) == (gone, "completed", run.aggregator.run_id)
    assert receipt.contributions > 2
    assert receipt.bytes > 1000
    assert export(tmp_path / "run", None, tmp_path / "exported").replica.digest() == digest


def test_a_site_that_was_away_finds_a_run_that_is_over_as_it_was(tmp_path: Path, site_data: Data) -> None:
    run, digest = go(tmp_path, site_data)
    known, before = run.aggregator.retention, tables(tmp_path)
    again = taken_up(tmp_path)
    assert again.ended
    assert again.recorded("gamma", again.barrier.round - 1) == run.aggregator.barrier.stored
    assert again.snapshot("gamma") is not None
    again.close()
    assert (again.state.replica.digest(), again.retention) == (digest, known)
    assert tables(tmp_path) == before


@pytest.mark.parametrize("where", ["before all", "before the copy"])
def test_a_process_killed_at_the_end_leaves_the_rest_to_the_next(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise UserError("killed", code="cannot-write")

    with monkeypatch.context() as patched:
        if where == "before all":
            patched.setattr(RunFile, "delete", killed)
        else:
            patched.setattr(retention, "write_json", killed)
        run, digest = go(tmp_path, site_data)
    assert bool(held(tmp_path / "run")) is (where == "before all")
    assert run.aggregator.retention is None
    again = taken_up(tmp_path)
    assert (again.ended, again.state.replica.digest(), held(tmp_path / "run")) == (True, digest, set())
    again.close()
    assert again.retention is not None
    assert again.retention.receipt("beta").deleted
    whole, _ = go(tmp_path / "whole", site_data)
    assert whole.aggregator.retention is not None
    assert again.retention.sites == whole.aggregator.retention.sites, "what had gone before it was killed counts, too"
    assert again.retention.bytes == whole.aggregator.retention.bytes


@pytest.mark.parametrize("refuse", [(), ("beta",)])
def test_a_process_killed_before_it_has_told_what_it_did_leaves_that_to_the_next(
    tmp_path: Path, site_data: Data, refuse: tuple[str, ...]
) -> None:
    run, _ = go(tmp_path, site_data, refuse)
    known, told = run.aggregator.retention, tmp_path / "run" / "retention.json"
    told.unlink()
    again = end_again(tmp_path / "run", "completed", run.aggregator.run_id)
    assert known is not None
    assert again is not None
    assert (again.sites, again.bytes, again.deleted) == (known.sites, known.bytes, known.deleted)
    assert told.exists()


@pytest.mark.parametrize(("goes_on", "forgets"), [(True, False), (True, True), (False, False)])
def test_a_run_that_is_cancelled_keeps_nothing_where_nobody_goes_on_with_it(
    tmp_path: Path, site_data: Data, goes_on: bool, forgets: bool
) -> None:
    run = Run(SPEC, site_data(SPEC), tmp_path, refuse=("beta",))
    run.aggregator.store.goes_on = goes_on

    def cancelled(message: int) -> None:
        if message == 30:
            run.aggregator.fail("aggregator", "cancelled by anna", status="failed" if forgets else "interrupted")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run.go(cancelled)
    run.aggregator.close()
    assert bool(held(tmp_path / "run")) is goes_on
    if goes_on and forgets:  # nothing says that the policies let the others' stay
        assert forget(tmp_path / "run", "alpha").deleted
    elif goes_on:
        taken_up(tmp_path).abandon()
        assert end_again(tmp_path / "run", "interrupted", run.aggregator.run_id) is not None
    assert not held(tmp_path / "run")
    with pytest.raises(UserError) as refused:
        taken_up(tmp_path)
    assert refused.value.code == "contributions-deleted"


def test_a_hospital_that_leaves_takes_what_it_has_sent_with_it(tmp_path: Path, site_data: Data) -> None:
    run, digest = go(tmp_path, site_data, refuse=())
    directory = tmp_path / "run"
    made = CliRunner().invoke(app, ["forget", str(directory), "beta"])
    assert (made.exit_code, "not deleted: the model" in made.output) == (0, True)
    known = run.aggregator.retention
    assert known is not None
    assert held(tmp_path / "run") == {0, 2}
    taken = taken_up(tmp_path)
    taken.close()
    assert taken.state.replica.digest() == digest
    again = CliRunner().invoke(app, ["forget", str(directory), "beta"])
    assert (again.exit_code, "were already deleted" in again.output) == (0, True)
    assert "already" not in made.output
    gone = forget(directory, "gamma")
    assert (gone.forgotten, gone.sites) == (("beta", "gamma"), known.sites), "a receipt lists what was there at the end"
    gone = forget(directory, None)
    assert (gone.deleted, gone.sites) == (True, known.sites)
    assert not held(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "site", "code"), [({}, "nobody", "site-unknown"), ({"status": "running"}, "beta", "run-not-over")]
)
def test_nothing_is_forgotten_of_a_run_that_goes_on(
    tmp_path: Path, site_data: Data, change: dict[str, str], site: str, code: str
) -> None:
    go(tmp_path, site_data, refuse=())
    summary = tmp_path / "run" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | change))
    if change:
        with closing(sqlite3.connect(tmp_path / "run" / FILE)) as file, file:
            file.execute("DELETE FROM facts WHERE name = ?", (ENDED,))
    with pytest.raises(UserError) as refused:
        forget(tmp_path / "run", site)
    assert refused.value.code == code
    assert held(tmp_path / "run")


def test_what_was_read_when_the_run_ended_is_named_until_somebody_forgets(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "PATIENCE", 0)
    directory, readers = tmp_path / "run", list[RunReader]()
    run = Run(SPEC, site_data(SPEC), tmp_path, refuse=("beta",))
    run.go(lambda message: readers.append(RunReader(directory / FILE)) if message == 20 else None)
    assert run.aggregator.retention is None, "nobody is told that it is gone"
    for reader in readers:
        reader.close()
    assert [fault for fault in faults_of(directory)[0] if "`rankdad forget" in fault]
    forget(directory, None)
    assert faults_of(directory)[0] == []
