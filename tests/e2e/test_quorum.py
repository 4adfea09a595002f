"""A real site killed for good: the run goes on without it where the quorum allows, else it waits and says for whom."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_crashes import wait_for_steps
from tests.e2e.test_processes import rankdad, simulation, start, wait_for_line
from tests.ports import free_port
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FOUR = ("alpha", "beta", "gamma", "delta")


def four_sites(tmp_path: Path, **federation: Any) -> Path:
    return simulation(tmp_path, 200, federation={"sites": list(FOUR)} | federation, training={"epochs": 20})


class Started:
    """Four sites and an aggregator, each started by hand."""

    def __init__(self, tmp_path: Path, file: Path) -> None:
        self.folder = tmp_path
        self.run = tmp_path / "run"
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        split = rankdad("split", file, "--output", tmp_path / "demo", "--aggregator", address)
        assert split.returncode == 0, split.stderr
        self.aggregator = start("aggregator", file, "--output", self.run, "--port", port)
        self.sites = {name: self.site(name) for name in FOUR}

    def site(self, name: str) -> Warm:
        return start("site", self.folder / "demo" / f"{name}.json", "--patience", 60)

    def kill(self, name: str) -> None:
        self.sites[name].kill()
        self.sites[name].communicate()

    def wait(self, *names: str) -> None:
        for name in names:
            said, complained = self.sites[name].communicate(timeout=60)
            assert self.sites[name].returncode == 0, (name, said, complained)
        _, complained = self.aggregator.communicate(timeout=90)
        assert self.aggregator.returncode == 0, complained

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.run / "summary.json").read_text()))


@contextmanager
def started(tmp_path: Path, file: Path) -> Iterator[Started]:
    processes = Started(tmp_path, file)
    try:
        yield processes
    finally:
        for process in (processes.aggregator, *processes.sites.values()):
            process.kill()
            process.communicate()


@pytest.mark.exhaustive
def test_three_of_four_go_on_and_the_ledger_tells_their_weights(tmp_path: Path) -> None:
    with started(tmp_path, four_sites(tmp_path, quorum=3, grace=0.5)) as processes:
        wait_for_steps(processes.run, 20)
        processes.kill("delta")
        processes.wait("alpha", "beta", "gamma")
        summary = processes.summary()
    assert summary["status"] == "completed"
    assert 0 < summary["left_out"]["delta"] < summary["steps"]
    assert set(summary["left_out"]) == {"delta"}, "the others are waited for once delta is away"
    weights = summary["weights_sha256"]
    assert set(weights) == {"alpha", "beta", "gamma"}
    assert set(weights.values()) == {summary["aggregator_sha256"]}
    done = rankdad("export", processes.run, "--output", tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    assert f"after step {summary['steps']} " in done.stdout
    assert f"sha256 {summary['aggregator_sha256'][:16]}…" in done.stdout


@pytest.mark.exhaustive
def test_without_a_quorum_the_run_waits_says_for_whom_and_goes_on(tmp_path: Path) -> None:
    file = four_sites(tmp_path)
    done = rankdad("simulate", file, "--output", tmp_path / "undisturbed", "--json", "--lockstep")
    undisturbed = json.loads(done.stdout)["aggregator_sha256"]
    with started(tmp_path, file) as processes:
        wait_for_steps(processes.run, 20)
        processes.kill("delta")
        began = time.monotonic()
        assert wait_for_line(processes.aggregator, "waiting for delta") == "waiting for delta (10 s)\n"
        assert 9 < time.monotonic() - began < 60
        assert all(processes.sites[name].poll() is None for name in FOUR[:3])
        processes.sites["delta"] = processes.site("delta")
        processes.wait(*FOUR)
        summary = processes.summary()
    assert (summary["left_out"], summary["status"]) == ({}, "completed")
    assert set(summary["weights_sha256"].values()) == {undisturbed} == {summary["aggregator_sha256"]}
    assert set(summary["weights_sha256"]) == set(FOUR)
