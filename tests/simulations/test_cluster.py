"""A simulation over torchrun's processes: weights and files of one machine, or one sentence at all ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.documents import validate
from rankdad.remote.tables import count_of
from rankdad.simulations.lockstep import simulate
from rankdad.simulations.spec import SimulationFile
from tests.conftest import OPEN, SITES, run_document, sampled, write_site
from tests.ports import free_port
from tests.torchrun import start_ranks
from tests.warm import Warm

pytestmark = pytest.mark.slow

SECONDS = 120.0  # in which all is over, on a machine that does other things as well
SIMULATE = ["simulate", "file.json", "--output", "run"]


def written(path: Path, simulation: Mapping[str, Any], **changes: Any) -> Path:
    policy = {"policy": OPEN}
    path.write_text(json.dumps({"run": run_document(**changes), "simulation": policy | dict(simulation)}))
    return path


def pool(folder: Path, count: int = 150) -> dict[str, Any]:
    return {"source": {"name": "npz", "path": str(write_site(folder / "pool", count, 0) / "data.npz")}}


def ended(ranks: list[Warm]) -> list[tuple[int | None, str, str]]:
    """Return each rank's exit status and what it has said, once all have ended."""
    deadline = time.monotonic() + SECONDS
    said = [rank.communicate(deadline - time.monotonic()) for rank in ranks]
    return [(rank.returncode, *its) for rank, its in zip(ranks, said, strict=True)]


def files_of(directory: Path) -> dict[str, object]:
    """Return what a run has written, without what is measured in seconds, or is of a time."""
    found: dict[str, object] = {}
    for path in directory.rglob("*"):
        if path.name == "steps.csv":
            rows = [row.split(",") for row in path.read_text().splitlines()]
            kept = [at for at, name in enumerate(rows[0]) if "seconds" not in name]
            found[str(path.relative_to(directory))] = [[row[at] for at in kept] for row in rows]
        elif path.name == "summary.json":
            summary = json.loads(path.read_text())
            found[str(path.relative_to(directory))] = {key: summary[key] for key in summary if "seconds" not in key}
        elif path.is_file() and path.name != "retention.json":
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def after_steps(directory: Path, count: int) -> None:
    """Return when a run has taken so many steps."""
    deadline = time.monotonic() + SECONDS
    while count_of(directory, "steps") < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


STUDIES: dict[str, dict[str, Any]] = {
    "rank-dad": {"method": {"name": "rank-dad", "rank": 2}},
    "folds": {
        "method": {"name": "powersgd", "rank": 2},
        "training": {"epochs": 1},
        "evaluation": {"name": "k-fold", "folds": 2, "references": ["local", "linear", "site"]},
    },
    "regions": {
        "method": {"name": "dsgd"},
        "federation": {"sites": list(SITES), "regions": {"north": ["alpha", "gamma"], "south": ["beta"]}},
    },
}


@pytest.mark.parametrize("study", sampled(STUDIES, 3))
def test_two_ranks_write_what_one_process_writes(tmp_path: Path, study: str) -> None:
    path = written(tmp_path / "file.json", pool(tmp_path), **STUDIES[study])
    node = tmp_path / "node"  # which has no file
    node.mkdir()
    words = [*SIMULATE, "--json"]
    (status, said, errors), other = ended(start_ranks([words, words], [tmp_path, node]))
    assert (status, other) == (0, (0, "", "")), errors
    simulate(validate(SimulationFile, json.loads(path.read_text())), tmp_path / "lockstep", json_output=True)
    expected, found = files_of(tmp_path / "lockstep"), files_of(tmp_path / "run")
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    assert json.loads(said) == json.loads((tmp_path / "run" / "summary.json").read_text())


def test_each_rank_reads_the_folders_of_its_own_sites_alone(tmp_path: Path) -> None:
    digests = []
    for size in (1, 2):
        for rank in range(size):
            node = tmp_path / f"{size}-{rank}"
            for at, site in enumerate(SITES):
                (node / "data" / site).mkdir(parents=True)
                if at % size == rank:
                    write_site(node / "data" / site, 30 + at, at)
            folders = {"source": {"name": "folders", "path": "data"}, "partition": {"name": "folder"}}
            written(node / "file.json", folders)
        nodes = [tmp_path / f"{size}-{rank}" for rank in range(size)]
        words = [*SIMULATE, "--json"]
        outcome = ended(start_ranks([words] * size, nodes))
        assert [status for status, *_ in outcome] == [0] * size, outcome
        digests.append(json.loads(outcome[0][1])["aggregator_sha256"])
        assert {path.name for path in (nodes[0] / "run" / "sites").iterdir()} == set(SITES)
    assert digests[0] == digests[1]


REFUSED = {
    "another file": (
        {1: ["--set", "run.seed=5"]},
        r"error: rank 1 on \S+: file.json: differs from rank 0's simulation: give all ranks the same file",
    ),
    "a wrong value at one rank": ({1: ["--set", "run.seed=-5"]}, r"error: rank 1 on \S+: file.json: run.seed: "),
    "a wrong value at all": ({0: ["--set", "run.seed=-5"], 1: ["--set", "run.seed=-5"]}, r"error: file.json: run.seed"),
    "an option of processes": ({0: ["--pooled"], 1: ["--pooled"]}, "error: --pooled: torchrun's ranks train in lock"),
    "no GPU": (
        {at: ["--set", 'simulation.device="cuda:40"'] for at in (0, 1)},
        "error: simulation.device: got cuda:40",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_one_sentence_at_all_ranks(tmp_path: Path, mistake: str) -> None:
    more, sentence = REFUSED[mistake]
    written(tmp_path / "file.json", pool(tmp_path))
    for status, said, errors in ended(start_ranks([[*SIMULATE, *more.get(at, [])] for at in (0, 1)], [tmp_path] * 2)):
        assert (status, said, errors.count("\n")) == (2, "", 1), errors
        assert re.match(sentence, errors), errors


def test_bad_data_at_one_rank_are_named_at_all(tmp_path: Path) -> None:
    for at, site in enumerate(SITES):
        write_site(tmp_path / "data" / site, 30, at)
    (tmp_path / "data" / "beta" / "data.npz").write_bytes(b"no archive")
    folders = {"source": {"name": "folders", "path": "data"}, "partition": {"name": "folder"}}
    written(tmp_path / "file.json", folders)
    for status, said, errors in ended(start_ranks([SIMULATE] * 2, [tmp_path] * 2)):
        assert (status, said, errors.count("\n")) == (2, "", 1), errors
        assert errors.startswith("error: rank 1 on ")
        assert "beta/data.npz" in errors


@pytest.mark.slow
@pytest.mark.parametrize(("killed", "named"), [(2, "gamma failed: its process, rank 2 on "), (0, "rank 0 has ended")])
def test_a_rank_that_is_killed_ends_the_run_in_one_sentence_at_all_others(
    tmp_path: Path, killed: int, named: str
) -> None:
    written(tmp_path / "file.json", pool(tmp_path), training={"epochs": 100_000})
    ranks = start_ranks([SIMULATE] * 3, [tmp_path] * 3)
    after_steps(tmp_path / "run", 20)
    ranks[killed].kill()
    for rank, (status, _, errors) in enumerate(ended(ranks)):
        if rank != killed:
            assert status == 1
            assert errors.startswith(f"error: {named}"), errors
            assert errors.count("\n") == 1, errors
    if killed:
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert (summary["status"], summary["reason"].startswith("gamma: its process")) == ("failed", True)


@pytest.mark.slow
def test_a_run_that_can_do_without_a_killed_ranks_sites_goes_on(tmp_path: Path) -> None:
    federation = {"sites": list(SITES), "quorum": 2, "grace": 0.01}
    written(tmp_path / "file.json", pool(tmp_path), federation=federation, training={"epochs": 15})
    ranks = start_ranks([SIMULATE] * 3, [tmp_path] * 3)
    after_steps(tmp_path / "run", 10)
    ranks[2].kill()
    (status, said, errors), *_ = ended(ranks)
    assert status == 0, errors
    assert "quorum:  gamma was left out of" in said


def test_other_commands_say_that_they_run_on_one_machine(tmp_path: Path) -> None:
    for status, said, errors in ended(start_ranks([["verify", "file.json"]] * 2, [tmp_path] * 2)):
        assert (status, said) == (2, "")
        assert (
            errors
            == "error: verify: runs as one process on one machine: start it without torchrun [one-process-only]\n"
        )


@pytest.mark.exhaustive
def test_24_sites_over_3_nodes_of_torchrun_end_with_the_weights_of_one_machine(tmp_path: Path) -> None:
    sites = [f"site-{at:02d}" for at in range(24)]
    method = {"name": "rank-dad", "rank": 2}
    path = written(tmp_path / "file.json", pool(tmp_path, 700), method=method, federation={"sites": sites})
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "3", "--master-addr", "127.0.0.1"]
    launch += ["--master-port", str(free_port())]
    command = ["-m", "rankdad", "simulate", str(path), "--output", str(tmp_path / "run")]
    # What the ranks write goes to files: torchrun itself may speak of a store that ended before it.
    logs = [tmp_path / f"node-{node}" for node in range(3)]
    nodes = [
        subprocess.Popen([*launch, "--node-rank", str(node), "--log-dir", str(log), "--redirects", "3", *command])
        for node, log in enumerate(logs)
    ]
    statuses = [node.wait(timeout=250) for node in nodes]
    said = ["".join(file.read_text() for file in sorted(log.rglob("std*.log"))) for log in logs]
    assert statuses == [0, 0, 0], said
    assert "24 sites" in said[0]
    assert said[1] == said[2] == ""
    simulate(validate(SimulationFile, json.loads(path.read_text())), tmp_path / "lockstep", json_output=True)
    expected, found = files_of(tmp_path / "lockstep"), files_of(tmp_path / "run")
    assert [name for name in expected if found.get(name) != expected[name]] == []
