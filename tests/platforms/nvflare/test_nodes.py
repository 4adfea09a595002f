"""Server and clients of NVFlare in one process, without NVFlare: what they carry, and how a job ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankdad.common.data import read_site
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec
from tests.platforms.nvflare.conftest import ID
from tests.platforms.nvflare.engine import Engine

Make = Callable[..., Engine]


def weights(folder: Path) -> set[str]:
    """The digests of all sites' final weights, of a run that has completed."""
    (directory,) = (folder / "server" / "runs").iterdir()
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["status"] == "completed", summary
    assert set(summary["weights_sha256"]) == set(SITES)
    return set(summary["weights_sha256"].values())


def undisturbed(folder: Path, **changes: Any) -> set[str]:
    spec = run_spec(**changes)
    data = {site: read_site(spec, folder / site / "data", index) for index, site in enumerate(SITES)}
    return {result.weights_sha256[site] for site, result in lockstep.run(spec, data, folder / "lockstep").items()}


def test_a_job_ends_with_the_weights_of_lockstep(consortium: Make, tmp_path: Path) -> None:
    method = {"name": "rank-dad", "rank": 2}
    engine = consortium(method=method)
    engine.run()
    assert not engine.controller.panics
    assert set(engine.codes) == {"OK"}
    assert weights(tmp_path) == undisturbed(tmp_path, method=method)
    for site in SITES:
        own = tmp_path / site / "out" / "runs" / ID
        assert (own / "model").is_dir()
        assert json.loads((own / "receipt.json").read_text())["status"] == "completed"
        assert (own / "finished").exists()
