"""Calibration by site against statsmodels on the rows themselves, and what opposite errors of sites look like."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy.stats import chi2
from sklearn.metrics import roc_auc_score
from statsmodels.stats.meta_analysis import combine_effects
from statsmodels.stats.proportion import proportion_confint
from torch import Tensor

from rankdad.common.metrics.site_calibration import FEWEST
from rankdad.common.metrics.sites import site_alone, within_sites
from rankdad.common.metrics.sums import Tally
from rankdad.common.spec.tasks import Classification, MultiLabel, TaskSpec
from rankdad.remote.results.fold_metrics import FoldMetrics
from tests.common.metrics.samples import draw, tallied

SIZES = {"alpha": 900, "beta": 400, "gamma": 250, "delta": 60}
SHIFTS = {"alpha": 0.0, "beta": -1.0, "gamma": 1.2, "delta": 0.0}  # of the outcome's true log-odds
BINARY = Classification(classes=2)


def rows(sizes: dict[str, int] = SIZES) -> dict[str, tuple[Tensor, Tensor]]:
    """Log-odds that a model predicts at each site, and labels that are more, or less, frequent there."""
    found, generator = {}, torch.Generator().manual_seed(3)
    for site, size in sizes.items():
        log_odds = torch.randn(size, generator=generator, dtype=torch.float64) * 1.5 - 0.5
        risk = (0.8 * log_odds + SHIFTS[site]).sigmoid()
        found[site] = log_odds, (torch.rand(size, generator=generator, dtype=torch.float64) < risk).long()
    return found


def study_of(found: dict[str, tuple[Tensor, Tensor]], groups: dict[str, Tensor] | None = None) -> FoldMetrics:
    study = FoldMetrics(BINARY, tuple(found), grouped=groups is not None)
    tallies = {
        site: tallied(
            BINARY, torch.stack([torch.zeros(len(x)), x], 1), y, groups=None if groups is None else groups[site]
        )
        for site, (x, y) in found.items()
    }
    study.add(tallies, {})
    return study


def sites_of(study: FoldMetrics) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    (one,) = study.summary()["calibration_by_site"]
    assert one["outcome"] == 1
    return {row["site"]: row for row in one["sites"]}, one["differ"]


def test_it_is_that_of_statsmodels_on_each_sites_rows() -> None:
    found = rows()
    study = study_of(found)
    sites, differ = sites_of(study)
    large = []
    for site, (log_odds, labels) in found.items():
        row, y, risk = sites[site], labels.numpy(), log_odds.sigmoid().numpy()
        assert (row["samples"], row["events"]) == (len(y), int(y.sum()))
        assert row["expected"] == pytest.approx(risk.sum(), rel=1e-12)
        ratio = row["observed_expected"]
        assert ratio["value"] == pytest.approx(y.sum() / risk.sum(), rel=1e-12)
        ends = np.array(proportion_confint(y.sum(), len(y), method="wilson")) / risk.mean()
        assert [ratio["low"], ratio["high"]] == pytest.approx(ends, rel=1e-6)
        offset = sm.GLM(y, np.ones(len(y)), sm.families.Binomial(), offset=log_odds.numpy()).fit()
        whole = sm.GLM(y, sm.add_constant(log_odds.numpy()), sm.families.Binomial()).fit()
        for name, fit, at in (("in_the_large", offset, 0), ("intercept", whole, 0), ("slope", whole, 1)):
            ours = row["recalibration"][name]
            assert abs(ours["value"] - fit.params[at]) <= ours["error"] + 1e-9
            assert [ours["low"], ours["high"]] == pytest.approx(fit.conf_int()[at], abs=0.01 + ours["error"])
        large.append((offset.params[0], offset.bse[0] ** 2))
    theirs = combine_effects(*np.array(large).T)
    assert differ["in_the_large"] == pytest.approx(chi2.sf(theirs.q, theirs.df), rel=0.1)
    assert differ["in_the_large"] < 1e-6
    assert differ["slope"] > 0.05, "which is the same everywhere"
    row = {row["site"]: row for row in study.calibration_rows()}["beta"]
    assert row["slope_low"] == sites["beta"]["recalibration"]["slope"]["low"]
    assert row["observed_expected"] == sites["beta"]["observed_expected"]["value"] < 1


def test_points_of_a_sites_plot_are_of_enough_rows_and_hold_all() -> None:
    sites, _ = sites_of(study_of(rows()))
    for site, size in SIZES.items():
        groups = sites[site]["groups"]
        assert len(groups) == min(10, size // FEWEST) or size < 250
        assert all(group["count"] >= FEWEST for group in groups)
        assert sum(group["count"] for group in groups) == size
        events = sum(group["count"] * group["observed"] for group in groups)
        assert round(events) == sites[site]["events"]
    few, _ = sites_of(study_of(rows({"alpha": 300, "delta": FEWEST - 1})))
    assert few["delta"]["groups"] == []
    assert few["alpha"]["groups"]


def test_a_few_rows_between_two_heaps_are_no_point_of_their_own() -> None:
    log_odds = torch.cat([torch.full((200,), -2.0), torch.full((3,), 0.0), torch.full((200,), 2.0)]).double()
    labels = (torch.arange(403) % 2).long()
    sites, _ = sites_of(study_of({"alpha": (log_odds, labels)}))
    assert [group["count"] for group in sites["alpha"]["groups"]] in ([200, 203], [203, 200])


def test_a_site_with_one_outcome_alone_has_a_ratio_and_no_fit() -> None:
    found = rows()
    found["delta"] = found["delta"][0], torch.zeros(60, dtype=torch.int64)
    found["nobody"] = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    study = study_of(found)
    sites, differ = sites_of(study)
    assert set(sites) == set(SIZES)
    assert sites["delta"]["observed_expected"]["value"] == 0
    assert sites["delta"]["observed_expected"]["high"] > 0
    assert sites["delta"]["recalibration"] == {}
    assert differ["in_the_large"] < 1e-6
    assert {row["site"]: row["slope"] for row in study.calibration_rows()}["delta"] is None
    _, alone = sites_of(study_of({"alpha": found["alpha"]}))
    assert alone == {"in_the_large": None, "slope": None}


def test_rows_of_one_patient_are_no_more_than_one() -> None:
    """Each row three times over: the interval is that of each row once."""
    once = rows()
    thrice = {site: (x.repeat(3), y.repeat(3)) for site, (x, y) in once.items()}
    groups = {site: torch.arange(len(x)).repeat(3) for site, (x, _) in once.items()}
    alone, _ = sites_of(study_of(once))
    together, _ = sites_of(study_of(thrice, groups))
    for site in SIZES:
        for name in ("observed_expected", "in_the_large"):
            one, three = ((row if name in row else row["recalibration"])[name] for row in (alone[site], together[site]))
            assert three["value"] == pytest.approx(one["value"], rel=1e-6)
            assert three["high"] - three["low"] == pytest.approx(one["high"] - one["low"], rel=0.1)


def test_several_labels_and_classes_have_a_calibration_each() -> None:
    for task, outcomes in ((MultiLabel(name="multi-label", labels=3), 3), (Classification(classes=4), 4)):
        study = FoldMetrics(task, ("alpha", "beta"))
        samples = {site: draw(task, 400, place) for place, site in enumerate(("alpha", "beta"))}
        study.add({site: tallied(task, *one) for site, one in samples.items()}, {})
        found = study.summary()["calibration_by_site"]
        assert [one["outcome"] for one in found] == list(range(outcomes))
        outputs, labels = samples["beta"]
        for one in found:
            at, row = one["outcome"], one["sites"][1]
            several = isinstance(task, MultiLabel)
            risk = outputs[:, at].sigmoid() if several else outputs.softmax(1)[:, at]
            true = labels[:, at] if several else labels == at
            assert row["expected"] == pytest.approx(float(risk.sum()), rel=1e-9 if several else 5e-3)
            assert row["events"] == int(true.sum())


def weighted(task: TaskSpec, samples: list[tuple[Tensor, Tensor]]) -> float:
    """The mean of the sites' own AUCs, each weighted by its pairs."""
    classes, total, areas = task.outputs, [0.0] * task.outputs, [0.0] * task.outputs
    for outputs, labels in samples:
        for at in range(classes):
            true = (labels == at).numpy() if isinstance(task, Classification) else labels[:, at].numpy() > 0.5
            if 0 < true.sum() < len(true):
                pairs = true.sum() * (~true).sum()
                score = outputs[:, at] - outputs[:, 1 - at] if classes == 2 else outputs.softmax(1)[:, at]
                score = outputs[:, at] if isinstance(task, MultiLabel) else score
                areas[at] += pairs * roc_auc_score(true, score)
                total[at] += pairs
    return float(np.mean([area / number for area, number in zip(areas, total, strict=True)]))


@pytest.mark.parametrize("task", [BINARY, Classification(classes=3), MultiLabel(name="multi-label", labels=3)])
def test_auc_within_sites_and_of_the_site_alone_are_scikit_learns(task: TaskSpec) -> None:
    samples = [draw(task, size, size) for size in (300, 200, 80)]
    several = isinstance(task, MultiLabel)
    samples[0] = samples[0][0], samples[0][1] * (torch.rand(300, 3) < 0.5) if several else samples[0][1] // 2
    tallies: list[Tally] = [tallied(task, *one) for one in samples]
    assert within_sites(task, tallies)["auc"] == pytest.approx(weighted(task, samples), abs=2e-3)
    labels = torch.cat([one for _, one in samples])
    areas = []
    for at in range(task.outputs):
        true = [(one[:, at] > 0.5 if several else one == at).double() for _, one in samples]
        score = torch.cat([one.mean().expand(len(one)) for one in true])
        areas.append(roc_auc_score(torch.cat(true), score))
    assert len(labels) == 580
    assert site_alone(task, tallies) == pytest.approx(np.mean(areas), abs=1e-12)


def test_sites_that_are_alike_tell_nothing() -> None:
    one = tallied(BINARY, *draw(BINARY, 100, 0))
    assert site_alone(BINARY, [one, one]) == 0.5
    none = tallied(BINARY, *(x[:0] for x in draw(BINARY, 4, 0)))
    assert site_alone(BINARY, [one, none]) == 0.5
    assert site_alone(BINARY, [none]) is None
    assert math.isfinite(site_alone(BINARY, [one]) or math.nan)
