from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.paper.compared_methods import METHODS
from benchmarks.paper.learning_curves import in_folds, macro_auc, train
from benchmarks.paper.panels import FOLDS, Panel
from rankdad.simulations.datasets import ArrayDataset

PANEL = Panel(
    key="blobs",
    title="Blobs",
    source="npz",
    file="blobs.npz",
    classes=3,
    data={"shape": [6]},
    model={"name": "mlp", "hidden": [16, 12]},
    epochs=3,
    methods=("pooled", "dsgd", "published-2"),
    every=2,
)


@pytest.fixture
def pool() -> ArrayDataset:
    """Three blobs, of which one is rare."""
    generator = np.random.default_rng(0)
    y = generator.choice(3, 500, p=(0.45, 0.45, 0.1))
    x = generator.normal(size=(500, 6)) + np.eye(3, 6)[y]
    return ArrayDataset("blobs", x, y, {"split": np.zeros(500, np.int64)})


def test_every_sample_is_tested_in_one_fold(pool: ArrayDataset) -> None:
    marks = np.stack([in_folds(PANEL, pool, fold).others["split"] for fold in range(FOLDS)])
    assert set(np.unique(marks)) == {0, 2}
    assert ((marks == 2).sum(axis=0) == 1).all()
    for fold in marks:
        assert np.bincount(pool.y[fold == 2], minlength=3) / 100 == pytest.approx([0.45, 0.45, 0.1], abs=0.05)


def test_series_are_cut_at_the_panels_frames() -> None:
    series, lengths = np.arange(40.0).reshape(10, 4, 1), np.array([4, 1, 2, 3, 4] * 2)
    panel = Panel(**{**PANEL.__dict__, "data": {"shape": [2, 1]}})
    found = in_folds(panel, ArrayDataset("series", series, np.arange(10) % 2, {"length": lengths}), 0)
    assert found.x.shape == (10, 2, 1)
    assert found.others["length"].tolist() == [2, 1, 2, 2, 2] * 2


@pytest.mark.slow
def test_curves_of_one_fold_can_be_compared(pool: ArrayDataset) -> None:
    """The same test samples, batches and initial weights: what is exact differs by rounding alone."""
    dsgd, dad, published = (train(PANEL, METHODS[key], 1, pool) for key in ("dsgd", "dad", "published-2"))
    places = [(row["epoch"], row["step"], row["site"]) for row in dsgd.auc]
    assert places == [(e, 2 * e, f"site-{n + 1}") for e in (2, 3) for n in range(4)]  # 100 samples a site: 2 batches
    assert [row["auc"] for row in dad.auc] == pytest.approx([row["auc"] for row in dsgd.auc], abs=0.01)
    assert published.auc[-1]["bytes_up"] < dsgd.auc[-1]["bytes_up"]
    assert dsgd.auc[-1]["bytes_up"] == pytest.approx(1.5 * dsgd.auc[0]["bytes_up"])
    assert not dsgd.spectra


@pytest.mark.slow
def test_spectra_are_those_of_the_updates(pool: ArrayDataset) -> None:
    watched = replace(METHODS["published-2"], family="authors")
    found = train(Panel(**{**PANEL.__dict__, "epochs": 5}), watched, 0, pool).spectra
    assert {row["step"] for row in found} == {5, 10}
    for row in found:
        assert row["values"] == sorted(row["values"], reverse=True)
        assert row["values"][0] == 1
        assert 1 <= len(row["values"]) <= 2


@pytest.mark.slow
def test_pooled_sends_nothing(pool: ArrayDataset) -> None:
    found = train(PANEL, METHODS["pooled"], 0, pool).auc
    assert {row["site"] for row in found} == {f"site-{n + 1}" for n in range(4)}
    assert {row["bytes_up"] for row in found} == {0}


def test_auc_is_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    labels, outputs = torch.arange(60) % 3, torch.randn(60, 3, generator=generator)
    expected = roc_auc_score(labels, outputs.double().softmax(1), multi_class="ovr", average="macro")
    assert macro_auc(labels, outputs) == pytest.approx(expected)
    without = torch.where(labels == 2, 0, labels)  # a class that no sample has counts for nothing
    both = [roc_auc_score(without == place, outputs.softmax(1)[:, place]) for place in (0, 1)]
    assert macro_auc(without, outputs) == pytest.approx(np.mean(both))
