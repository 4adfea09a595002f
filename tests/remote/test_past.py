"""What the page says of a run that is over is what the run's own files say."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdad.common.data import SiteData
from rankdad.common.documents import load_json
from rankdad.remote.page_document import past_page
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec


@pytest.mark.slow
def test_a_run_that_is_over_is_told_from_its_directory(
    tmp_path: Path, site_data: Callable[..., dict[str, SiteData]]
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"validation": 0.2}, record={"spectra": 2})
    lockstep.run(spec, site_data(spec), tmp_path / "run")
    summary = load_json(tmp_path / "run/summary.json")
    document, history = past_page(tmp_path / "run", "cancelled", "by anna", [(None, "info", "the last line")])
    with (tmp_path / "run/steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    stand, traffic = document["stand"], document["traffic"]
    assert (stand["status"], stand["reason"], stand["step"]) == ("completed", "", len(rows))
    assert stand["loss"] == float(rows[-1]["loss"])
    assert stand["validation"] == summary["metrics"]["validation"][spec.training.monitor]
    assert traffic["up"] == pytest.approx(sum(int(row["bytes_up"]) for row in rows))
    assert traffic["down"] == pytest.approx(sum(int(row["bytes_down"]) for row in rows))
    assert [site["name"] for site in document["sites"]] == list(SITES)
    curves = json.loads(history.patches({})[0])
    assert curves["steps"]["x"][-1] == len(rows)
    assert curves["epochs"]["x"] == [1, 2]
    assert [name for name in curves if name.startswith("spectrum:")]
    assert set(document["run"]["layers"]) == {name.removeprefix("rank:") for name in rows[0] if name[:5] == "rank:"}
    assert json.loads(json.dumps(document, allow_nan=False)) == json.loads(json.dumps(document))

    summary |= {"status": "running"}  # cancelled while nobody served it
    (tmp_path / "run/summary.json").write_text(json.dumps(summary))
    stand = past_page(tmp_path / "run", "cancelled", "by anna", [])[0]["stand"]
    assert (stand["status"], stand["reason"]) == ("cancelled", "by anna")
