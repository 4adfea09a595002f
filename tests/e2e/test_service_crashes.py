"""Six runs of three kinds, four agents, and kill -9 of the service and of two agents at random moments."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.data import read_site
from rankdad.common.documents import load_json
from rankdad.common.protocol.service import State
from rankdad.local.drivers.service import ServiceClient
from rankdad.remote.tables import rows_in
from rankdad.simulations import lockstep
from tests.conftest import run_document, run_spec, write_site
from tests.e2e.consortium import OVER, Consortium

FOUR = ("alpha", "beta", "gamma", "delta")
KINDS: dict[str, dict[str, Any]] = {
    "rank-dad": {"method": {"name": "rank-dad", "rank": 2}, "model": {"name": "mlp", "hidden": [16], "dropout": 0.1}},
    "powersgd": {"method": {"name": "powersgd", "rank": 2}},
    "local": {"method": {"name": "rank-dad", "rank": 2, "wire": "int8", "local_steps": 2}},
}
EACH = 2  # runs of a kind
DAWDLE = 1.0  # seconds after a moment within which a process dies


def document_of(kind: str) -> dict[str, Any]:
    return run_document(name=kind, federation={"sites": list(FOUR)}, training={"epochs": 3}, **KINDS[kind])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number, (site, count) in enumerate(zip(FOUR, (60, 50, 40, 30), strict=True)):
        write_site(folder / site, count, number)
    return folder


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a run of each kind comes to in one process, where nothing dies."""
    folder, found = tmp_path_factory.mktemp("undisturbed"), {}
    for kind in KINDS:
        spec = run_spec(**document_of(kind))
        samples = {site: read_site(spec, data / site, index) for index, site in enumerate(FOUR)}
        lockstep.run(spec, samples, folder / kind)
        found[kind] = load_json(folder / kind / "summary.json")
    return found


def are_over(number: int, client: ServiceClient) -> bool:
    return sum(run.state in OVER for run in client.runs().runs) >= number


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.exhaustive] if seed > 1 else []) for seed in range(20)]
)
def test_six_runs_each_end_once_whoever_is_killed(
    tmp_path: Path, data: Path, undisturbed: dict[str, dict[str, Any]], seed: int
) -> None:
    drawn = random.Random(seed)
    victims = ["service", *drawn.sample(FOUR, 2)]
    moments = sorted(drawn.randrange(0, 3 * EACH - 1) for _ in victims)  # how many runs are over then
    drawn.shuffle(victims)
    with Consortium(tmp_path / "all", data, FOUR).started() as all_:
        runs = {all_.submit(document_of(kind)): kind for _ in range(EACH) for kind in KINDS}
        for victim, moment in zip(victims, moments, strict=True):
            all_.until(partial(are_over, moment))
            time.sleep(drawn.uniform(0, DAWDLE))  # anywhere in whatever it does
            all_.kill(victim)
            all_.start(victim)
        found = all_.until_over(*runs)
        all_.until(
            lambda _: all(
                (all_.folder / site / "out/runs" / run / "finished").exists() for run in runs for site in FOUR
            )
        )
    for run, kind in runs.items():
        expected, summary = undisturbed[kind], all_.summary(run)
        assert found[run].state is State.ENDED, f"{run}: {found[run].reason}"
        assert summary["weights_sha256"] == dict.fromkeys(FOUR, expected["aggregator_sha256"]), run
        assert summary["aggregator_sha256"] == expected["aggregator_sha256"]
        steps = [int(row["step"]) for row in rows_in(all_.directory / "runs" / run, "steps")]
        assert steps == list(range(1, expected["steps"] + 1)), f"{run}: every step once"
        for site in FOUR:
            assert list((all_.folder / site / "out/runs" / run / "model").iterdir())
    assert len(list((all_.directory / "runs").iterdir())) == len(runs)
