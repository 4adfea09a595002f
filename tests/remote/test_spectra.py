"""Singular values of updates: right, kept beside the steps, drawn, and there again after a restart."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.data import SiteData
from rankdad.common.errors import UserError
from rankdad.common.lowrank.factors import Factor, singular_values
from rankdad.page.history import History, rebuild_history
from rankdad.remote.report.run_report import report
from rankdad.remote.tables import rows_in
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, run_spec


@given(st.integers(0, 12), st.integers(1, 8), st.integers(1, 8), st.integers(1, 10), st.integers(0, 1000))
def test_they_are_those_of_the_product(rows: int, out: int, columns: int, count: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    factor = Factor(torch.randn(rows, out, generator=draw), torch.randn(rows, columns, generator=draw))
    expected = torch.linalg.svdvals(factor.gradient().double())[: min(count, rows)]
    assert singular_values(factor, count) == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.slow
def test_a_run_keeps_them_every_so_many_steps(site_data: Callable[..., dict[str, SiteData]], tmp_path: Path) -> None:
    changes: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 3}, "training": {"epochs": 3, "validation": 0.2}}
    changes["training"]["monitor"] = "accuracy"
    for name, every in (("with", 4), ("without", 0)):
        spec = run_spec(record={"spectra": every}, **changes)
        run(spec, site_data(spec), tmp_path / name)
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("with", "without")]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]
    assert not (tmp_path / "without" / "spectra.csv").exists()
    rows = table(tmp_path / "with" / "spectra.csv")
    steps = table(tmp_path / "with" / "steps.csv")
    layers = [name.removeprefix("rank:") for name in steps[0] if name.startswith("rank:")]
    assert [int(row["step"]) for row in rows] == [step for step in range(4, len(steps) + 1, 4) for _ in layers]
    for row in rows:
        values = [float(row[name]) for name in ("s1", "s2", "s3") if row[name]]
        assert values == sorted(values, reverse=True)
        assert len(values) == int(row["rank"]) == int(steps[int(row["step"]) - 1][f"rank:{row['layer']}"])
    page = report(tmp_path / "with")
    assert "Effective rank of each layer" in page
    assert "Singular values of each layer" in page
    assert "Singular values" not in report(tmp_path / "without")

    history = History(SITES, layers, ["loss", "accuracy"])
    rebuild_history(history, partial(rows_in, tmp_path / "with"), layers)
    told = json.loads(history.patches({})[0])
    assert told["steps"]["y"]["loss"] == [pytest.approx(float(row["loss"]), rel=1e-4) for row in steps]
    epochs = [row for row in table(tmp_path / "with" / "metrics.csv") if row["split"] == "validation"]
    own = [float(row["accuracy"]) for row in epochs if row["site"] == "alpha"]
    assert np.array(told["epochs"]["y"]["accuracy:alpha"], float) == pytest.approx(own, rel=1e-4)
    assert len(told["epochs"]["x"]) == 3
    assert told["spectra"]["y"]["step"] == sorted({int(row["step"]) for row in rows})


def test_updates_that_are_no_factors_have_none() -> None:
    with pytest.raises(UserError, match="spectra: got 5, but updates of dsgd are no factors"):
        run_spec(record={"spectra": 5})
