"""Real processes killed at any moment, or out of disk: they go on to the bits of an undisturbed run."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rankdad.remote.run_reader import FILE
from rankdad.remote.tables import count_of
from tests.conftest import SITES
from tests.e2e.crashing import LONGEST
from tests.e2e.test_processes import COMMAND, ENVIRONMENT, rankdad, simulation, start
from tests.ports import free_port


def long_run(tmp_path: Path, method: dict[str, Any], epochs: int = 26, **changes: Any) -> tuple[Path, str]:
    """A run that takes seconds, with dropout, and the digest that it ends with if nobody dies."""
    training = {"epochs": epochs, "schedule": {"name": "cosine"}}
    model, evaluation = (
        {"name": "mlp", "hidden": [16, 16], "dropout": 0.1},
        {"name": "holdout", "references": ["local"]},
    )
    file = simulation(tmp_path, model=model, method=method, training=training, evaluation=evaluation, **changes)
    done = rankdad("simulate", file, "--output", tmp_path / "undisturbed", "--json", "--lockstep")
    assert done.returncode == 0, done.stderr
    return file, json.loads(done.stdout)["aggregator_sha256"]


def references_of(directory: Path) -> Any:
    return json.loads((directory / "summary.json").read_text())["metrics"]["references"]


def wait_for_steps(directory: Path, steps: int) -> None:
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if count_of(directory, "steps") >= steps:
                return
        time.sleep(0.02)  # another process writes the file
    raise AssertionError(f"no {steps} steps within {LONGEST} s")


@pytest.mark.slow
def test_all_processes_killed_at_once_go_on_to_the_same_bits(tmp_path: Path) -> None:
    file, undisturbed = long_run(tmp_path, {"name": "rank-dad", "rank": 2})
    process = start("simulate", file, "--output", tmp_path / "run", "--ledger", new_session=True)
    wait_for_steps(tmp_path / "run", 60)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = rankdad("simulate", "--resume", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert set(summary["weights_sha256"].values()) == {undisturbed} == {summary["aggregator_sha256"]}
    assert "continues from its checkpoint" in (tmp_path / "run" / "sites" / "alpha" / "log.txt").read_text()
    again = rankdad("simulate", "--resume", tmp_path / "run")
    assert again.returncode == 2
    assert "its run is complete" in again.stderr


@pytest.mark.exhaustive
def test_a_full_disk_ends_the_run_with_a_sentence_and_it_goes_on_from_there(tmp_path: Path) -> None:
    file, undisturbed = long_run(tmp_path, {"name": "rank-dad", "rank": 2}, epochs=60)
    command = [*COMMAND, "simulate", str(file), "--output", str(tmp_path / "run"), "--ledger"]
    limited = ["bash", "-c", 'ulimit -f 200; exec "$@"', "bash", *command]  # 200 KB a file
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "run.sqlite: cannot be written: " in done.stderr
    assert done.stderr.endswith("[cannot-write]\n")
    assert "Traceback" not in done.stderr
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    for path in (tmp_path / "again" / "sites" / "alpha").rglob("*.npz"):
        path.write_bytes(b"")
    done = rankdad("simulate", "--resume", tmp_path / "again")
    assert (done.returncode, "[npz-unreadable]" in done.stderr) == (2, True), done.stderr
    shutil.copytree(tmp_path / "run" / "sites", tmp_path / "again" / "sites", dirs_exist_ok=True)
    (tmp_path / "again" / FILE).write_bytes(b"\0" * 100)
    done = rankdad("simulate", "--resume", tmp_path / "again")
    assert done.returncode == 2, done.stderr
    assert "[record-damaged]" in done.stderr, "its own error, not that of the processes before"
    done = rankdad("simulate", "--resume", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["weights_sha256"].values()) == {undisturbed}


@pytest.mark.slow
@pytest.mark.parametrize(("full", "limit"), [("beta", 3 << 10), ("aggregator", 64 << 10)])
def test_all_others_wait_for_a_full_disk_and_the_run_goes_on_to_the_same_bits(
    tmp_path: Path, full: str, limit: int
) -> None:
    file, undisturbed = long_run(tmp_path, {"name": "rank-dad", "rank": 2}, epochs=30)
    port = free_port()
    assert rankdad("split", file, "--output", tmp_path, "--aggregator", f"http://127.0.0.1:{port}").returncode == 0
    commands: dict[str, tuple[object, ...]] = {name: ("site", tmp_path / f"{name}.json") for name in SITES}
    commands["aggregator"] = ("aggregator", file, "--output", tmp_path / "run", "--port", port)
    processes = {name: start(*command) for name, command in commands.items()}
    try:
        wait_for_steps(tmp_path / "run", 60)
        resource.prlimit(processes[full].pid, resource.RLIMIT_FSIZE, (limit, limit))  # bytes of a file
        _, logged = processes[full].communicate(timeout=LONGEST)
        assert (processes[full].returncode, "[cannot-write]" in logged, "Traceback" in logged) == (2, True, False)
        assert all(process.poll() is None for name, process in processes.items() if name != full)
        processes[full] = start(*commands[full])
        for name, process in processes.items():
            _, logged = process.communicate(timeout=LONGEST)
            assert (name, process.returncode) == (name, 0), logged
        assert full == "aggregator" or "output: cannot-write" in logged, "the aggregator says whom all wait for"
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(summary["weights_sha256"].values()) == {undisturbed}
    assert not [*tmp_path.rglob("*/checkpoints")][1:], "but the aggregator's"


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"name": "rank-dad", "rank": 2}, id="rank-dad"),
        pytest.param({"name": "powersgd", "rank": 2}, id="powersgd", marks=pytest.mark.exhaustive),
    ],
)
def test_a_killed_site_and_an_aggregator_stopped_and_killed_go_on_to_the_same_bits(
    tmp_path: Path, method: dict[str, Any]
) -> None:
    file, undisturbed = long_run(tmp_path, method)
    port, run = free_port(), tmp_path / "run"
    split = rankdad("split", file, "--output", tmp_path / "demo", "--aggregator", f"http://127.0.0.1:{port}")
    assert split.returncode == 0, split.stderr
    serve = ("aggregator", file, "--output", run, "--port", port)
    aggregator = start(*serve)
    sites = {name: start("site", tmp_path / "demo" / f"{name}.json", "--patience", 30) for name in SITES}
    try:
        wait_for_steps(run, 52)
        sites["beta"].kill()
        sites["beta"].communicate()
        sites["beta"] = start("site", tmp_path / "demo" / "beta.json", "--patience", 30)
        wait_for_steps(run, 70)
        began = time.monotonic()
        aggregator.send_signal(signal.SIGTERM)
        _, logged = aggregator.communicate(timeout=10)
        assert time.monotonic() - began < 4
        assert (aggregator.returncode, "Traceback" in logged) == (130, False)
        last = logged.splitlines()[-1]
        assert last.startswith("error: stopped by SIGTERM; the records are in")
        assert "the same command resumes it" in last
        assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
        assert all(site.poll() is None for site in sites.values()), "they wait for it"
        aggregator = start(*serve)
        wait_for_steps(run, 90)
        aggregator.kill()
        aggregator.communicate()
        aggregator = start(*serve)
        for name, site in sites.items():
            _, logged = site.communicate(timeout=60)
            assert site.returncode == 0, (name, logged)
            assert ("continues from its checkpoint of step 50" in logged) == (name == "beta"), logged
        _, logged = aggregator.communicate(timeout=60)
        assert aggregator.returncode == 0, logged
        assert "resumed from the ledger" in logged
    finally:
        for process in (aggregator, *sites.values()):
            process.kill()
            process.communicate()
    audit = [json.loads(line)["what"] for line in (run / "audit.jsonl").read_text().splitlines()]
    ways = [what.removeprefix("run ") for what in audit if what.startswith("run ")]
    assert ways == ["started", "ended", "resumed", "resumed", "ended"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(summary["weights_sha256"].values()) == {undisturbed}
    assert references_of(tmp_path / "run") == references_of(tmp_path / "undisturbed")
