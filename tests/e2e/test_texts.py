"""Texts at real processes: the weights of a run in one process, and of a site that is two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rankdad.common.tensors import weights_sha256
from tests.conftest import OPEN, run_document
from tests.e2e.house import furthest, house
from tests.e2e.test_processes import rankdad
from tests.texts import CLASSES, DATA, LABEL, MODEL, notes, write_notes

TASKS: dict[str, dict[str, Any]] = {
    "classification": {"task": CLASSES, "data": DATA | LABEL},
    "language model": {"task": {"name": "language-model"}, "data": DATA},
}
METHODS: dict[str, dict[str, Any]] = {
    "dsgd": {"name": "dsgd"},
    "rank-dad": {"name": "rank-dad", "rank": 2, "wire": "int4"},
}


def write(folder: Path, count: int, seed: int) -> Path:
    return write_notes(folder, notes(count, seed))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_processes_and_lockstep_give_the_same_bits(tmp_path: Path, task: str, method: str) -> None:
    sites = ("alpha", "beta")
    for seed, site in enumerate(sites):
        write(tmp_path / "data" / site, 30 - 7 * seed, seed)
    run = run_document(model=MODEL, method=METHODS[method], federation={"sites": sites}, **TASKS[task])
    source = {"name": "folders", "path": str(tmp_path / "data")}
    simulation = {"source": source, "partition": {"name": "folder"}, "policy": OPEN}
    (tmp_path / "file.json").write_text(json.dumps({"run": run, "simulation": simulation}))
    digests = set[str]()
    for name, options in (("processes", []), ("lockstep", ["--lockstep"])):
        done = rankdad("simulate", tmp_path / "file.json", "--output", tmp_path / name, "--json", *options)
        assert done.returncode == 0, done.stderr
        digests |= set(json.loads(done.stdout)["weights_sha256"].values())
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_two_ranks_end_with_the_weights_of_one_process(tmp_path: Path, task: str, method: str) -> None:
    """Both take part in each step, with texts of other lengths."""
    ended = list[dict[str, Tensor]]()
    for size in (1, 2, 2):
        place = tmp_path / str(len(ended))
        with house(
            place, both=True, samples=26, write=write, model=MODEL, method=METHODS[method], **TASKS[task]
        ) as found:
            ended.append(found.done(size))
    assert furthest(ended[0], ended[1]) < 1e-4
    assert weights_sha256(ended[1]) == weights_sha256(ended[2])
