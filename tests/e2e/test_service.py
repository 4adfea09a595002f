"""A service with agents: what is submitted is trained once, and hospitals decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdad.common.protocol.service import State
from rankdad.common.spec import RunSpec
from rankdad.local.data import read_site
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_document, run_spec, write_site
from tests.e2e.consortium import Consortium


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number, (site, count) in enumerate(zip(SITES, (60, 50, 40), strict=True)):
        write_site(folder / site, count, number)
    return folder


def undisturbed(spec: RunSpec, data: Path, folder: Path) -> str:
    """Return the digest of the weights of a run in one process."""
    from rankdad.common.documents import load_json

    lockstep.run(spec, {site: read_site(spec, data / site, i) for i, site in enumerate(SITES)}, folder)
    digest: str = load_json(folder / "summary.json")["aggregator_sha256"]
    return digest


def test_two_runs_end_with_the_weights_of_lockstep(tmp_path: Path, data: Path) -> None:
    documents: list[dict[str, Any]] = [run_document(name="first"), run_document(name="second one", seed=5)]
    with Consortium(tmp_path / "all", data, SITES).started() as all_:
        runs = [all_.submit(document) for document in documents]
        assert runs == ["first-1", "second-one-2"]
        found = all_.until_over(*runs)
    assert {run.state for run in found.values()} == {State.ENDED}, all_.said()
    for run, document in zip(runs, documents, strict=True):
        expected = undisturbed(run_spec(**document), data, tmp_path / run)
        assert all_.summary(run)["weights_sha256"] == dict.fromkeys(SITES, expected)
