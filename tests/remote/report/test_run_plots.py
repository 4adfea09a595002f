"""The figures of a run's page: small, the same for the same run, and only of what there is."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageChops

from rankdad.common.documents import validate
from rankdad.common.spec import RunSpec
from rankdad.remote.report.forest_plots import MAX_NAMED_SITES
from rankdad.remote.report.run_plots import run_drawings, run_plots
from rankdad.remote.report.run_report import CAPTIONS
from rankdad.remote.results.fold_metrics import FoldMetrics
from rankdad.remote.results.run_results import METRICS, STEPS, PlanSummary, RunResults
from rankdad.remote.results.run_results import SITES as SITE_COLUMNS
from rankdad.remote.results.run_summary import RunMetrics, RunSummary
from tests.common.metrics.samples import draw, tallied
from tests.conftest import run_document, run_spec

PLOTS = ["roc", "precision_recall", "calibration", "test_auc_by_site", "test_accuracy_by_site", "confusion"] + [
    "loss_over_epochs",
    "loss_over_steps",
    "auc_within_over_epochs",
    "accuracy_over_epochs",
]


def results(sites: list[str], epochs: int, folds: int = 1, **metrics: Any) -> RunResults:
    """Of a run that gets better and better, with noise; the last fold is not finished if there are several."""
    noise = np.random.default_rng(0)
    rows: list[tuple[object, ...]] = []
    for fold, epoch, split in [
        *((fold, epoch, "validation") for fold in range(folds) for epoch in range(epochs)),
        *((fold, max(0, epochs - 2), "test") for fold in range(max(1, folds - 1))),
    ]:
        for site in ["pooled", *sites]:
            loss, gap = 2 / (epoch + 1) + noise.uniform(0, 0.2), noise.uniform(0.1, 0.4) / (epoch + 1)
            rows.append((fold, epoch + 1, split, site, loss, int(noise.integers(5, 900)), loss, 1 - 2 * gap, 1 - gap))
    steps = [(s + 1, s // 9 % epochs, 2 / (s + 1), 0.1, 0.01, 10, 10, "") for s in range(9 * epochs * folds)]
    evaluation = {"name": "holdout"} if folds == 1 else {"name": "k-fold", "folds": folds}
    spec = run_spec(evaluation=evaluation, federation={"sites": sites})
    table = pd.DataFrame(rows, columns=[*METRICS, "accuracy", "auc"])
    table["auc_within"] = table["auc"].where(table["split"] == "validation")
    table["auc"] = table["auc"].where(table["split"] == "test")
    tested = table[(table["split"] == "test") & (table["site"] != "pooled") & (table["fold"] == 0)]
    tested = tested.assign(baseline_accuracy=tested["accuracy"] - 0.1)
    study = FoldMetrics(spec.task, ("a",))
    study.add({"a": tallied(spec.task, *draw(spec.task, 300, 0))}, {})
    risks = pd.DataFrame(study.predictions()[1])
    metrics = {"risks": tuple(study.summary()["risks"])} | metrics
    summary = RunSummary(metrics=RunMetrics(**metrics), best_epoch=max(0, epochs - 2) + 1)
    return RunResults(spec, PlanSummary(), summary, table, tested, pd.DataFrame(steps, columns=list(STEPS)), risks)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, pytest.param(MAX_NAMED_SITES + 1, marks=pytest.mark.slow)])
def test_figures_are_small_pictures_and_always_the_same(count: int) -> None:
    confusion = ((count, 0, 0), (1, 2, 3), (0, 0, 0))
    names = [f"{site:03d}-{'long-name-' * 6}"[:63] for site in range(count)]
    metrics: dict[str, Any] = {"confusion": confusion}
    drawn = run_plots(results(names, epochs=12, **metrics))
    assert list(drawn) == PLOTS
    for name, png in drawn.items():
        assert len(png) < 60_000, name
        picture = Image.open(io.BytesIO(png)).convert("RGB")
        assert np.ptp(np.asarray(picture), axis=2).max() > 100, f"{name} has no colour"
        inside = ImageChops.difference(picture, Image.new("RGB", picture.size, "white")).getbbox()
        assert inside, name
        assert min(inside[0], inside[1], picture.width - inside[2], picture.height - inside[3]) > 0, (
            f"{name} is cut off"
        )
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "black"}):  # a person's own taste
        again = run_plots(results(names, epochs=12, **metrics))
    assert again == drawn


@pytest.mark.slow
@pytest.mark.parametrize("folds", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_curves_of_folds_go_as_far_as_they_have_come(folds: int) -> None:
    several = results(["a", "b"], epochs=4, folds=folds)
    drawn = run_plots(several)
    assert set(drawn) == {*PLOTS} - {"confusion"}
    cut = dataclasses.replace(several, metrics=several.metrics[several.metrics["fold"] < folds - 1])
    changed = [name for name, png in run_plots(cut).items() if drawn[name] != png]
    assert changed == ["loss_over_epochs", "auc_within_over_epochs", "accuracy_over_epochs"], (
        "the unfinished fold is drawn"
    )


@pytest.mark.slow
def test_names_are_no_formulas_and_no_tags() -> None:
    run = results(["a"], epochs=1)
    named = {"reader": "csv", "file": "t.csv", "features": ["x"], "label": "y", "values": ["$\\frac$", "<b>&", "年"]}
    document = run_document(data=named, federation={"sites": ["a"]})
    drawn = run_drawings(dataclasses.replace(run, spec=validate(RunSpec, document)), CAPTIONS)
    assert "$\\frac$" in drawn["roc"]
    assert "<b>" not in drawn["roc"]
    assert "&lt;b&gt;&amp;" in drawn["roc"]


@pytest.mark.slow
def test_nothing_to_draw_is_no_figure() -> None:
    run = results(["a"], epochs=1)
    run = dataclasses.replace(run, risks=run.risks[:0])
    assert set(run_plots(dataclasses.replace(run, steps=run.steps[:1]))) == {
        "test_auc_by_site",
        "test_accuracy_by_site",
    }
    empty = dataclasses.replace(run, metrics=run.metrics[:0], sites=run.sites[:0], steps=run.steps[:0])
    assert run_plots(empty) == {}
    bare = pd.DataFrame(columns=list(SITE_COLUMNS))
    assert run_plots(dataclasses.replace(empty, sites=bare)) == {}
    run.sites["auc"] = float("inf")
    assert set(run_plots(dataclasses.replace(run, steps=run.steps[:0]))) == {"test_accuracy_by_site"}
