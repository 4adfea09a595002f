"""Runs on texts: four hospitals train as one machine with all rows would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.simulations.lockstep import run
from rankdad.simulations.pooling import SITE, pooled_data, pooled_spec
from tests.simulations.test_lockstep import rows_of
from tests.texts import EXACT, text_data, text_spec

TASKS: dict[str, dict[str, Any]] = {"classification": {}}


@pytest.mark.parametrize("task", TASKS)
def test_full_gradients_train_as_one_machine_does(tmp_path: Path, task: str) -> None:
    spec = text_spec(method={"name": "dsgd", "wire": "float64"}, training=EXACT, **TASKS[task])
    data = text_data(tmp_path / "data", spec)
    apart = run(spec, data, tmp_path / "apart")
    alone = pooled_spec(spec, data)
    alone = alone.model_copy(update={"method": spec.method})  # in float64, which pooled gradients need not be
    (together,) = run(alone, {SITE: pooled_data(data)}, tmp_path / "together").values()
    for site in apart.values():
        for name, value in site.final.items():
            torch.testing.assert_close(together.final[name], value, rtol=0, atol=1e-10)
    for split in ("validation", "test"):
        one, other = (_pooled(tmp_path / name / "metrics.csv", split) for name in ("apart", "together"))
        assert len(one) == len(other)
        for ours, theirs in zip(one, other, strict=True):
            assert float(ours["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-9)


def _pooled(path: Path, split: str) -> list[dict[str, str]]:
    return [row for row in rows_of(path) if row["site"] == "pooled" and row["split"] == split]
