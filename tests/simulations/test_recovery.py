"""Crashes at every yield of a small run: whoever dies, it ends with the weights of one that was never disturbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from rankdad.common.data import SiteData
from rankdad.common.errors import UserError
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.messages import DataWarning
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import NOT_EXACT
from rankdad.remote.export import export
from rankdad.remote.run_reader import FILE
from rankdad.simulations.footprint import footprint
from tests.conftest import SITES, run_spec
from tests.simulations import recovering
from tests.simulations.recovering import EVERY, FACTORED, METHODS, NAMES, Data, Run, dying, size_of, whole

pytestmark = pytest.mark.slow


def crash_everywhere(
    tmp_path: Path, site_data: Data, method: dict[str, Any], every: int, training: dict[str, Any] | None = None
) -> None:
    """With dropout, Adam, clipping, a schedule, and evaluation rounds between the epochs."""
    schedule = {"epochs": 2, "batch_size": 12, "schedule": {"name": "cosine", "warmup": 2}, "clip": 1.0}
    spec = run_spec(
        method=method,
        model={"name": "mlp", "hidden": [16, 16], "dropout": 0.2},
        training=schedule | (training or {}),
    )
    crash_each(tmp_path, spec, site_data(spec), every)


def crash_each(tmp_path: Path, spec: RunSpec, data: dict[str, SiteData], every: int) -> Run:
    """Let one after the other die at every so many messages; return the run that nobody disturbed."""
    run = Run(spec, data, tmp_path / "undisturbed")
    undisturbed = run.go(lambda message: None)
    for number, victim in enumerate(("aggregator", "alpha", "gamma")):
        for when in range(1 + number * every // 3, run.messages + 1, every):
            disturbed = Run(spec, data, tmp_path / f"{victim}-{when}")
            assert disturbed.go(_once(victim, when)) == undisturbed, (victim, when)
            figures = [one.aggregator.recorder.progress.study.summary() for one in (run, disturbed)]
            assert figures[0] == figures[1]
    return run


def _once(victim: str, when: int) -> Callable[[int], str | None]:
    return lambda message: victim if message == when else None


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_whoever_dies_the_weights_are_the_same(tmp_path: Path, site_data: Data, method: dict[str, Any]) -> None:
    crash_everywhere(tmp_path, site_data, method, every=90)


@pytest.mark.exhaustive
@pytest.mark.parametrize("warnings", [(), (NOT_EXACT,)], ids=["exact", "steps"])
def test_whoever_dies_a_linear_model_is_the_same(
    tmp_path: Path, site_data: Data, warnings: tuple[DataWarning, ...]
) -> None:
    """Solved exactly and compared with references, or trained by steps since one site's sums may not leave it."""
    evaluation = {"name": "holdout", "references": ["site"]}
    training = {"solver": "auto", "epochs": 1, "batch_size": 12}
    spec = run_spec(model={"name": "linear"}, method={"name": "dsgd"}, training=training, evaluation=evaluation)
    data = site_data(spec)
    data["alpha"] = replace(data["alpha"], warnings=warnings)
    run = crash_each(tmp_path, spec, data, every=40)
    assert run.aggregator.state.exact is not bool(warnings)


@pytest.mark.exhaustive
def test_whoever_dies_at_weights_that_hardly_move_batches_are_the_same(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch's are those of the one before, which a site that starts in its middle has to know."""
    limited = EVERYTHING.model_copy(update={"rows_per_rank": 1})
    monkeypatch.setattr(recovering, "EVERYTHING", limited)
    training = {"epochs": 3, "batch_size": 8, "optimizer": {"name": "sgd", "lr": 1e-2}}
    spec = run_spec(training=training, model={"name": "mlp", "hidden": [3]})
    crash_each(tmp_path, spec, site_data(spec), 4 * EVERY)


@pytest.mark.parametrize("method", METHODS[1:3], ids=NAMES[1:3])
def test_whoever_dies_a_factored_second_moment_is_the_same(
    tmp_path: Path, site_data: Data, method: dict[str, Any]
) -> None:
    crash_everywhere(tmp_path, site_data, method, every=90, training=FACTORED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_whoever_dies_whenever_the_weights_are_the_same(
    tmp_path: Path, site_data: Data, method: dict[str, Any], every: int
) -> None:
    crash_everywhere(tmp_path, site_data, method, every)


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


def crash_in_the_second_fold(tmp_path: Path, site_data: Data, pick: Callable[[list[int]], list[int]]) -> None:
    spec = run_spec(
        method=METHODS[0],
        preparation={"standardise": "federated"},
        evaluation={"name": "k-fold", "folds": 2, "references": ["local", "linear", "site"]},
        training={"epochs": 1, "batch_size": 5, "schedule": {"name": "cosine", "warmup": 2}},
    )
    data = site_data(spec, (40, 30, 21))
    run, fold_of = Run(spec, data, tmp_path / "undisturbed"), dict[int, int]()
    undisturbed = run.go(lambda message: fold_of.update({message: run.aggregator.state.fold}))
    second = [message for message, fold in fold_of.items() if fold == 1]
    figures = run.aggregator.recorder.progress.study.summary()
    for victim in ("aggregator", "beta"):
        for when in pick(second):
            disturbed = Run(spec, data, tmp_path / f"{victim}-{when}")
            assert disturbed.go(_once(victim, when)) == undisturbed, (victim, when)
            assert disturbed.aggregator.recorder.progress.study.summary() == figures
    most, steps = footprint(run.aggregator.plan, EVERY), run.aggregator.recorder.progress.step
    assert size_of(tmp_path / "undisturbed" / "run" / FILE) <= whole(most, steps, 3)
    assert size_of(tmp_path / "undisturbed" / "run" / "checkpoints") <= 2 * most.checkpoint
    run_state = RunState(spec, run.aggregator.plan, Replica(spec))
    Checkpoints(tmp_path / "undisturbed" / "alpha", run.aggregator.plan, "alpha").load(run_state)
    assert run_state.fold == 2
    exported = export(tmp_path / "undisturbed" / "run", run_state.steps, tmp_path / "exported")
    assert (exported.fold, exported.replica.digest()) == (2, run_state.replica.digest())


@pytest.mark.exhaustive
def test_whoever_dies_in_a_later_fold_the_weights_and_figures_are_the_same(tmp_path: Path, site_data: Data) -> None:
    """Before its first step, when checkpoints are of the fold before; in it; and when it is over."""
    crash_in_the_second_fold(tmp_path, site_data, lambda second: [second[1], second[len(second) // 2], second[-1] + 1])


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_whoever_dies_whenever_in_a_later_fold_they_are_the_same(tmp_path: Path, site_data: Data, every: int) -> None:
    moments = lambda second: [*range(1, 12), *second, second[-1] + 1][::every]  # noqa: E731
    crash_in_the_second_fold(tmp_path, site_data, moments)


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


def test_the_tables_of_a_run_are_whole_after_crashes(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2, "batch_size": 12})
    data = site_data(spec)
    tables = []
    for name, every in (("undisturbed", 10_000), ("disturbed", 7)):
        run = Run(spec, data, tmp_path / name)
        run.go(dying(every))
        found = []
        for table, timed in (("steps.csv", ("seconds", "aggregation_seconds")), ("metrics.csv", ())):
            rows = pd.read_csv(tmp_path / name / "run" / table)
            assert (rows[list(timed)] >= 0).all(axis=None), "no time runs backwards after a restart"
            found.append(rows.drop(columns=list(timed)).to_csv())
        tables.append(found)
    assert tables[0] == tables[1]
