"""A study of several folds: what its figures are of, and that it goes on from its own JSON."""

from __future__ import annotations

import json
from functools import reduce
from operator import add

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import auc, average_precision_score, roc_auc_score
from torch import Tensor

from rankdad.common.metrics import paired
from rankdad.common.metrics.intervals import QUANTILE
from rankdad.common.metrics.paired import Rows, histograms, positives, smoothed, squares
from rankdad.common.metrics.risk import mean_curve, precision_recall, roc
from rankdad.common.metrics.summary import summarise
from rankdad.common.metrics.sums import Tally, empty, tally
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec.tasks import Classification, TaskSpec
from rankdad.remote.results.fold_metrics import FoldMetrics
from rankdad.remote.results.progress import Progress
from rankdad.remote.results.run_results import PlanSummary, RunResults
from rankdad.remote.results.run_summary import RunSummary
from tests.common.metrics.samples import TASKS, draw, pooled, tallied
from tests.conftest import run_spec

SITES = ("alpha", "beta", "gamma")


def tallies(task: TaskSpec, fold: int, sizes: tuple[int, ...] = (40, 30, 20)) -> dict[str, Tally]:
    return {
        site: tallied(task, *draw(task, size, 10 * fold + place))
        for place, (site, size) in enumerate(zip(SITES, sizes, strict=True))
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_figures_are_of_all_folds_and_go_on_from_json(task: TaskSpec) -> None:
    study, again = FoldMetrics(task, SITES), FoldMetrics(task, SITES)
    assert study.summary() == {}
    study.add(tallies(task, 0), tallies(task, 5))
    again.restore(json.loads(json.dumps(study.state())))
    for one in (study, again):
        one.add(tallies(task, 1), tallies(task, 6))
    assert json.dumps(again.state()) == json.dumps(study.state())
    assert again.summary() == study.summary()
    assert again.by_site() == study.by_site()
    json.dumps(study.summary(), allow_nan=False)

    found = study.pooled
    assert found is not None
    assert found.samples == 2 * 90
    assert study.summary()["folds"]["loss"]["mean"] == pytest.approx(found.values["loss"])
    for site, row in zip(SITES, study.by_site(), strict=True):
        of_both = summarise(task, tallies(task, 0)[site] + tallies(task, 1)[site])
        guessed = summarise(task, tallies(task, 5)[site] + tallies(task, 6)[site])
        assert (row["site"], row["samples"]) == (site, of_both.samples)
        assert {name: row[name] for name in task.metrics} == of_both.values
        assert {name: row[f"baseline_{name}"] for name in task.metrics} == guessed.values


def test_sums_of_folds_may_be_beyond_what_one_tally_has_on_the_wire() -> None:
    task = TASKS[0]
    study, again, one = FoldMetrics(task, SITES), FoldMetrics(task, SITES), tallied(task, *draw(task, 40, 0))
    large = Tally(one.counts * 2**25, torch.full_like(one.sums, 9e299))
    for _ in range(2):
        study.add(dict.fromkeys(SITES, large), dict.fromkeys(SITES, large))
    again.restore(json.loads(json.dumps(study.state())))
    assert again.state() == study.state()


def test_all_samples_are_pooled_as_if_they_were_of_one_site() -> None:
    task = TASKS[1]
    outputs, labels = draw(task, 90, 0)
    study, parts = FoldMetrics(task, SITES), zip(SITES, outputs.split(30), labels.split(30), strict=True)
    for site, x, y in parts:  # each fold tests one site
        models = {name: tallied(task, x, y) if name == site else empty(task) for name in SITES}
        study.add(models, models)
    assert study.pooled is not None
    assert study.pooled.values == pytest.approx(summarise(task, pooled(task, outputs, labels, [90])).values)
    assert study.summary()["baseline"] == study.pooled.values


def test_a_fold_that_tests_nothing_and_a_site_that_is_away_are_no_figures() -> None:
    task = TASKS[1]
    study = FoldMetrics(task, SITES)
    study.add({site: empty(task) for site in SITES}, {})
    assert study.summary() == {}
    first = {"alpha": tallies(task, 0)["alpha"]}
    study.add(first, first)
    study.add({site: empty(task) for site in SITES}, {})
    assert study.summary()["folds"]["loss"]["sd"] is None, "there is one fold"
    assert [row["samples"] for row in study.by_site()] == [40, 0, 0]
    assert study.by_site()[1]["loss"] is None


def test_the_difference_within_sites_is_delongs_of_each_weighted_by_its_pairs() -> None:
    """Where sites' shares of the outcome differ, each site's own model ranks rows of different sites by that alone."""
    task, generator = Classification(classes=2), torch.Generator().manual_seed(0)
    study = FoldMetrics(task, SITES, ("local",))
    values, errors = [], []
    for _ in range(2):
        tests, sent, parts = dict[str, list[Tally]](), dict[str, list[Rows]](), []
        positive = dict[str, Tensor]()
        for site, share, size in zip(SITES, (0.1, 0.5, 0.9), (200, 120, 160), strict=True):
            labels = (torch.rand(size, generator=generator) < share).long()
            signal = labels + torch.randn(size, generator=generator, dtype=torch.float64)
            noise = 0.5 * torch.randn(size, generator=generator, dtype=torch.float64)
            scores = signal, signal + noise + 4 * share  # the federated model, and the site's own
            outputs = [torch.stack([torch.zeros(size), one], dim=1) for one in scores]
            loss = torch.zeros(size, dtype=torch.float64)
            tests[site] = [tally(task, one, labels, loss) for one in (outputs[0], outputs[0], outputs[1])]
            sent[site] = [paired.rows(task, one, labels, loss) for one in (outputs[0], outputs[0], outputs[1])]
            positive[site] = positives(task, labels)
            higher = [(one[labels == 1][:, None] > one[labels == 0]).double() for one in scores]
            up, down = ((higher[0] - higher[1]).mean(dim) for dim in (1, 0))
            parts.append((len(up) * len(down), float(up.mean()), float(up.var() / len(up) + down.var() / len(down))))
        model, guess, local = ({site: own[at] for site, own in tests.items()} for at in range(3))
        study.add(model, guess, {"local": local})
        pooled = torch.stack([smoothed(histograms(task, reduce(add, one.values()))) for one in (model, guess, local)])
        study.compare({site: squares(task, own, positive[site], pooled) for site, own in sent.items()}, pooled)
        pairs = np.array([one for one, _, _ in parts])
        weights = pairs / pairs.sum()
        values.append(float(weights @ [value for _, value, _ in parts]))
        errors.append(float(weights**2 @ [variance for _, _, variance in parts]) ** 0.5)
    found = study.differences()["local"]
    within, everywhere = found["auc_within"], found["auc"]
    assert within["value"] == pytest.approx(np.mean(values), rel=1e-12), "of exact scores, not of bins"
    assert (within["high"] - within["value"]) / QUANTILE == pytest.approx(np.hypot(*errors) / 2, rel=5e-4)
    assert everywhere["high"] < 0 < within["low"], "all rows together say the opposite"
    in_a_region = FoldMetrics(task, SITES, ("local",), regions=SITES[:1])
    in_a_region.add(model, guess, {"local": local})
    in_a_region.compare({site: squares(task, own, positive[site], pooled) for site, own in sent.items()}, pooled)
    assert "auc_within" not in in_a_region.differences()["local"]
    assert [row["local_auc_difference"] is None for row in in_a_region.by_site()] == [True, False, False]


@pytest.mark.slow
def test_repeats_of_models_on_other_scales_have_one_auc_in_figures_curves_and_thresholds() -> None:
    """Added up, scores of a model that is sure and of one that is not, or is biased, rank rows worse than either."""
    task = Classification(classes=2)
    study = FoldMetrics(task, SITES, per_repeat=1)
    log_odds, labels = [], draw(task, 300, 0)[1]
    for repeat, (scale, bias) in enumerate(((1.0, -3.0), (0.5, 3.0))):
        noise = torch.randn(300, generator=torch.Generator().manual_seed(repeat), dtype=torch.float64)
        log_odds.append(scale * (noise + 1.5 * labels) + bias)
        outputs = torch.stack([torch.zeros(300), log_odds[-1]], dim=1)
        parts = zip(SITES, outputs.split(100), labels.split(100), strict=True)
        study.add({site: tallied(task, x, y) for site, x, y in parts}, {})
    assert study.pooled is not None
    theirs = np.mean([roc_auc_score(labels, one) for one in log_odds])
    assert roc_auc_score(labels.repeat(2), torch.cat(log_odds)) < theirs - 0.05, "which all together do not reach"
    (found,) = study.summary()["risks"]
    assert study.pooled.values["auc"] == pytest.approx(theirs, abs=2e-3)
    assert found["auc"] == pytest.approx(study.pooled.values["auc"], abs=1e-12)
    assert found["auc_interval"] == pytest.approx(
        [study.summary()["intervals"]["auc"][end] for end in ("low", "high")], abs=1e-12
    )
    assert (found["samples"], found["events"]) == (300, int(labels.sum()))
    precision = np.mean([average_precision_score(labels, one) for one in log_odds])
    assert found["average_precision"] == pytest.approx(precision, abs=0.01)
    fits = [LogisticRegression(C=np.inf, tol=1e-12).fit(one[:, None], labels).coef_[0, 0] for one in log_odds]
    assert found["recalibration"]["slope"]["value"] == pytest.approx(np.mean(fits), rel=0.01)
    named = {row["name"]: row for row in found["thresholds"]}
    at_half = [float((one[labels == 1] > 0).double().mean()) for one in log_odds]
    assert named["risk of 50 %"]["sensitivity"]["value"] == pytest.approx(np.mean(at_half), abs=0.02)
    assert named["sensitivity of 90 %"]["sensitivity"]["value"] == pytest.approx(0.9, abs=0.01)
    by_group = found["calibration_groups"]
    assert sum(one["count"] for one in by_group) == pytest.approx(300, abs=30)

    empty_table = pd.DataFrame()
    rows = pd.DataFrame(study.predictions()[1])
    run = RunResults(run_spec(), PlanSummary(), RunSummary(), empty_table, empty_table, empty_table, rows)
    read = run.risks_of(1)
    assert len(read) == 2
    drawn = mean_curve([roc(one) for one in read])
    assert auc(drawn.x, drawn.y) == pytest.approx(found["auc"], abs=1e-9), "the area below the curve that is drawn"
    drawn = mean_curve([precision_recall(one) for one in read])
    assert auc(drawn.x, drawn.y) == pytest.approx(precision, abs=0.02)


def test_a_site_that_is_left_out_of_several_tests_is_warned_of_once() -> None:
    """The terminal counted "3 sites (a, a, a)"."""
    spec = run_spec()
    progress = Progress.of(spec, make_plan(spec, Replica(spec).model), SITES)
    for sites in (["beta"], ["beta", "alpha"], []):
        progress.warn("left-out-of-a-test", sites)
    progress.warn("one-class", [])
    assert progress.warnings == {"left-out-of-a-test": ["beta", "alpha"]}
