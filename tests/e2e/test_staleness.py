"""A real site that is slower than the others, killed like the aggregator: it takes part, and the ledger tells."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from rankdad.remote.export import export
from tests.conftest import SITES, run_spec, write_site
from tests.e2e.crashing import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SLOW = "gamma"


def test_a_slow_site_takes_part_whoever_is_killed_and_all_end_as_the_ledger_says(tmp_path: Path) -> None:
    federation = {"sites": list(SITES), "quorum": 2, "grace": 0.05, "staleness": 4, "compare_every": 20}
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 16}, federation=federation)
    for place, site in enumerate(SITES):
        write_site(tmp_path / "data" / site, 80, place)
    run = Run(spec, tmp_path / "data", tmp_path / "crashing", {}, pauses={SLOW: 0.07})
    with run.started():
        for step, victims in ((15, [SLOW]), (30, ["aggregator"]), (45, [SLOW, "aggregator"]), (60, ["alpha"])):
            run.wait_for_step(step)
            for victim in victims:
                run.kill(victim)
            for victim in victims:
                run.start(victim)
        run.finish()
    summary = json.loads((run.directory / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["late"][SLOW] >= 5
    assert set(summary["weights_sha256"].values()) == {summary["aggregator_sha256"]}
    models = {(tmp_path / "crashing" / site / "model" / "final.safetensors").read_bytes() for site in SITES}
    assert len(models) == 1, "the slow one, too, which may have come too late to say goodbye"
    assert export(run.directory, None, tmp_path / "exported").replica.digest() == summary["aggregator_sha256"]
    steps = pd.read_csv(run.directory / "steps.csv")
    assert list(steps["step"]) == list(range(1, summary["steps"] + 1))
    joined = " ".join(steps["late"].dropna()).split()
    assert sum(one.startswith(f"{SLOW}:") for one in joined) == summary["late"][SLOW]
