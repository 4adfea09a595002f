"""Counts of enough people: no bin, and no difference of counts along one order, tells of fewer."""

from __future__ import annotations

import pytest
import torch

from rankdad.common.metrics import pack_tally, parts, tally, unpack_tally, without_curves
from rankdad.common.metrics.auc import BINS
from rankdad.common.metrics.merging import merged, normal_scores
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec
from tests.common.metrics.samples import TASKS, draw, losses

FEWEST = 8


@pytest.mark.parametrize("seed", range(20))
def test_every_bin_and_what_a_threshold_leaves_of_it_is_of_enough_people(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(8, 90, (1,), generator=generator))
    scores = torch.randn(count, generator=generator)
    places, above = ((scores + 4) * 100).long(), scores > torch.randn(1, generator=generator)
    visits = torch.randint(0, count, (count,), generator=generator)
    for groups in (None, visits):
        of = merged(places, FEWEST, groups, above)
        whose = torch.arange(count) if groups is None else groups
        people = [len(whose[rows].unique()) for rows in (above, ~above)]
        for one in of.unique():
            assert len(whose[of == one].unique()) >= min(FEWEST, len(whose.unique()))
            sides = [whose[(of == one) & side].unique() for side in (above, ~above)]
            for own, all_of_it in zip(sides, people, strict=True):  # as much as the threshold tells, or enough
                assert len(own) in (0, all_of_it) or len(own) >= FEWEST


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("curves", [False, True])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_counts_of_few_people_travel_as_others_do(task: TaskSpec, curves: bool, clustered: bool) -> None:
    for count in (0, 1, 9, 60):
        outputs, labels = draw(task, count, count)
        groups = torch.arange(count) // 2 if clustered else None
        loss = losses(task, outputs, labels)
        sent = tally(task, outputs, labels, loss, groups=groups, fewest=FEWEST, people=groups, curves=curves)
        assert unpack_tally(task, pack_tally(sent), clustered).samples == count
        part, whole = parts(task, sent), parts(task, tally(task, outputs, labels, loss, groups=groups))
        assert part.loss == whole.loss
        assert torch.equal(part.confusion, whole.confusion)
        if isinstance(task, Regression):
            assert part.moments == whole.moments
        if curves:
            least = min(count, FEWEST)
            held = [part.grid] if isinstance(task, Regression) else [*part.scores.sum(1), *part.calibration.sum(2)]
            assert all(int(own[own > 0].min()) >= least for own in held if count)


def test_without_curves_a_class_tells_its_mean_and_spread_and_one_of_few_nothing() -> None:
    scores, positive = torch.randn(40, generator=torch.Generator().manual_seed(3)), torch.arange(40) < 20
    found = normal_scores(scores, positive, FEWEST)
    assert found[positive].mean() == pytest.approx(float(scores[positive].mean()), abs=0.02)
    assert found[positive].std() == pytest.approx(float(scores[positive].std()), rel=0.1)
    swapped = scores.clone()
    swapped[:20] = scores[:20].flip(0)
    assert torch.equal(normal_scores(swapped, positive, FEWEST), found)
    nudged = scores.clone()
    nudged[0] += 1e-4
    assert torch.equal(normal_scores(nudged, positive, FEWEST), found), "few digits"
    few = torch.arange(40) < FEWEST - 1
    assert normal_scores(scores, few, FEWEST)[few].mean() == pytest.approx(float(scores.mean()), abs=0.02)


def test_between_epochs_nothing_but_the_loss_is_a_sum() -> None:
    task = Classification(classes=2)
    outputs, labels = draw(task, 40, 1)
    one, other = (
        without_curves(task, tally(task, own, labels, torch.ones(40), fewest=FEWEST, curves=False))
        for own in (outputs, outputs + torch.tensor([0.0, 1e-4]))
    )
    assert torch.equal(one.sums, other.sums)
    assert torch.equal(one.counts, other.counts)


def test_merged_bins_cost_an_auc_little() -> None:
    task = Classification(classes=2)
    outputs, labels = draw(task, 100, 5)
    loss, areas = losses(task, outputs, labels), list[float]()
    for fewest in (1, FEWEST):
        negative, positive = parts(task, tally(task, outputs, labels, loss, fewest=fewest)).scores[1].double()
        assert len(negative) == BINS
        below = negative.cumsum(0) - negative / 2
        areas.append(float((positive * below).sum() / negative.sum() / positive.sum()))
    assert 0 < abs(areas[0] - areas[1]) < 0.02
