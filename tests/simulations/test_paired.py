"""The paired comparison as a round of a run: due where there are references, the same however a run is carried."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.metrics.paired import Rows
from rankdad.common.protocol.messages import Kind
from rankdad.common.rounds import paired
from rankdad.common.rounds.base import Due
from rankdad.common.spec import RunSpec
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, run_spec
from tests.simulations.test_patients import visits

pytestmark = pytest.mark.slow

Data = Callable[..., dict[str, SiteData]]
Seen = list[tuple[list[Rows | None], Tensor, Tensor | None]]
K_FOLD: dict[str, Any] = {"name": "k-fold", "folds": 2, "refit": True}
SIZES = (60, 50, 40)
NAMES = ("with", "without")


def spec_of(evaluation: dict[str, Any], *references: str, **changes: Any) -> RunSpec:
    return run_spec(
        **{"preparation": {"standardise": "federated"}} | changes,
        evaluation=evaluation | {"references": list(references)},
    )


@contextmanager
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Yield what sites compare, which they never send: each model's rows, labels, and all sites' histograms."""
    seen: Seen = []
    real = paired.contribution

    def contribution(
        spec: RunSpec, models: list[Rows | None], labels: Tensor, pooled: Tensor | None, groups: Tensor | None
    ) -> Tensor:
        seen.append((models, labels, pooled))
        return real(spec, models, labels, pooled, groups)

    monkeypatch.setattr(paired, "contribution", contribution)
    yield seen


def summary_of(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "summary.json").read_text())["metrics"]
    return document


def kinds(spec: RunSpec, data: dict[str, SiteData], directory: Path) -> list[Due]:
    due: list[Due] = []

    def look(aggregator: Aggregator) -> None:
        if aggregator.state.due is not None:
            due.append(aggregator.state.due)

    run(spec, data, directory, on_round=look)
    return due


def test_a_comparison_follows_every_test_and_nothing_is_new_without_references(tmp_path: Path, site_data: Data) -> None:
    spec = spec_of(K_FOLD, "site")
    due = kinds(spec, site_data(spec, SIZES), tmp_path / NAMES[0])
    assert [one.kind for one in due].count(Kind.PAIRED) == 2, "the model that is kept is not tested"
    for before, one in itertools.pairwise(due):
        assert (one.kind is Kind.PAIRED) == (before.split == "test" and before.fold < 2)
        assert one.kind is not Kind.PAIRED or one.fold == before.fold
    assert [one.round for one in due] == list(range(1, len(due) + 1))
    plain = spec_of(K_FOLD)
    without = kinds(plain, site_data(plain, SIZES), tmp_path / NAMES[1])
    assert Kind.PAIRED not in {one.kind for one in without}
    assert summary_of(tmp_path / NAMES[1])["differences"] == {}
    assert [one.kind for one in due if one.kind is not Kind.PAIRED] == [one.kind for one in without]
    weights = [json.loads((tmp_path / name / "summary.json").read_text())["weights_sha256"] for name in NAMES]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_what_a_run_says_of_differences_is_what_all_rows_say(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    described: dict[str, Any] = {"name": task} | ({"classes": 3} if task == "classification" else {})
    spec = spec_of(K_FOLD, "linear", "site", task=described)
    with looked_at(monkeypatch) as seen:
        run(spec, site_data(spec, SIZES), tmp_path / "run")
    assert len(seen) == 2 * len(SITES)
    found = summary_of(tmp_path / "run")["differences"]
    assert list(found) == ["baseline", "linear", "site"]
    other = "accuracy" if task == "classification" else "mae"
    for at, rival in enumerate(found, 1):
        for column, name in enumerate(("loss", other)):
            apart = torch.cat([models[0].means[:, column] - models[at].means[:, column] for models, *_ in seen])  # type: ignore[union-attr]
            error = float(apart.std()) / len(apart) ** 0.5
            assert found[rival][name]["value"] == pytest.approx(float(apart.mean()), abs=1e-9)
            assert (found[rival][name]["high"] - found[rival][name]["value"]) / 1.96 == pytest.approx(error, rel=2e-3)
    with (tmp_path / "run" / "sites.csv").open(newline="") as file:
        rows = {row["site"]: row for row in csv.DictReader(file)}
    assert rows["alpha"].keys() >= {f"linear_{other}_difference{end}" for end in ("", "_low", "_high")}
    value, model, its = (float(rows["beta"][key]) for key in (f"linear_{other}_difference", other, f"linear_{other}"))
    assert value == pytest.approx(model - its, abs=1e-9)
    assert float(rows["beta"][f"linear_{other}_difference_low"]) < value


def test_nobody_sees_few_rows(tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sites are told of scores has no part of fewer than eight rows; left out, a site's scores go nowhere."""
    spec = spec_of(K_FOLD, "linear")
    with looked_at(monkeypatch) as seen:
        run(spec, site_data(spec, SIZES), tmp_path / "folds")
    for _, _, pooled in seen:
        assert pooled is not None
        for histogram in pooled.reshape(-1, pooled.shape[-1]):
            _, lengths = torch.unique_consecutive(histogram, return_counts=True)
            sums = [float(part.sum()) for part in histogram.split(lengths.tolist()) if part.any()]
            assert min(sums, default=8.0) > 7.99
    alone = spec_of({"name": "leave-one-site-out", "refit": False}, "linear")
    with looked_at(monkeypatch) as seen:
        run(alone, site_data(alone, SIZES), tmp_path / "alone")
    assert all(pooled is None for _, _, pooled in seen)
    found, sites = summary_of(tmp_path / "alone")["differences"]["linear"], []
    with (tmp_path / "alone" / "sites.csv").open(newline="") as file:
        sites = list(csv.DictReader(file))
    weights = [float(row["samples"]) for row in sites]
    within = np.average([float(row["linear_auc_difference"]) for row in sites], weights=weights)
    assert found["auc"]["value"] == pytest.approx(within, abs=1e-12), "a fold is a site: pairs are of one site"


@pytest.mark.exhaustive
def test_repeats_are_averaged_and_add_no_rows(tmp_path: Path, site_data: Data) -> None:
    once = spec_of({**K_FOLD, "refit": False}, "linear")
    often = spec_of({**K_FOLD, "refit": False, "repeats": 3}, "linear")
    widths = []
    for name, spec in (("once", once), ("often", often)):
        run(spec, site_data(spec, SIZES), tmp_path / name)
        found = summary_of(tmp_path / name)["differences"]["baseline"]["loss"]
        widths.append(found["high"] - found["low"])
    assert widths[1] == pytest.approx(widths[0], rel=0.3)
    assert found["method"].endswith("mean of 3 repeats")


def test_groups_are_compared_as_one_observation_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = {"name": "k-fold", "folds": 2, "refit": False, "references": ["linear"]}
    spec, data = visits(tmp_path, preparation={"standardise": "federated"}, evaluation=evaluation)
    with looked_at(monkeypatch) as seen:
        run(spec, data, tmp_path / "run")
    found = summary_of(tmp_path / "run")["differences"]["linear"]["loss"]
    sums, sizes = [], []
    for number, (models, *_) in enumerate(seen):
        fold, site = divmod(number, len(SITES))
        own = data[SITES[site]]
        assert own.groups is not None
        apart = models[0].means[:, 0] - models[2].means[:, 0]  # type: ignore[union-attr]
        of = own.groups[own.splits[fold].test].unique(return_inverse=True)[1]
        sums.append(torch.zeros(int(of.max()) + 1, dtype=torch.float64).index_add_(0, of, apart))
        sizes.append(of.bincount())
    total, size = torch.cat(sums), torch.cat(sizes)
    mean, count = float(total.sum() / size.sum()), len(total)
    error = float((total - mean * size).square().sum() * count / (count - 1)) ** 0.5 / float(size.sum())
    assert found["value"] == pytest.approx(mean, abs=1e-9)
    assert (found["high"] - found["value"]) / 1.96 == pytest.approx(error, rel=2e-3)
    assert found["method"] == "paired differences over groups"
