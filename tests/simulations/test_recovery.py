"""The recovery matrix: whoever dies in whatever kind of run, it ends with an undisturbed run's weights and figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankdad.common.errors import UserError
from rankdad.common.policy import EVERYTHING
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec.solver import NOT_EXACT
from rankdad.remote.export import export
from tests.conftest import SITES, run_spec
from tests.simulations import recovering
from tests.simulations.recovering import FACTORED, METHODS, NAMES, Data, Run, tables_of

pytestmark = pytest.mark.slow

DROPOUT = {"name": "mlp", "hidden": [16, 16], "dropout": 0.2}
SCHEDULED: dict[str, Any] = {"epochs": 2, "batch_size": 12, "schedule": {"name": "cosine", "warmup": 2}, "clip": 1.0}
FOLDS: dict[str, Any] = {"name": "k-fold", "folds": 2}
LINEAR: dict[str, Any] = {
    "model": {"name": "linear"},
    "method": {"name": "dsgd"},
    "training": {"solver": "auto", "epochs": 1, "batch_size": 12},
    "evaluation": {"name": "holdout", "references": ["site"]},
}
OVERRIDES = {"alpha": {"epochs": 1, "batch_size": 12}, "gamma": {"batch_size": 4, "local_steps": 3}}
RUNS: dict[str, dict[str, Any]] = {  # of which `make sample` takes each eighth
    **{
        name: {"method": method, "model": DROPOUT, "training": SCHEDULED}
        for name, method in zip(NAMES, METHODS, strict=True)
    },
    **{
        f"{name}, factored": {"method": method, "model": DROPOUT, "training": SCHEDULED | FACTORED}
        for name, method in zip(NAMES[1:3], METHODS[1:3], strict=True)
    },
    "folds": {
        "method": METHODS[0],
        "preparation": {"standardise": "federated"},
        "evaluation": FOLDS | {"references": ["local", "linear", "site"]},
        "training": {"epochs": 1, "batch_size": 5, "schedule": {"name": "cosine", "warmup": 2}},
    },
    "tuning": {
        "method": METHODS[0],
        "evaluation": FOLDS | {"refit": False, "references": ["local"]},
        "training": {"epochs": 2, "validation": 0.3, "monitor": "loss", "batch_size": 24},
        "tuning": {"weight_decay": [0.5, 0.0], "rank": [2, 1]},
    },
    "solved": LINEAR,
    "steps, since sums may not leave": LINEAR,
    "weights that hardly move": {  # each epoch's batches are those of the one before
        "training": {"epochs": 3, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 1e-2}},
        "model": {"name": "mlp", "hidden": [3]},
    },
    "overrides": {
        "method": {"name": "top-k", "density": 0.1, "wire": "int8", "local_steps": 2},
        "training": {"epochs": 2, "batch_size": 8},
        "evaluation": FOLDS | {"refit": False},
        "federation": {"sites": SITES, "overrides": OVERRIDES},
    },
}


def figures(run: Run) -> dict[str, Any]:
    """Return what a run that has ended says, but for what was measured by a clock."""
    summary = json.loads((run.folder / "run" / "summary.json").read_text())
    return {key: summary[key] for key in ("status", "steps", "metrics", "tuning")} | tables_of(run.folder / "run")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("moments", [1, pytest.param(10_000, marks=pytest.mark.exhaustive)], ids=["some", "all"])
@pytest.mark.parametrize("kind", RUNS)
def test_whoever_dies_weights_and_figures_are_the_same(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch, kind: str, moments: int
) -> None:
    """The aggregator and two sites die in turn, at so many messages each, or at all of them."""
    if kind == "weights that hardly move":
        monkeypatch.setattr(recovering, "EVERYTHING", EVERYTHING.model_copy(update={"rows_per_rank": 1}))
    spec = run_spec(**RUNS[kind])
    data = site_data(spec)
    if kind.startswith("steps"):
        data["alpha"] = replace(data["alpha"], warnings=(NOT_EXACT,))
    calm = Run(spec, data, tmp_path / "undisturbed")
    undisturbed = calm.go(lambda message: None)
    assert calm.aggregator.state.exact == (kind == "solved")
    every = max(1, calm.messages // moments)
    for number, victim in enumerate(("aggregator", "alpha", "gamma")):
        for when in range(1 + (2 * number + 1) * every // 6, calm.messages + 1, every):
            run = Run(spec, data, tmp_path / f"{victim}-{when}")
            assert run.go({when: victim}.get) == undisturbed, (victim, when)
            assert figures(run) == figures(calm), (victim, when)


def test_everybody_dies_again_and_again(tmp_path: Path, site_data: Data) -> None:
    """With early stopping: the epochs without improvement are counted across deaths, and the best weights kept."""
    stopping = {
        "epochs": 9,
        "batch_size": 12,
        "batches": "full",
        "early_stopping": {"patience": 2},
        "optimizer": {"name": "adam", "lr": 0.1},
    }
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training=stopping)
    data = site_data(spec)
    calm = Run(spec, data, tmp_path / "undisturbed")
    undisturbed = calm.go(lambda message: None)
    assert 3 <= calm.aggregator.state.epoch < 9, "it stops early"
    victims = ["aggregator", *SITES]
    often = Run(spec, data, tmp_path / "often")
    assert often.go(lambda message: victims[message // 7 % 4] if message % 7 == 0 else None) == undisturbed
    assert often.aggregator.state.epoch == calm.aggregator.state.epoch
    best = [load_file(tmp_path / name / "run" / "model" / "best.safetensors") for name in ("undisturbed", "often")]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])


def test_a_model_of_a_later_fold_comes_out_of_checkpoint_and_ledger(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(**RUNS["folds"])
    run = Run(spec, site_data(spec, (40, 30, 21)), tmp_path)
    run.go(lambda message: None)
    state = RunState(spec, run.aggregator.plan, Replica(spec))
    Checkpoints(tmp_path / "alpha", run.aggregator.plan, "alpha").load(state)
    exported = export(tmp_path / "run", state.steps, tmp_path / "exported")
    assert (exported.fold, exported.replica.digest()) == (state.fold, state.replica.digest())
    assert state.fold == 2


@pytest.mark.parametrize("name", ["powersgd", "edad"])
def test_any_steps_model_comes_out_of_the_ledger_alone(tmp_path: Path, site_data: Data, name: str) -> None:
    method: dict[str, Any] = {"name": name} | ({"rank": 2} if name == "powersgd" else {})
    spec = run_spec(method=method, training={"epochs": 2, "batch_size": 12, "schedule": {"name": "cosine"}})
    run = Run(spec, site_data(spec), tmp_path)
    digest = run.go(lambda message: None)
    steps = run.aggregator.recorder.progress.step
    assert export(tmp_path / "run", None, tmp_path / "last").replica.digest() == digest
    assert load_file(tmp_path / "last" / "model" / "final.safetensors").keys() == Replica(spec).weights().keys()
    replica = Replica(spec)
    Checkpoints(tmp_path / "alpha", run.aggregator.plan, "alpha").load(RunState(spec, run.aggregator.plan, replica))
    assert 0 < replica.step < steps
    assert export(tmp_path / "run", replica.step, tmp_path / "earlier").replica.digest() == replica.digest() != digest
    with pytest.raises(UserError, match=f"got {steps + 1}, expected 1 to {steps}"):
        export(tmp_path / "run", steps + 1, tmp_path / "beyond")
