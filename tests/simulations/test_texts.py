"""Runs on texts: four hospitals train as one machine with all rows would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.preparation import in_memory
from rankdad.common.spec.text import PADDING
from rankdad.simulations.lockstep import run
from rankdad.simulations.pooling import SITE, pooled_data, pooled_spec
from tests.conftest import part_of
from tests.runs import rows_of
from tests.texts import EXACT, text_data, text_spec

TASKS: dict[str, dict[str, Any]] = {
    "classification": {},
    "language model": {"task": {"name": "language-model"}},
    "untied": {"task": {"name": "language-model"}, "model": {"tied": False, "positions": "learned"}},
}


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_every_token_of_all_hospitals_has_one_weight(tmp_path: Path, tied: bool) -> None:
    """Held against PyTorch on the mean over all tokens."""
    spec = text_spec(**TASKS["language model"] | {"model": {"tied": tied}}, training=EXACT,
                     method={"name": "dsgd", "wire": "float64"})  # fmt: skip
    data = text_data(tmp_path / "data", spec)
    (trained, *_) = run(spec, data, tmp_path / "run").values()
    model = build_model(spec)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    rows = torch.cat([in_memory(part_of(site, "train").inputs) for site in data.values()])
    for _ in range(spec.training.epochs):
        optimizer.zero_grad()
        after = rows[:, 1 : int(rows.count_nonzero(dim=1).max())]
        logits = model(rows)[:, : after.shape[1]]
        F.cross_entropy(logits.flatten(0, 1), after.flatten(), ignore_index=PADDING).backward()
        optimizer.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(trained.final[name], value.detach(), rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_hospitals_with_default_policies_agree(tmp_path: Path, task: str) -> None:
    """Patients with several texts, tested in two folds."""
    spec = text_spec(method={"name": "rank-dad", "rank": 2}, training={"batch_size": 16, "validation": 0.2},
                     evaluation={"name": "k-fold", "folds": 2, "refit": False},
                     **TASKS[task] | {"data": {"group": "patient", "length": 128}})  # fmt: skip
    data = text_data(tmp_path / "data", spec, (88, 96, 92, 90), (9, 12))
    found = run(spec, data, tmp_path / "run", policies=dict.fromkeys(data, Policy(keyed_folds=True)))
    assert len({digest for site in found.values() for digest in site.weights_sha256.values()}) == 1
    assert next(iter(found.values())).test.samples
