"""Figures of predicted risks from histograms against scikit-learn's on the samples themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from sklearn import metrics as oracle
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from rankdad.common.metrics.risk import (
    Risks,
    average_precision,
    calibration_groups,
    net_benefit,
    precision_recall,
    recalibration,
    risk_summary,
    roc,
    thresholds,
)
from rankdad.common.metrics.sums import default_log_odds, parts
from rankdad.common.spec.tasks import Classification, MultiLabel
from tests.common.metrics.samples import draw, pooled

BINARY = Classification(classes=2)


def predicted(samples: int, seed: int, scale: float = 1.0) -> tuple[Risks, float, Tensor, Tensor]:
    """Risks and Brier sum as three sites' tallies add up to, and the log-odds and labels behind them."""
    outputs, labels = draw(BINARY, samples, seed, scale)
    part = parts(BINARY, pooled(BINARY, outputs, labels, [samples // 2, samples - samples // 2]))
    base = float(default_log_odds(BINARY)[1])
    return Risks.of(part.scores[1], base), float(part.brier[1]), outputs[:, 1] - outputs[:, 0], labels


@pytest.mark.parametrize(("samples", "seed", "scale"), [(60, 0, 1.0), (900, 1, 3.0), (4000, 2, 0.1)])
def test_thresholds_have_the_very_counts_of_the_pooled_samples(samples: int, seed: int, scale: float) -> None:
    risks, _, log_odds, labels = predicted(samples, seed, scale)
    found = thresholds(risks)
    assert [one["risk"] for one in found] == sorted(one["risk"] for one in found)
    for row in found:
        guess = log_odds.sigmoid() >= row["risk"] - 1e-15
        (tn, fp), (fn, tp) = oracle.confusion_matrix(labels, guess, labels=[0, 1]).tolist()
        ratios = {
            "sensitivity": (tp, tp + fn),
            "specificity": (tn, tn + fp),
            "ppv": (tp, tp + fp),
            "npv": (tn, tn + fn),
            "flagged": (tp + fp, samples),
        }
        for name, (hits, count) in ratios.items():
            assert (row[name] is None) == (count == 0)
            if count:
                assert row[name]["value"] == hits / count, (row["name"], name)
                assert row[name]["low"] <= hits / count <= row[name]["high"]
    named = {row["name"]: row for row in found}
    assert named["risk of 20 %"]["risk"] == pytest.approx(0.2, abs=0.01)
    assert named["sensitivity of 90 %"]["sensitivity"]["value"] >= 0.9
    fpr, tpr, _ = oracle.roc_curve(labels, log_odds)
    youden = named["largest Youden index"]
    reached = youden["sensitivity"]["value"] + youden["specificity"]["value"] - 1
    assert reached == pytest.approx(float((tpr - fpr).max()), abs=0.01)


def test_brier_score_is_exact_and_curves_pass_through_scikit_learns_points() -> None:
    risks, brier, log_odds, labels = predicted(1500, 3)
    risk = log_odds.sigmoid()
    found = risk_summary(risks, brier)
    assert found["brier"] == pytest.approx(oracle.brier_score_loss(labels, risk), rel=1e-12)
    assert (found["samples"], found["events"]) == (1500, int(labels.sum()))
    assert abs(found["auc"] - oracle.roc_auc_score(labels, risk)) <= found["auc_error"]
    precision, error = average_precision(risks) or (math.nan, math.nan)
    assert abs(precision - oracle.average_precision_score(labels, risk)) <= error < 0.02
    for curve, (x, y) in (
        (roc(risks), oracle.roc_curve(labels, risk, drop_intermediate=False)[:2]),
        (precision_recall(risks), oracle.precision_recall_curve(labels, risk)[1::-1]),
    ):
        theirs = {(round(a, 9), round(b, 9)) for a, b in zip(x, y, strict=True)}
        ours = {(round(a, 9), round(b, 9)) for a, b in zip(curve.x.tolist(), curve.y.tolist(), strict=True)}
        assert ours <= theirs | {(0.0, 0.0)}
        assert len(ours) > 200
        assert bool((curve.low[1] <= curve.y).all())
        assert bool((curve.y <= curve.high[1]).all())


@pytest.mark.parametrize(("samples", "scale"), [(300, 1.0), (3000, 2.5), (3000, 0.3)])
def test_recalibration_is_scikit_learns_within_its_bound(samples: int, scale: float) -> None:
    risks, _, log_odds, labels = predicted(samples, 4, scale)
    found = recalibration(risks)
    theirs = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(log_odds[:, None], labels)
    for name, value in (("slope", theirs.coef_[0, 0]), ("intercept", theirs.intercept_[0])):
        assert abs(found[name].value - value) <= found[name].error + 1e-6, name
        assert found[name].error < 0.03 * max(1.0, abs(value)), "the bound says something"
        assert found[name].low < found[name].value < found[name].high
    # with the slope at 1, the mean of the corrected risks is the frequency of the outcome
    large = found["in_the_large"]
    means = [float((log_odds + large.value + side * (large.error + 1e-6)).sigmoid().mean()) for side in (-1, 1)]
    assert means[0] <= float(labels.double().mean()) <= means[1]


def test_the_groups_of_the_calibration_plot_are_those_of_the_samples_within_their_bound() -> None:
    risks, _, log_odds, labels = predicted(2000, 5)
    at = 0
    order = log_odds.argsort()
    for group in calibration_groups(risks):
        count = int(group["count"])
        inside = order[at : at + count]  # bins are in the order of scores
        assert group["observed"] == pytest.approx(float(labels[inside].double().mean()), rel=1e-12)
        assert abs(group["predicted"] - float(log_odds[inside].sigmoid().mean())) <= group["error"] < 0.005
        at += count
    assert at == 2000


def test_net_benefit_is_that_of_its_definition() -> None:
    risks, _, log_odds, labels = predicted(800, 6)
    curve = net_benefit(risks)
    for edge in range(300, 700, 20):
        risk = float(curve["risk"][edge])
        flagged = log_odds.sigmoid() >= risk - 1e-15
        true, false = int((flagged & (labels == 1)).sum()), int((flagged & (labels == 0)).sum())
        assert float(curve["model"][edge]) == pytest.approx((true - false * risk / (1 - risk)) / 800, abs=1e-9)
        everybody = float(labels.double().mean()) - float((labels == 0).double().mean()) * risk / (1 - risk)
        assert float(curve["all"][edge]) == pytest.approx(everybody, rel=1e-6)


def test_what_has_no_answer_is_none_and_no_error() -> None:
    outputs, labels = draw(BINARY, 40, 7)
    for given, true, known in (
        (outputs, torch.zeros(40, dtype=torch.int64), {}),  # one outcome
        (torch.zeros(40, 2), labels, {"in_the_large"}),  # one prediction for all
        (torch.stack([-labels, labels], dim=1) * 8.0, labels, {"in_the_large"}),  # no error at all
    ):
        part = parts(BINARY, pooled(BINARY, given.double(), true, [20, 20]))
        found = risk_summary(Risks.of(part.scores[1], 0.0), float(part.brier[1]))
        assert set(found["recalibration"]) == set(known)
        if known:  # the intercept at slope 1 needs no different or mixed risks
            offset = (given[:, 1] - given[:, 0]).double().numpy()
            theirs = sm.GLM(true.numpy(), np.ones(40), family=sm.families.Binomial(), offset=offset).fit()
            ours = found["recalibration"]["in_the_large"]
            assert ours["value"] == pytest.approx(theirs.params[0], abs=0.05)
            assert (ours["high"] - ours["value"]) / 1.96 == pytest.approx(theirs.bse[0], rel=0.05)
        assert all(value is None or np.isfinite(value) for value in found.values() if isinstance(value, float))


def test_each_label_has_its_own_squared_error() -> None:
    task = MultiLabel(name="multi-label", labels=3)
    outputs, labels = draw(task, 200, 8)
    brier = parts(task, pooled(task, outputs, labels, [150, 50])).brier / 200
    theirs = [oracle.brier_score_loss(labels[:, at], outputs[:, at].sigmoid()) for at in range(3)]
    assert brier.tolist() == pytest.approx(theirs, rel=1e-12)


def test_of_smooth_scores_there_is_no_error_of_bins_and_of_few_no_threshold() -> None:
    """They were off by more than the intervals beside them: a sensitivity of 24 %, where it was 13 %."""
    for samples in (400, 1500):
        risks, brier, *_ = predicted(samples, 3)
        exact, smooth = (risk_summary(risks, brier, torch.tensor([1.0, 2.0, float(own)])) for own in (False, True))
        assert {one["error"] is None for one in exact["recalibration"].values()} == {False}
        assert {one["error"] for one in smooth["recalibration"].values()} == {None}
        assert bool(smooth["thresholds"]) == (samples > 1000)
        assert exact["thresholds"]
