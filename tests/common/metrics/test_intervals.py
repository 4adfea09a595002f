"""Intervals against formulas over all pairs, textbook values, and influence of single samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rankdad.common.metrics.intervals import Interval, intervals, wilson
from rankdad.common.metrics.sums import empty
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression
from tests.common.metrics.samples import TASKS, draw, tallied

QUANTILE = 1.959963984540054
NUMBER = Regression(name="regression")


def influence(score: Tensor, own: Tensor) -> Tensor:
    """How much each sample moves the AUC, from all pairs: their squares sum up to DeLong's variance."""
    wins = (score[own].unsqueeze(1) > score[~own]).double()
    moved = torch.zeros(len(score), dtype=torch.float64)
    for chosen, placement in ((own, wins.mean(dim=1)), (~own, wins.mean(dim=0))):
        count = len(placement)
        moved[chosen] = (placement - wins.mean()) / math.sqrt(count * (count - 1))
    return moved


def half(interval: Interval) -> float:
    return (interval.high - interval.low) / 2


def test_delong_of_two_classes_is_that_over_all_pairs() -> None:
    task = Classification(classes=2)
    outputs, labels = draw(task, 300, 0)
    found = intervals(task, tallied(task, outputs, labels))["auc"]
    variance = influence(outputs[:, 1] - outputs[:, 0], labels == 1).square().sum()
    assert found.method == "DeLong"
    assert half(found) == pytest.approx(QUANTILE * float(variance.sqrt()), rel=2e-3)


@pytest.mark.parametrize("task", TASKS[1:3])
def test_delong_of_several_is_no_narrower_than_their_joint_variance(task: Classification | MultiLabel) -> None:
    outputs, labels = draw(task, 400, 1)
    moved = []
    for index in range(task.outputs):
        rest = outputs[:, [k for k in range(task.outputs) if k != index]].logsumexp(1)
        one = labels.dim() == 1
        score, own = (outputs[:, index] - rest, labels == index) if one else (outputs[:, index], labels[:, index] > 0.5)
        moved.append(influence(score, own))
    joint = QUANTILE * float(torch.stack(moved).mean(dim=0).square().sum().sqrt())
    found = intervals(task, tallied(task, outputs, labels))["auc"]
    assert "conservative" in found.method
    assert joint < half(found) < 3 * joint


def test_shares() -> None:
    task = Classification(classes=2)
    labels = torch.tensor([0] * 60 + [1] * 40)
    guess = torch.tensor([0] * 54 + [1] * 6 + [1] * 30 + [0] * 10)
    found = intervals(task, tallied(task, torch.stack([1.0 - guess, guess * 1.0], dim=1), labels))
    # Newcombe, Statistics in Medicine 17 (1998) 857, formula 3, for 84 of 100.
    root = QUANTILE * math.sqrt(QUANTILE**2 + 4 * 84 * 0.16)
    ends = [(2 * 84 + QUANTILE**2 + sign * root) / (2 * (100 + QUANTILE**2)) for sign in (-1, 1)]
    assert (found["accuracy"].low, found["accuracy"].high) == pytest.approx(ends)
    deviation = math.sqrt(0.9 * 0.1 / 60 + 0.75 * 0.25 / 40) / 2
    assert half(found["balanced_accuracy"]) == pytest.approx(QUANTILE * deviation)


def test_numbers() -> None:
    outputs, labels = draw(NUMBER, 103, 2)
    found = intervals(NUMBER, tallied(NUMBER, outputs, labels, centre=3.0))
    errors = (outputs[:, 0] - labels).abs()
    assert half(found["mae"]) == pytest.approx(QUANTILE * float(errors.std()) / math.sqrt(103))
    r = float(torch.corrcoef(torch.stack([outputs[:, 0], labels]))[0, 1])
    ends = [math.tanh(math.atanh(r) + sign * QUANTILE / 10) for sign in (-1, 1)]
    assert (found["pearson_r"].low, found["pearson_r"].high) == pytest.approx(ends)


def test_what_has_no_width_has_no_interval() -> None:
    task = Classification(classes=2)
    labels = torch.arange(40) % 2
    outputs = torch.stack([-labels, labels], dim=1).double()
    assert set(intervals(task, tallied(task, outputs, labels))) == {"accuracy"}
    assert set(intervals(task, tallied(task, outputs[1:3], labels[1:3]))) == {"accuracy"}
    numbers = labels.double()
    assert intervals(NUMBER, tallied(NUMBER, numbers.unsqueeze(1), numbers)) == {}
    for one in TASKS:
        assert intervals(one, empty(one)) == {}


def test_a_share_of_an_effective_number_below_one_lies_in_its_interval() -> None:
    low, high = wilson(torch.tensor([0.4]), torch.tensor([0.4]))
    assert float(low) < 1.0 == float(high)
