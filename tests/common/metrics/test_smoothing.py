"""Smooth scores: no number of few people, nobody's own score, and figures that stay what they are."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from sklearn import metrics as oracle
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.metrics.auc import MOST_OFF, bin_edges
from rankdad.common.metrics.intervals import intervals
from rankdad.common.metrics.recalibration import recalibrations
from rankdad.common.metrics.risk import Risks, risk_summary, thresholds
from rankdad.common.metrics.sites import within_sites
from rankdad.common.metrics.smoothing import Scored, curve, smooth
from rankdad.common.metrics.summary import exact_auc, summarise
from rankdad.common.metrics.sums import Tally, default_log_odds, empty, of_one_test, parts, tally
from rankdad.common.metrics.tally_codec import pack_tally, unpack_tally
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec
from tests.common.metrics.samples import draw as drawn
from tests.common.metrics.samples import losses as losses_of
from tests.conftest import sampled

TWO = Classification(classes=2)
LABELS, NUMBERS = MultiLabel(name="multi-label", labels=3), Regression(name="regression")


def left(task: TaskSpec, outputs: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tally:
    """Return what leaves of a site's test, as it arrives."""
    bent = smooth(task, outputs, labels, people=groups, clustered=groups is not None)
    counted = tally(task, outputs, labels, losses_of(task, outputs, labels), groups=groups, smooth=bent[:2])
    return unpack_tally(task, pack_tally(bent.order + counted), groups is not None)


def site(draw: torch.Generator, people: int, shape: str, apart: float) -> tuple[Tensor, Tensor]:
    labels = (torch.rand(people, generator=draw) < 0.4).long()
    scores = torch.randn(people, generator=draw, dtype=torch.float64) + apart * (labels - 0.5)
    if shape == "saturated":
        scores = 8 * torch.tanh(1.5 * scores)
    elif shape == "few values":
        scores = scores.round()
    return torch.stack([torch.zeros(people, dtype=torch.float64), scores], dim=1), labels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("people", "most", "shape"),
    sampled(
        [
            (people, most, shape)
            for shape in ("normal", "saturated", "few values")
            for people, most in ((12, 0.03), (40, 0.01), (200, 0.003))
        ],
        every=9,
    ),
)
def test_the_auc_of_six_sites_is_near_the_exact_one_and_says_how_near(people: int, most: float, shape: str) -> None:
    draw, off, said = torch.Generator().manual_seed(people), [], []
    for turn in range(10):
        sites = [site(draw, people, shape, (0.5, 1.5)[turn % 2]) for _ in range(6)]
        total = summarise(TWO, reduce(add, (left(TWO, *one) for one in sites)))
        scores, labels = torch.cat([one[:, 1] for one, _ in sites]), torch.cat([of for _, of in sites])
        assert total.values["auc"] is not None
        assert total.auc_error is not None
        off.append(abs(total.values["auc"] - oracle.roc_auc_score(labels, scores)))
        said.append(total.auc_error)
    assert sum(off) / len(off) < most
    assert sum(off) < 1.5 * sum(said) + len(off) * 1e-4


@pytest.mark.parametrize("people", [6, 12, 20, 60])
def test_an_auc_that_may_be_far_off_is_none_and_there_is_no_average_precision(people: int) -> None:
    draw, none = torch.Generator().manual_seed(people), 0
    for _ in range(10):
        sites = [site(draw, people, "saturated", 1.0) for _ in range(2)]
        total = reduce(add, (left(TWO, *one) for one in sites))
        found, part = summarise(TWO, total), parts(TWO, total)
        assert found.auc_error is not None
        one = risk_summary(Risks.plain(part.scores[1], 0.0), part.loss, part.order[1] + part.across[1])
        assert one["average_precision"] is one["average_precision_error"] is None
        gone = [found.reliable.values["auc"] is None, one["auc"] is None, "auc" not in intervals(TWO, total)]
        assert gone == [found.auc_error > MOST_OFF] * 3
        none += gone[0]
    assert (none > 0) == (people < 60)


@pytest.mark.parametrize("task", [TWO, Classification(classes=4), LABELS])
def test_an_auc_of_scores_that_are_here_is_exact(task: Classification | MultiLabel) -> None:
    outputs, labels = drawn(task, 60, 0, 9.0)
    scores = outputs[:, 1] - outputs[:, 0] if task == TWO else outputs
    if task.outputs == 4:
        scores = outputs.softmax(1)
    exact = oracle.roc_auc_score(labels, scores, multi_class="ovr")
    assert exact_auc(task, outputs, labels)["auc"] == pytest.approx(exact)


@pytest.mark.parametrize("rows", [60, 12])
def test_the_auc_of_one_site_is_exact_over_all_its_folds(rows: int) -> None:
    """A site remembers its earlier tests: pairs of samples of two folds are counted exactly, too."""
    outputs, labels = site(torch.Generator().manual_seed(1), 60, "normal", 1.0)
    exact = pytest.approx(oracle.roc_auc_score(labels, outputs[:, 1]), abs=1e-12)
    earlier, tests = list[Scored](), list[Tally]()
    for own in torch.arange(60).split(rows):
        bent = smooth(TWO, outputs[own], labels[own], earlier=earlier)
        losses = F.cross_entropy(outputs[own], labels[own], reduction="none")
        assert bent.scored is not None
        earlier.append(bent.scored)
        tests.append(bent.order + tally(TWO, outputs[own], labels[own], losses, smooth=bent[:2]))
    found = summarise(TWO, reduce(add, (unpack_tally(TWO, pack_tally(one)) for one in tests)))
    assert found.values["auc"] == exact
    assert found.auc_error == pytest.approx(0, abs=1e-12)
    assert rows < 60 or within_sites(TWO, tests)["auc"] == exact


def test_all_else_is_exact() -> None:
    """Counts of classes, hits, losses, Brier's sum and the sum of risks are those of the exact scores."""
    outputs, labels = site(torch.Generator().manual_seed(2), 57, "normal", 1.0)
    exact = parts(TWO, tally(TWO, outputs, labels, F.cross_entropy(outputs, labels, reduction="none")))
    found = parts(TWO, left(TWO, outputs, labels))
    assert found.samples == exact.samples
    assert found.loss == pytest.approx(exact.loss, rel=1e-12)
    assert found.confusion.equal(exact.confusion)
    assert found.scores.sum(dim=2).equal(exact.scores.sum(dim=2))
    torch.testing.assert_close(found.brier, exact.brier)
    assert float(found.confidence.sum()) == pytest.approx(float(exact.confidence.sum()), rel=1e-9)


@pytest.mark.parametrize("people", [2, 3, 5, 12, 60, 130])
def test_a_curve_is_of_a_quarter_as_many_numbers_as_people(people: int) -> None:
    """The change of all values that a change of one makes has so few dimensions, and order stays."""
    values = torch.randn(people, generator=torch.Generator().manual_seed(people), dtype=torch.float64)
    whose = torch.arange(people)
    found = curve(values, whose)
    assert bool((found[values.argsort()].diff() >= 0).all())
    moves = torch.stack([curve(values + 1e-7 * one, whose) - found for one in torch.eye(people, dtype=torch.float64)])
    assert int(torch.linalg.matrix_rank(moves / 1e-7, atol=1e-4)) <= max(1, people // 4)


def test_nobodys_score_stays() -> None:
    """Of one person of a class not even the mean leaves: others' scores take its place."""
    values = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert not bool((curve(values, torch.arange(30)) - values).abs().lt(1e-9).any())
    labels = torch.zeros(30, dtype=torch.int64)
    labels[7] = 1
    outputs = torch.stack([torch.zeros(30, dtype=torch.float64), values], dim=1)
    moved = outputs.clone()
    moved[7, 1] += 1e-9
    one, other = (smooth(TWO, given, labels).scores for given in (outputs, moved))
    assert one[7].equal(other[7])


def test_of_few_people_one_number_leaves() -> None:
    draw = torch.Generator().manual_seed(6)
    values = torch.randn(24, generator=draw, dtype=torch.float64)
    assert int(curve(values, torch.arange(24) // 8).unique().numel()) == 1, "eight visits of each of three"
    outputs, labels = torch.randn(11, 1, generator=draw).double(), torch.randn(11, generator=draw).double()
    assert int(smooth(NUMBERS, outputs, labels).levels.unique().numel()) == 1


def test_a_person_with_many_visits_is_no_piece_of_a_curve() -> None:
    """Of 100 people one has 100 samples, all near each other: half of the sorted scores are theirs."""
    values = torch.cat([torch.arange(100.0, dtype=torch.float64), 200 + torch.arange(100.0, dtype=torch.float64) / 1e4])
    whose = torch.cat([torch.arange(100), torch.full((100,), 99)])
    mean = float(values[100:].mean())
    assert float((curve(values, whose)[100:] - mean).abs().min()) > 1e-3


def test_scores_that_many_have_stay() -> None:
    values = torch.tensor([0.5] * 9 + [1.5] * 8, dtype=torch.float64)
    assert curve(values, torch.arange(17)).equal(values)
    assert curve(values, torch.arange(17) // 2).unique().numel() > 2, "of four or five people each"


def test_groups_classes_labels_and_numbers_arrive() -> None:
    """What leaves of every task passes the checks of what arrives, at one sample as at many."""
    draw = torch.Generator().manual_seed(3)
    for people in (1, 2, 9, 70):
        for task, width in ((TWO, 2), (Classification(classes=5), 5), (LABELS, 3), (NUMBERS, 1)):
            outputs = 3 * torch.randn(people, width, generator=draw, dtype=torch.float64)
            labels = torch.randint(5, (people,), generator=draw) % max(2, width)
            if isinstance(task, MultiLabel):
                labels = (torch.rand(people, 3, generator=draw) < 0.2).double()
            elif isinstance(task, Regression):
                labels = torch.randn(people, generator=draw, dtype=torch.float64)
            for groups in (None, torch.arange(people) // 2):
                assert left(task, outputs, labels, groups).samples == people


def test_quantiles_of_differences_are_near() -> None:
    draw, task = torch.Generator().manual_seed(4), NUMBERS
    labels = torch.randn(400, generator=draw, dtype=torch.float64)
    outputs = 0.7 * labels + 0.3 * torch.randn(400, generator=draw, dtype=torch.float64)
    exact = tally(task, outputs[:, None], labels, (outputs - labels).square())
    grids = [parts(task, one).grid.sum(0).cumsum(0) / 400 for one in (exact, left(task, outputs[:, None], labels))]
    assert float((grids[0] - grids[1]).abs().max()) < 0.02


def test_the_interval_has_what_smooth_scores_are_off() -> None:
    """Where an AUC is nearly 1, DeLong's standard error is smaller than that."""
    draw = torch.Generator().manual_seed(5)
    tests = [left(TWO, *site(draw, 20, "normal", 4.0)) for _ in range(8)]
    total = reduce(add, tests)
    interval, found = intervals(TWO, total)["auc"], summarise(TWO, total)
    off = found.auc_error
    assert off is not None
    assert interval.high == 1
    assert (found.values["auc"] or 0) - interval.low >= off / 2 * 1.9


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(24, 12, 7), (24, 12, 5), (60, 40, 40), (30, 30)])
def test_an_auc_is_off_by_more_than_it_says_in_one_test_of_twenty_at_most(sizes: tuple[int, ...]) -> None:
    """Hospitals of a dozen patients, too: of few pairs a site may know of none that is out of order."""
    draw, covered = torch.Generator().manual_seed(8), list[bool]()
    for _ in range(100):
        own = [site(draw, count, "normal", 1.0) for count in sizes]
        scores, labels = (torch.cat(both) for both in zip(*own, strict=True))
        found = summarise(TWO, reduce(add, [left(TWO, *one) for one in own]))
        exact = oracle.roc_auc_score(labels, scores[:, 1])
        assert found.auc_error is not None
        covered.append(abs((found.values["auc"] or 0) - exact) <= found.auc_error + 1e-12)
    assert sum(covered) >= 95


@pytest.mark.slow
def test_the_auc_of_one_test_knows_nothing_of_pairs_with_earlier_ones() -> None:
    """These had been counted: of half the folds the AUC was called exact, and was off by up to 0.03."""
    draw, task = torch.Generator().manual_seed(11), TWO
    covered, errors = list[bool](), list[float]()
    for _ in range(10):
        tests, exact = list[Tally](), list[tuple[Tensor, Tensor]]()
        for people in (14, 9, 20):
            (scores, labels), past = (site(draw, people, "normal", 1.0) for _ in range(2))
            before = smooth(task, *past).scored
            assert before is not None
            own = smooth(task, scores, labels, earlier=[before])
            losses = F.cross_entropy(scores, labels, reduction="none")
            tests.append(own.order + tally(task, scores, labels, losses, smooth=own[:2]))
            exact.append((scores, labels))
        found = summarise(task, of_one_test(task, reduce(add, tests)))
        outputs, labels = (torch.cat(both) for both in zip(*exact, strict=True))
        assert found.auc_error is not None
        errors.append(found.auc_error)
        off = abs((found.values["auc"] or 0) - oracle.roc_auc_score(labels, outputs[:, 1]))
        covered.append(off <= found.auc_error + 1e-12)
    assert min(errors) > 0
    assert all(covered)


@pytest.mark.slow
@pytest.mark.parametrize(("patients", "bias"), sampled([(40, 0.08), (100, 0.05)], every=2))
def test_slopes_of_smooth_scores_are_right_on_average(patients: int, bias: float) -> None:
    """In five tests, each with few of a class: of 40 patients the slope had been half too large."""
    task, draw, away = Classification(classes=2), np.random.default_rng(patients), list[float]()
    for _ in range(15):
        labels = torch.from_numpy(draw.permutation(np.arange(patients) < 0.4 * patients)).long()
        scores = torch.from_numpy(draw.normal(size=patients)) + labels - 0.5
        total, order = empty(task), labels.argsort(stable=True)
        for rows in (order[start::5] for start in range(5)):
            outputs = torch.stack([torch.zeros(len(rows), dtype=torch.float64), scores[rows]], dim=1)
            own = smooth(task, outputs, labels[rows])
            losses = F.cross_entropy(outputs, labels[rows], reduction="none")
            total = total + own.order + tally(task, outputs, labels[rows], losses, smooth=own[:2])
        counts = parts(task, total).scores[1]
        found = recalibrations(bin_edges(float(default_log_odds(task)[1])), counts[:1], counts[1:], [None])[0]
        exact = sm.Logit(labels.numpy(), sm.add_constant(scores.numpy())).fit(disp=0).params[1]
        away.append(found["slope"].value - exact)
    assert abs(np.median(away)) < bias


def test_at_a_risk_of_a_half_smooth_scores_have_scikit_learns_counts_and_say_how_far_off_curves_are() -> None:
    """The threshold was counted from the curves, one or two rows beside the confusion matrix."""
    draw = torch.Generator().manual_seed(0)
    sites = [site(draw, 360, "normal", 1.5) for _ in range(3)]
    total = parts(TWO, reduce(add, (left(TWO, *one) for one in sites)))
    risks = Risks.of(total.scores[1], float(default_log_odds(TWO)[1]))
    called = float(total.confusion[0, 0, 1]), float(total.confusion[0, 1, 1])
    found = risk_summary(risks, float(total.brier[1]), (total.order + total.across)[1], called)
    scores, labels = torch.cat([one[:, 1] for one, _ in sites]), torch.cat([of for _, of in sites])
    (tn, fp), (fn, tp) = oracle.confusion_matrix(labels, scores > 0).tolist()
    (half,) = [row for row in found["thresholds"] if row["name"] == "risk of 50 %"]
    known = {"sensitivity": tp / (tp + fn), "specificity": tn / (tn + fp), "ppv": tp / (tp + fp), "npv": tn / (tn + fn)}
    assert {name: half[name]["value"] for name in known} == pytest.approx(known, abs=1e-12)
    assert half["risk"] == 0.5
    curves = {row["name"]: row for row in thresholds(risks)}["risk of 50 %"]
    for name, off in found["thresholds_off"].items():
        assert off == pytest.approx(abs(curves[name]["value"] - known[name]), abs=1e-12)
        assert off < 0.03
    for row in found["thresholds"]:  # of evenly spread scores: hardly more
        beyond = scores >= np.log(row["risk"] / (1 - row["risk"])) - 1e-12
        assert abs(row["sensitivity"]["value"] - float(beyond[labels == 1].double().mean())) < 0.05, row["name"]
        assert abs(row["specificity"]["value"] - float((~beyond[labels == 0]).double().mean())) < 0.05, row["name"]
