"""The verdict: what it says where hospitals differ, and which classes a model misses."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from rankdad.common.metrics.risk import Risks
from rankdad.common.metrics.site_calibration import SURE, calibration_by_site, differing
from rankdad.remote.report.narrative import sent
from rankdad.remote.report.result_lines import _study
from rankdad.remote.report.run_plots import figures
from rankdad.remote.report.run_report import report_page
from rankdad.remote.report.site_calibration import calibration_differences, site_calibration_table
from rankdad.remote.report.verdict import calibrated, topics, verdict
from rankdad.remote.results.fold_metrics import FoldMetrics
from rankdad.remote.results.run_results import METRICS, STEPS, PlanSummary, RunResults
from rankdad.remote.results.run_summary import RunMetrics, RunSummary
from tests.common.metrics.samples import draw, tallied
from tests.conftest import run_spec

pytestmark = pytest.mark.slow

HOSPITALS = ("north", "south", "east", "west")
Samples = dict[str, tuple[Tensor, Tensor]]


def results(samples: Samples, task: dict[str, Any]) -> RunResults:
    """Of a run whose test has these outputs and labels at each hospital."""
    evaluation = {"name": "k-fold", "refit": False}
    spec = run_spec(task=task, evaluation=evaluation, federation={"sites": list(samples)})
    study = FoldMetrics(spec.task, tuple(samples))
    study.add({site: tallied(spec.task, *one) for site, one in samples.items()}, {})
    assert study.pooled is not None
    test = {"samples": study.pooled.samples} | {str(name): value for name, value in study.pooled.values.items()}
    document = study.summary() | {"test": test}
    summary = RunSummary(metrics=RunMetrics.model_validate(document))
    steps, metrics = pd.DataFrame(columns=list(STEPS)), pd.DataFrame(columns=list(METRICS))
    risks = pd.DataFrame(study.predictions()[1])
    return RunResults(spec, PlanSummary(), summary, metrics, pd.DataFrame(study.by_site()), steps, risks)


def binary(shifts: tuple[float, ...], scales: tuple[float, ...] = (1.0,) * 4, size: int = 300) -> Samples:
    """Of hospitals where the outcome is more, or less, frequent than predicted."""
    found, generator = {}, torch.Generator().manual_seed(1)
    for site, shift, scale in zip(HOSPITALS, shifts, scales, strict=True):
        log_odds = torch.randn(size, generator=generator, dtype=torch.float64) * 1.5
        risk = (scale * log_odds + shift).sigmoid()
        labels = (torch.rand(size, generator=generator, dtype=torch.float64) < risk).long()
        found[site] = torch.stack([torch.zeros(size), log_odds], dim=1), labels
    return found


TWO = {"name": "classification", "classes": 2}


def test_errors_that_cancel_over_all_rows_are_told_by_hospital() -> None:
    """ "The spread of its risks is about right" was said of a model that was wrong at three of four hospitals."""
    run = results(binary((-1.2, 1.2, -1.0, 1.0)), TWO)
    (one,) = run.outcomes.values()
    large = one["recalibration"]["in_the_large"]
    assert large["low"] < 0 < large["high"], "over all rows nothing is wrong"
    text = " ".join(verdict(run))
    assert not any(sentence.text in text for sentence in calibrated(one))
    assert all(sentence.text in text for sentence in calibration_differences(run, one["outcome"]))
    table = site_calibration_table(run, one["outcome"])
    assert table is not None
    for site, row in zip(HOSPITALS, table.rows, strict=True):
        assert row[0] == site
        assert f"{row[3].split()[0]} at {site}" in text, "observed/expected"
    high, low = (text.index(word) for word in ("too high at north, east", "too low at south, west"))
    assert high < low
    assert "observed/expected of class 1: north" in "".join(_study(run.summary.metrics, run.spec))
    assert "calibration_by_site" in figures(run)
    page = report_page(run)
    assert all(cell in page for row in table.rows for cell in row)


def test_where_the_slope_alone_differs_it_is_told_of_the_hospital_that_is_wrong_and_of_no_other() -> None:
    """Observed/expected of all was printed, and pointed at the smallest hospital, whose risks were right."""
    run = results(binary((0.0,) * 4, scales=(1.0, 0.0, 1.0, 1.0), size=500), TWO)
    (one,) = run.summary.metrics.calibration_by_site
    assert one["differ"]["slope"] < SURE < one["differ"]["in_the_large"]
    slope = one["sites"][1]["recalibration"]["slope"]["value"]
    assert differing(one) == {"slope": {"south": slope}}
    metrics = run.summary.metrics.model_copy(update={"folds": {}, "sites": {}})
    verdict_says = " ".join(sentence.text for sentence in calibration_differences(run, one["outcome"]))
    for text in (verdict_says, " ".join(_study(metrics, run.spec))):
        assert f"{abs(slope):.2f}" in text
        assert [site for site in HOSPITALS if site in text] == ["south"]
        assert "observed/expected" not in text


def test_hospitals_seem_to_differ_by_chance_as_often_as_is_said() -> None:
    """Of 400 federations of hospitals that do not differ."""
    generator, alarms = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        risks, expected = {}, {}
        for site, size in zip(HOSPITALS, (400, 200, 120, 80), strict=True):
            log_odds = torch.randn(size, generator=generator, dtype=torch.float64)
            labels = (torch.rand(size, generator=generator, dtype=torch.float64) < log_odds.sigmoid()).long()
            edges = torch.linspace(-6, 6, 121, dtype=torch.float64)
            zeros, ones = (torch.histc(log_odds[labels == at], 120, -6, 6) for at in (0, 1))
            risks[site], expected[site] = Risks(edges, zeros, ones), float(log_odds.sigmoid().sum())
        differ = calibration_by_site([risks], [expected], groups=False)["differ"]
        alarms += any(p is not None and p < SURE for p in differ.values())
    assert 0.02 < alarms / 400 < 0.08


def test_the_auc_within_hospitals_and_of_the_hospital_alone_stand_beside_the_headline() -> None:
    run = results(binary((-2.0, 2.0, -2.0, 2.0)), TWO)
    metrics = run.summary.metrics
    within, alone = metrics.within_sites["auc"], metrics.site_alone["auc"]
    assert within is not None
    assert alone is not None
    assert alone > 0.7
    first = " ".join(verdict(run))
    for value in (run.test["auc"], within, alone):
        assert f"{value:.3f}" in first
    weights = [row["auc_weight"] for row in run.by_site.values()]
    own = [row["auc"] for row in run.by_site.values()]
    assert sum(weights) == pytest.approx(1)
    assert within == pytest.approx(sum(w * a for w, a in zip(weights, own, strict=True)), abs=1e-9)
    page = report_page(run)
    assert f">{within:.3f}<" in page
    assert f">{alone:.3f}<" in page


@pytest.mark.parametrize("name", ["classification", "multi-label"])
def test_every_class_that_is_hardly_found_is_named(name: str) -> None:
    task = {"name": name, "classes" if name == "classification" else "labels": 12}
    made = results({"north": draw(run_spec(task=task).task, 2000, 3)}, task)
    outputs, labels = draw(made.spec.task, 2000, 3)
    outputs[:, 2:] -= 20
    outputs[0, 2] += 40  # one of them is found, by chance
    run = results({"north": (outputs, labels), "south": (outputs, labels)}, task)
    first = " ".join(verdict(run))
    kind = "class" if name == "classification" else "label"
    for place in range(12):
        assert (f"{kind} {place} (recall" in first) == (place > 1), place
    if name == "classification":
        assert "on average over 12 classes" in first


@pytest.mark.parametrize("task", [TWO, {"name": "regression"}])
def test_a_page_does_not_deny_what_few_samples_tell(task: dict[str, Any]) -> None:
    """It said that no site sends a score, while a histogram of twenty scores is twenty scores."""
    run = results({"north": draw(run_spec(task=task).task, 20, 0)}, task)
    page, said = unescape(report_page(run)), sent(run)
    assert "No site sent" not in page
    assert said in page
    assert "min_rows" in said
    assert ("bins" if task == TWO else "histogram") in said


def test_what_is_said_of_hospitals_is_true_of_each_that_is_named() -> None:
    """An interval below 0.5 "included 0.5", a diverged model was left out, and one that tested nothing was counted."""
    rows = [
        {"site": "north", "samples": 90, "loss": 0.4, "baseline_loss": 0.6, "auc_low": 0.7, "auc_high": 0.9},
        {"site": "south", "samples": 90, "loss": float("inf"), "baseline_loss": 0.6, "auc_low": 0.2, "auc_high": 0.4},
        {"site": "east", "samples": 90, "loss": 0.5, "baseline_loss": 0.6, "auc_low": 0.4, "auc_high": 0.7},
        {"site": "west", "samples": 0},
    ]
    run = replace(results(binary((0.0,) * 4), TWO), sites=pd.DataFrame(rows))
    found = topics(run)
    assert "3 hospitals" in found["Tested on"][0].text
    named = {one.code: {site for site in HOSPITALS if site in one.text} for one in found["Hospital by hospital"]}
    assert named == {
        "guess-without-interval": set(),
        "chance": {"east"},
        "below-chance": {"south"},
        "site-untested": {"west"},
    }
    assert "At 2 of 3 hospitals" in found["Hospital by hospital"][0].text, "a diverged model is no better"
    few, all_ = (" ".join(verdict(replace(run, sites=pd.DataFrame(own)))) for own in ([rows[0], rows[3]], rows[:1]))
    assert "At each" not in few + all_
    both = [rows[0], rows[2], rows[3]]
    assert "that are compared" in " ".join(verdict(replace(run, sites=pd.DataFrame(both))))
    assert "that are compared" not in " ".join(verdict(replace(run, sites=pd.DataFrame(both[:2]))))
