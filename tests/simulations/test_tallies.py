"""What sites tell of their samples' scores under a policy: little between epochs, curves once, after the last test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.metrics import parts
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.protocol.messages import Evaluation
from rankdad.local.contributions import Contributions
from rankdad.local.data import SiteData
from rankdad.local.evaluation import Said, said_in, written
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, run_spec

Data = Callable[..., dict[str, SiteData]]
FEWEST = 8
ONE_OWNERS = EVERYTHING
HOSPITALS = EVERYTHING.model_copy(update={"min_rows": FEWEST})


def metrics(data: dict[str, SiteData], spec: Any, folder: Path, policy: Policy) -> dict[str, Any]:
    run(spec, data, folder, policies=dict.fromkeys(SITES, policy))
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())["metrics"]
    return found


def test_curves_leave_once_and_cost_the_figures_little(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = {"name": "k-fold", "folds": 3, "refit": False, "references": ["local"]}
    training = {"validation": 0.3, "monitor": "loss", "epochs": 2, "batch_size": 24}
    spec = run_spec(evaluation=evaluation, training=training, task={"name": "classification", "classes": 3})
    data, sent = site_data(spec, (120, 100, 90)), list[Evaluation]()
    real = Contributions._evaluation

    def looked_at(self: Contributions, *given: Any) -> Evaluation:
        sent.append(real(self, *given))
        return sent[-1]

    exact = metrics(data, spec, tmp_path / "exact", ONE_OWNERS)
    monkeypatch.setattr(Contributions, "_evaluation", looked_at)
    found = metrics(data, spec, tmp_path / "few", HOSPITALS)
    assert [len(one.whole) for one in sent if one.references] == [0] * 6 + [2] * 3
    for one in sent:
        for whole in one.whole:
            bins = parts(spec.task, whole).scores.sum(1)
            assert int(bins[bins > 0].min()) >= FEWEST
    assert found["folds"]["accuracy"] == exact["folds"]["accuracy"]
    assert found["folds"]["auc"]["count"] == 0, "of a fold alone it is too coarse to be told"
    for name in ("loss", "accuracy", "f1"):
        assert found["references"]["local"]["values"][name] == pytest.approx(
            exact["references"]["local"]["values"][name]
        )
    for ours, theirs in zip(found["risks"], exact["risks"], strict=True):
        assert ours["auc"] == pytest.approx(theirs["auc"], abs=0.02)
        assert ours["brier"] == pytest.approx(theirs["brier"])


def test_a_site_that_comes_back_knows_what_was_said_in_earlier_folds() -> None:
    said = Said(torch.randn(4, 2), torch.arange(4), torch.rand(4).double(), people=torch.tensor([0, 0, 1, 2]))
    again = said_in(written({1: (said, None)}))
    assert again[1][1] is None
    kept = again[1][0]
    assert kept is not None
    assert kept.groups is None
    assert all(
        torch.equal(getattr(kept, name), getattr(said, name)) for name in ("outputs", "labels", "losses", "people")
    )
    assert said_in("") == {}
