"""Whole runs of several folds: each is trained as if it were alone, and nothing of what it tests reaches it."""

from __future__ import annotations

import contextlib
import csv
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdad.common.data import Samples, SiteData, read_site
from rankdad.common.errors import RunFailedError
from rankdad.common.policy import EVERYTHING
from rankdad.common.preparation import Preparing, in_memory
from rankdad.common.projections import projections_of
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.observer import Observer
from rankdad.local.training import TrainingState, train
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, run_spec, write_site

pytestmark = pytest.mark.slow

Data = Callable[..., dict[str, SiteData]]
METHODS: list[dict[str, Any]] = [
    {"name": "dsgd"},
    {"name": "rank-dad", "rank": 1, "reducer": "exact", "feedback": "both"},
]
LOCAL = {"name": "rank-dad", "rank": 1, "reducer": "exact", "preset": "diloco", "local_steps": 1}
K_FOLD: dict[str, Any] = {"name": "k-fold", "folds": 3}
SITE_OUT: dict[str, Any] = {"name": "leave-one-site-out"}


def spec_of(evaluation: dict[str, Any], method: dict[str, Any], **training: Any) -> RunSpec:
    """Everything that training samples decide: means, scales, weights of classes, the best epoch."""
    return run_spec(
        task={"name": "classification", "classes": 3, "class_weights": "balanced"},
        preparation={"standardise": "federated"},
        evaluation=evaluation,
        method=method,
        training={"epochs": 2, "monitor": "loss", **training},
    )


class Trace:
    """What each fold ended with: its final and best weights, what preparation found, what validation said."""

    def __init__(self, spec: RunSpec, data: dict[str, SiteData], folder: Path) -> None:
        self.spec = spec
        self.final: list[dict[str, Tensor]] = [{} for _ in range(spec.folds)]
        self.best: list[dict[str, Tensor]] = [{} for _ in range(spec.folds)]
        self.fit: list[dict[str, Tensor]] = [{} for _ in range(spec.folds)]
        self.tested: dict[tuple[str, int], Tensor] = {}
        self.results = run(spec, data, folder, on_round=self._note, tested=self._test)
        with (folder / "metrics.csv").open(newline="") as file:
            self.rows = list(csv.DictReader(file))
        self.summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())

    def _note(self, aggregator: Aggregator) -> None:
        state = aggregator.state
        if state.roster and state.stage is None and not state.trains and not state.over:
            self.final[state.fold], self.best[state.fold] = state.replica.weights(), state.best_weights
            self.fit[state.fold] = Preparing(self.spec).fit(state.totals_of(state.fold)).tensors()

    def _test(self, site: str, fold: int, outputs: Tensor) -> None:
        self.tested[site, fold] = outputs

    def validated(self, fold: int) -> list[dict[str, str]]:
        return [row for row in self.rows if row["fold"] == str(fold + 1) and row["split"] == "validation"]

    def equals(self, other: Trace, fold: int) -> bool:
        pairs = [(getattr(self, name)[fold], getattr(other, name)[fold]) for name in ("final", "best", "fit")]
        return all(same(*pair) for pair in pairs) and self.validated(fold) == other.validated(fold)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def elsewhere(data: dict[str, SiteData], fold: int) -> dict[str, SiteData]:
    """Other inputs and labels in the rows that one fold tests."""
    changed = {}
    for site, own in data.items():
        inputs, labels, rows = in_memory(own.samples.inputs).clone(), own.samples.labels.clone(), own.splits[fold].test
        inputs[rows], labels[rows] = -3 * inputs[rows] + 1, (labels[rows] + 1) % 3
        changed[site] = replace(own, samples=Samples(inputs, labels))
    return changed


@pytest.mark.parametrize(
    ("evaluation", "method"),
    [
        (K_FOLD, METHODS[1]),
        pytest.param(K_FOLD, METHODS[0], marks=pytest.mark.slow),
        (SITE_OUT, METHODS[0]),
        pytest.param(SITE_OUT, METHODS[1], marks=pytest.mark.slow),
    ],
)
def test_what_a_fold_tests_reaches_nothing_of_it(
    tmp_path: Path, site_data: Data, evaluation: dict[str, Any], method: dict[str, Any]
) -> None:
    spec = spec_of(evaluation, method)
    data = site_data(spec, (40, 30, 21))
    before, after = (
        Trace(spec, data, tmp_path / "before"),
        Trace(spec, elsewhere(data, 1), tmp_path / "after"),
    )
    assert [before.equals(after, fold) for fold in range(4)] == [False, True, False, False]
    tested = [key for key in before.tested if key[1] == 1 and len(before.tested[key])]
    assert tested == ([("beta", 1)] if evaluation is SITE_OUT else [(site, 1) for site in SITES])
    assert not any(torch.equal(before.tested[key], after.tested[key]) for key in tested)


def test_nor_does_it_choose_the_epoch_by_a_centre_that_knows_other_folds(tmp_path: Path, site_data: Data) -> None:
    """To the last bit: sums of deviations are rounded differently around another mean."""
    spec = run_spec(
        task={"name": "regression"},
        evaluation=K_FOLD,
        training={"monitor": "r2", "epochs": 4, "early_stopping": {"patience": 1}},
    )
    data = site_data(spec, (40, 30, 21))
    before, after = Trace(spec, data, tmp_path / "before"), Trace(spec, elsewhere(data, 2), tmp_path / "after")
    assert [before.equals(after, fold) for fold in range(4)] == [False, False, True, False]


@pytest.mark.parametrize("method", [*METHODS, LOCAL], ids=["dsgd", "rank-dad", "local"])
def test_a_fold_is_trained_as_if_it_were_the_only_one(tmp_path: Path, site_data: Data, method: dict[str, Any]) -> None:
    """One step an epoch, so that the order of samples is none: same weights, no moments and residuals of the first."""
    spec = spec_of(K_FOLD, method | {"wire": "float64"}, batch_size=100, epochs=4, dtype="float64")
    alone = spec.model_copy(update={"evaluation": run_spec().evaluation})
    data = site_data(spec, (40, 30, 21))
    trace = Trace(spec, data, tmp_path / "folds")
    for fold in (1, 3):
        own = {site: replace(part, splits=(part.splits[fold],)) for site, part in data.items()}
        single = Trace(alone, own, tmp_path / f"fold-{fold}")
        for name, value in single.final[0].items():
            torch.testing.assert_close(trace.final[fold][name], value, rtol=0, atol=1e-9)
        if fold == 1:
            for site in SITES:
                torch.testing.assert_close(trace.tested[site, 1], single.tested[site, 0], rtol=0, atol=1e-8)
    assert not same(trace.final[1], trace.final[0])


def test_a_rerun_of_folds_gives_the_same_bits_and_every_sample_is_tested_once(tmp_path: Path, site_data: Data) -> None:
    spec = spec_of(K_FOLD, {"name": "rank-dad", "rank": 1})
    data = site_data(spec, (40, 30, 21))
    one, again = (Trace(spec, site_data(spec, (40, 30, 21)), tmp_path / name) for name in ("one", "again"))
    assert all(one.equals(again, fold) for fold in range(4))
    result = one.results["alpha"]
    assert same(result.final, one.final[3])
    assert result.fit.rows == sum(len(site.splits[3].train) for site in data.values())
    tests = [row for row in one.rows if row["split"] == "test" and row["site"] == "pooled"]
    assert [row["fold"] for row in tests] == ["1", "2", "3", "4"]
    assert sum(int(row["samples"]) for row in tests) == one.summary["metrics"]["test"]["samples"] == 91
    with (tmp_path / "one" / "sites.csv").open(newline="") as file:
        sites = list(csv.DictReader(file))
    assert [(row["site"], row["samples"]) for row in sites] == [("alpha", "40"), ("beta", "30"), ("gamma", "21")]
    assert len(set(one.summary["weights_sha256"].values()) | {one.summary["aggregator_sha256"]}) == 1
    per_epoch = [max(-(-len(site.splits[fold].train) // 8) for site in data.values()) for fold in range(4)]
    assert one.summary["steps"] == 2 * sum(per_epoch)


def test_a_number_is_learnt_and_told_in_its_own_unit(tmp_path: Path) -> None:
    spec = run_spec(
        task={"name": "regression"},
        preparation={"standardise": "federated"},
        evaluation=K_FOLD,
        method={"name": "rank-dad", "rank": 2},
        training={"epochs": 5, "optimizer": {"name": "adam", "lr": 0.05}},
    )
    data = {}
    for place, site in enumerate(SITES):
        x = np.random.default_rng(place).normal(100, 20, size=(50, 6))
        folder = write_site(tmp_path / site, 50, place, x=x, y=5000 + 10 * x[:, 0] - 5 * x[:, 1])
        data[site] = read_site(spec, folder, place)
    trace = Trace(spec, data, tmp_path / "run")
    test = trace.summary["metrics"]["test"]
    assert test["samples"] == 150
    assert test["r2"] > 0.8
    assert 10 < test["mae"] < 100, "in the label's unit, whose standard deviation is about 220"
    for (site, fold), outputs in trace.tested.items():
        labels = data[site].samples.labels[data[site].splits[fold].test]
        assert fold == 3 or float((outputs[:, 0] - labels).abs().mean()) < 200
    assert {"mae", "r2", "pearson_r", "loss"} <= set(trace.rows[0])


def test_several_labels_are_learnt_at_once(tmp_path: Path) -> None:
    spec = run_spec(
        task={"name": "multi-label", "labels": 2, "class_weights": "balanced"},
        evaluation=K_FOLD,
        training={"epochs": 4, "optimizer": {"name": "adam", "lr": 0.05}},
    )
    data = {}
    for place, site in enumerate(SITES):
        x = np.random.default_rng(place).normal(size=(60, 6))
        folder = write_site(tmp_path / site, 60, place, x=x, y=np.stack([x[:, 0] > 0.8, x[:, 1] > 0], axis=1))
        data[site] = read_site(spec, folder, place)
    trace = Trace(spec, data, tmp_path / "run")
    test = trace.summary["metrics"]["test"]
    assert test["samples"] == 180
    assert test["auc"] > 0.9
    assert test["balanced_accuracy"] > 0.75
    assert trace.fit[0]["class_weights"].tolist() == pytest.approx([3.7, 1.0], rel=0.35), "negatives by positives"


def test_odd_data_of_a_site_are_told_in_the_summary_and_the_run_ends_well(tmp_path: Path) -> None:
    """One class alone, fewer samples than folds, inputs that are missing: of exactly the sites that have them."""
    schema: dict[str, Any] = {"reader": "csv", "file": "scans.csv", "key": "scan", "features": ["volume", "age"]}
    spec = run_spec(
        task={"name": "classification", "classes": 2},
        data=schema | {"label": "ill", "values": ["no", "yes"], "missing": "drop"},
        preparation={"standardise": "federated"},
        evaluation={"name": "k-fold", "folds": 4},
        training={"epochs": 1},
    )
    rows = {
        "alpha": [f"a{n},{n},{50 + n},{'yes' if n % 2 else 'no'}" for n in range(18)] + ["a18,,40,no", "a19,7,NA,yes"],
        "beta": [f"b{n},{n},{60 - n},no" for n in range(12)],
        "gamma": [f"g{n},{n},40,{'yes' if n % 2 else 'no'}" for n in range(3)],
    }
    data = {}
    for place, (site, lines) in enumerate(rows.items()):
        (tmp_path / site).mkdir()
        (tmp_path / site / "scans.csv").write_text("\n".join(["scan,volume,age,ill", *lines]))
        data[site] = read_site(spec, tmp_path / site, place)
    summary = Trace(spec, data, tmp_path / "run").summary
    assert summary["status"] == "completed"
    odd = {"one-class": ["beta"], "fewer-samples-than-folds": ["gamma"], "shifted-label": ["beta"]}
    assert summary["warnings"] == odd
    assert summary["rows_dropped"] == {"alpha": 2}
    assert summary["metrics"]["test"]["samples"] == 18 + 12 + 3
    assert len(set(summary["weights_sha256"].values()) | {summary["aggregator_sha256"]}) == 1
    with (tmp_path / "run" / "sites.csv").open(newline="") as file:
        auc = {row["site"]: row["auc"] for row in csv.DictReader(file)}
    assert auc["alpha"] > auc["beta"] == "", "of one class there is none"


def test_even_batches_have_every_site_in_every_step_with_its_share(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"batches": "even"})
    seen: list[float] = []

    def shares(aggregator: Aggregator) -> None:
        state = aggregator.state
        if state.trains and state.step < state.replica.steps_per_epoch:
            sizes = [state.weight(place) for place in range(3)]
            seen.append(sum(state.share(place, size) for place, size in enumerate(sizes)))

    data = site_data(spec)
    run(spec, data, tmp_path / "run", on_round=shares)
    assert seen
    assert seen == pytest.approx([1.0] * len(seen))
    with (tmp_path / "run" / "steps.csv").open(newline="") as file:
        steps = list(csv.DictReader(file))
    assert len(steps) == 2 * -(-len(data["alpha"].splits[0].train) // 8)
    assert all(float(row[f"norm:{site}"]) > 0 for row in steps for site in SITES)


def test_even_batches_too_small_for_a_policy_are_refused_before_the_first_step(tmp_path: Path, site_data: Data) -> None:
    """Even if only a later fold has them."""
    spec = spec_of(K_FOLD, {"name": "dsgd"}, batches="even")
    data = site_data(spec)
    own = data["gamma"]
    later = replace(own.splits[2], train=own.splits[2].train[:3])
    data["gamma"] = replace(own, splits=(*own.splits[:2], later, *own.splits[3:]))
    policies = dict.fromkeys(SITES, EVERYTHING.model_copy(update={"min_rows": 3}))
    with pytest.raises(RunFailedError, match=r"gamma.*training.batch_size: .* steps of 1 sample here"):
        run(spec, data, tmp_path / "run", policies=policies)
    assert len((tmp_path / "run" / "steps.csv").read_text().splitlines()) == 1


def test_sums_too_large_end_the_run_with_a_sentence(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(task={"name": "regression"}, evaluation=K_FOLD)
    data = site_data(spec, (40, 30, 21))
    samples = data["beta"].samples
    labels = samples.labels.double()
    labels[0] = 1e200
    data["beta"] = replace(data["beta"], samples=Samples(samples.inputs, labels))
    with pytest.raises(RunFailedError, match="preparation: labels: sum: expected numbers up to"):
        run(spec, data, tmp_path / "run")


def test_a_site_that_comes_after_all_is_over_has_its_predictions_of_every_fold(tmp_path: Path, site_data: Data) -> None:
    spec = spec_of(K_FOLD, METHODS[0])
    data, updates, tested = site_data(spec, (40, 30, 21)), [], {}

    def note(aggregator: Aggregator) -> None:
        assert aggregator.barrier.stored is not None
        updates.append(unpack(aggregator.barrier.stored, aggregator.plan, up=False))

    before: dict[tuple[str, int], Tensor] = {}
    on_test = lambda site, fold, outputs: before.update({(site, fold): outputs})  # noqa: E731
    run(spec, data, tmp_path / "run", on_round=note, tested=on_test)
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    state = TrainingState("alpha", RunState(spec, plan, replica))
    note_test = lambda fold, outputs: tested.update({fold: outputs})  # noqa: E731
    late = train(spec, plan, data["alpha"], state, EVERYTHING, Observer(tested=note_test))
    asked = next(late)
    with contextlib.suppress(StopIteration):
        while True:
            asked = late.send(updates[asked.round])
    assert sorted(tested) == [0, 1, 2, 3]
    assert all(torch.equal(outputs, before["alpha", fold]) for fold, outputs in tested.items())


def test_signs_are_the_same_at_all_sites_and_others_in_each_step_of_every_fold(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = list[int]()

    def seen(routes: Any, gradients: Any, seed: int) -> Any:
        seeds.append(seed)
        return projections_of(routes, gradients, seed)

    monkeypatch.setattr("rankdad.local.own_gradients.projections_of", seen)
    optimizer = {"name": "adam", "lr": 0.01, "second_moment": "factored"}
    spec = run_spec(evaluation={"name": "k-fold", "folds": 2}, training={"optimizer": optimizer})
    run(spec, site_data(spec), tmp_path / "run")
    counts = Counter(seeds)
    assert set(counts.values()) == {len(SITES)}
    assert len(counts) == json.loads((tmp_path / "run" / "summary.json").read_text())["steps"]
