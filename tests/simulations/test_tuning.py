"""Settings chosen by validation within each fold: tests take no part, and the model is the winner's, trained again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdad.common.data import Samples, SiteData
from rankdad.common.errors import RunFailedError
from rankdad.common.preparation import in_memory
from rankdad.common.run.study import Study, chosen
from rankdad.common.spec import RunSpec
from rankdad.local.training import Result
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, part_of, run_spec
from tests.runs import rows_of

pytestmark = pytest.mark.slow

Data = Callable[..., dict[str, SiteData]]
K_FOLD: dict[str, Any] = {"name": "k-fold", "folds": 2, "refit": False}
DECAYS = {"weight_decay": [0.5, 0.0]}


def spec_of(tuning: dict[str, Any] | None, **changes: Any) -> RunSpec:
    fields: dict[str, Any] = {
        "evaluation": K_FOLD,
        "method": {"name": "rank-dad", "rank": 2},
        "preparation": {"standardise": "federated"},
        "training": {"epochs": 3, "validation": 0.3, "monitor": "loss", "batch_size": 16},
    }
    return run_spec(**{**fields, **changes}, tuning=tuning)


def tuned(folder: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((folder / "summary.json").read_text())["tuning"]
    return entries


def with_test_elsewhere(data: dict[str, SiteData], fold: int) -> dict[str, SiteData]:
    """Other inputs and labels in the rows that one training tests."""
    changed = {}
    for site, own in data.items():
        inputs, labels, rows = in_memory(own.samples.inputs).clone(), own.samples.labels.clone(), own.splits[fold].test
        inputs[rows], labels[rows] = -3 * inputs[rows] + 1, (labels[rows] + 1) % 3
        changed[site] = replace(own, samples=Samples(inputs, labels))
    return changed


def test_what_a_fold_tests_takes_no_part_in_its_choice(tmp_path: Path, site_data: Data) -> None:
    spec = spec_of({"weight_decay": [0.0, 0.5], "rank": [1, 2]})
    data = site_data(spec)
    assert [len(own.splits) for own in data.values()] == [10, 10, 10]
    ends: list[dict[int, dict[str, Tensor]]] = []

    for name, samples in (("one", data), ("other", with_test_elsewhere(data, 4))):
        trained: dict[int, dict[str, Tensor]] = {}

        def note(aggregator: Aggregator, trained: dict[int, dict[str, Tensor]] = trained) -> None:
            state = aggregator.state
            if state.roster and state.stage is None and not state.trains and not state.over:
                trained[state.fold] = state.replica.weights()

        run(spec, samples, tmp_path / name, on_round=note)
        ends.append(trained)
    one, other = (tuned(tmp_path / name) for name in ("one", "other"))
    assert one[0] == other[0], "the first fold's candidates, their metrics and which was chosen"
    assert one[1] != other[1], "what the first fold tests, the second one trains on"
    for fold in range(5):
        assert all(torch.equal(value, ends[1][fold][name]) for name, value in ends[0][fold].items()), fold


def alone(spec: RunSpec, data: dict[str, SiteData], folder: Path, fold: int) -> dict[str, Result]:
    """A run without tuning, of one of another's trainings."""
    return run(spec, {site: replace(own, splits=(own.splits[fold],)) for site, own in data.items()}, folder)


def test_the_winner_is_trained_again_on_all_training_rows_for_its_best_epochs(tmp_path: Path, site_data: Data) -> None:
    """The learning rate falls as it did for the candidate, and does not reach its end where the best epoch was before.

    SGD at a large rate overshoots, so that the best epoch is not the last.
    """
    optimizer = {"name": "sgd", "lr": 4.0, "momentum": 0.9}
    training = {"epochs": 4, "validation": 0.3, "monitor": "loss", "optimizer": optimizer, "dtype": "float64"}
    schedule = {"schedule": {"name": "cosine"}, "batch_size": 100}
    changes: dict[str, Any] = {"evaluation": {"name": "holdout"}, "method": {"name": "dsgd", "wire": "float64"}}
    spec = spec_of({"weight_decay": [0.0, 0.2]}, training=training | schedule, **changes)
    data = site_data(spec)
    results = run(spec, data, tmp_path / "tuned")
    (entry,) = tuned(tmp_path / "tuned")
    best = entry["candidates"][entry["chosen"] - 1]
    assert best["validation"] == min(one["validation"] for one in entry["candidates"])
    assert best["best_epoch"] < 4, "this run is meant to overshoot"
    assert entry["held_out"] == sum(len(part_of(own, "validation")) for own in data.values())
    assert all(
        len(own.splits[2].train) == len(own.splits[0].train) + len(own.splits[0].validation) for own in data.values()
    )
    first = next(iter(results.values()))
    assert first.epochs == best["best_epoch"]
    tests = [row for row in rows_of(tmp_path / "tuned" / "metrics.csv") if row["split"] == "test"]
    assert {(row["fold"], row["candidate"], row["epoch"]) for row in tests} == {("1", "", str(best["best_epoch"]))}
    last = {row["candidate"]: int(row["epoch"]) for row in rows_of(tmp_path / "tuned" / "steps.csv")}
    assert last == {"1": 4, "2": 4, "": best["best_epoch"]}
    tried = tuple((one["validation"], one["best_epoch"] - 1) for one in entry["candidates"])
    settings, epochs = Study(fold=2, tried=tried).settings(spec)
    assert (settings.training.epochs, epochs) == (4, best["best_epoch"]), "the schedule is that of four epochs"
    assert settings.training.optimizer.weight_decay == best["weight_decay"]
    rest = {site: replace(own, splits=(own.splits[2],)) for site, own in data.items()}
    plain = settings.model_copy(update={"tuning": None})
    expected: list[dict[str, Tensor]] = []

    def note(aggregator: Aggregator) -> None:
        if aggregator.state.roster and aggregator.state.epoch == epochs and not expected:
            expected.append(aggregator.state.replica.weights())

    run(plain, rest, tmp_path / "plain", on_round=note)
    for name, value in expected[0].items():
        torch.testing.assert_close(first.final[name], value, rtol=0, atol=1e-9)


def test_a_candidate_trains_as_a_run_of_its_settings_does(tmp_path: Path, site_data: Data) -> None:
    """Seeds of batches are those of the first training alone, hence the first candidate."""
    changes: dict[str, Any] = {"evaluation": {"name": "holdout"}}
    spec = spec_of({"weight_decay": [0.5, 0.0], "rank": [1], "epochs": [2]}, **changes)
    data = site_data(spec)
    found: list[dict[str, Tensor]] = []

    def note(aggregator: Aggregator) -> None:
        state = aggregator.state
        if state.roster and state.fold == 0 and state.epoch == 2:
            found.append(state.replica.weights())

    run(spec, data, tmp_path / "tuned", on_round=note)
    optimizer = {"name": "adam", "lr": spec.training.optimizer.lr, "weight_decay": 0.5}
    training = spec.training.model_dump(mode="json") | {"epochs": 2, "optimizer": optimizer}
    method = {"name": "rank-dad", "rank": 1}
    plain = spec_of(None, training=training, method=method, **changes)
    expected = alone(plain, data, tmp_path / "plain", 0)[SITES[0]].final
    assert all(torch.equal(value, found[-1][name]) for name, value in expected.items())


def test_a_lower_rank_sends_fewer_rows_both_ways(tmp_path: Path, site_data: Data) -> None:
    spec = spec_of({"rank": [1, 2]}, evaluation={"name": "holdout"})
    run(spec, site_data(spec), tmp_path)
    steps = rows_of(tmp_path / "steps.csv")
    sent = {name: {row["candidate"] for row in steps if row[name] == "2"} for name in steps[0] if "rank:" in name}
    assert sent
    assert all("1" not in candidates and "2" in candidates for candidates in sent.values())
    up = {row["candidate"]: int(row["bytes_up"]) for row in steps}
    assert up["1"] < up["2"]


def test_candidates_that_nothing_tells_apart_are_refused(tmp_path: Path, site_data: Data) -> None:
    """As where all sites' policies leave out their validation sets."""
    spec = spec_of(DECAYS)
    left_out = {
        site: replace(own, splits=tuple(replace(split, validation=split.validation[:0]) for split in own.splits))
        for site, own in site_data(spec).items()
    }
    with pytest.raises(RunFailedError, match="tuning: no site has samples to validate fold 1 of 2, candidate 1 of 2"):
        run(spec, left_out, tmp_path)


def test_the_best_metric_wins_and_none_is_the_worst() -> None:
    loss, auc = spec_of(DECAYS), spec_of(DECAYS, training={"epochs": 2, "validation": 0.3, "monitor": "auc_within"})
    tried = [(None, 0), (0.4, 1), (0.2, 2), (0.2, 0)]
    assert (chosen(loss, tried), chosen(auc, tried), chosen(auc, [(None, 0)] * 2)) == (2, 1, 0)
