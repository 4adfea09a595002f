"""Intervals of samples in groups against a bootstrap of whole groups, on pooled rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rankdad.common.metrics.intervals import intervals
from rankdad.common.metrics.sums import Tally, parts, same_labels, tally
from rankdad.common.spec.tasks import Classification, Metric, MultiLabel, Regression, TaskSpec
from tests.common.metrics.samples import TASKS, draw, losses, tallied

Array = NDArray[Any]
BINARY, NUMBER = Classification(classes=2), Regression(name="regression")
DRAWS = 2000


def patients(count: int, seed: int) -> tuple[np.random.Generator, Array]:
    """Which patient each row is of: 1 to 6 rows each."""
    rng = np.random.default_rng(seed)
    return rng, np.repeat(np.arange(count), rng.integers(1, 7, count))


def resampled(rng: np.random.Generator, of: Array) -> Array:
    """How often each row stands in a draw of as many patients, float64 [draws, rows]."""
    count = of.max() + 1
    return rng.multinomial(count, np.full(count, 1 / count), DRAWS)[:, of].astype(float)


def width(values: Array) -> float:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(high - low)


def summed(task: TaskSpec, outputs: Array, labels: Array, of: Array, sites: int = 3) -> Tally:
    """The sum of the tallies of sites that have every third patient each."""
    x, y, names = torch.as_tensor(outputs), torch.as_tensor(labels), torch.as_tensor(of)
    found = []
    for site in range(sites):
        own = names % sites == site
        loss = losses(task, x[own], y[own])
        found.append(tally(task, x[own], y[own], loss, centre=49.0, scale=3.0, groups=names[own]))
    return reduce(add, found)


def aucs(score: Array, label: Array, weight: Array) -> Array:
    order = np.argsort(score)
    positive, negative = weight[:, order] * label[order], weight[:, order] * (1 - label[order])
    below = np.cumsum(negative, axis=1) - negative / 2
    return np.asarray((positive * below).sum(1) / positive.sum(1) / negative.sum(1))


@pytest.mark.parametrize(
    ("of_patient", "alike", "shift", "spread", "seed"),
    [(True, 0.8, 0.0, 1.0, 0), (False, 0.6, 0.0, 1.0, 1), (True, 0.8, 3.0, 1.0, 2), (True, 0.8, 0.0, 0.02, 3),
     (False, 0.0, 0.0, 8.0, 4)],
)  # fmt: skip
def test_intervals_of_classes_are_those_of_a_bootstrap_of_patients(
    of_patient: bool, alike: float, shift: float, spread: float, seed: int
) -> None:
    """Labels of a patient or of a row; scores alike or not, around the base or far from it, close together or not."""
    rng, of = patients(300, seed)
    rows, own = len(of), rng.random(300)
    label = (own[of] < 0.35 if of_patient else rng.random(rows) < 0.2 + 0.3 * (own[of] < 0.5)).astype(int)
    noise = np.sqrt(alike) * rng.normal(size=300)[of] + np.sqrt(1 - alike) * rng.normal(size=rows)
    score = shift + spread * (label + noise)
    found = intervals(BINARY, summed(BINARY, np.stack([0 * score, score], 1), label, of))
    weight = resampled(rng, of)
    hits = (weight * ((score > 0) == label)).sum(1) / weight.sum(1)
    drawn: dict[Metric, Array] = {"auc": aucs(score, label, weight), "accuracy": hits}
    for name, draws in drawn.items():
        assert found[name].high - found[name].low == pytest.approx(width(draws), rel=0.1), name
        assert "groups" in found[name].method


def test_intervals_of_numbers_are_those_of_a_bootstrap_of_patients() -> None:
    rng, of = patients(300, 5)
    rows = len(of)
    label = 50 + 3 * rng.normal(size=300)[of] + rng.normal(size=rows)
    output = 50 + 0.7 * (label - 50) + 2 * rng.normal(size=300)[of] + rng.normal(size=rows)
    found = intervals(NUMBER, summed(NUMBER, output[:, None], label, of))
    weight = resampled(rng, of)
    weight /= weight.sum(1, keepdims=True)
    mean: Callable[[Array], Array] = lambda values: np.asarray(weight @ values)  # noqa: E731
    spread = [mean(one**2) - mean(one) ** 2 for one in (label, output)]
    draws: dict[Metric, Array] = {
        "mae": mean(abs(output - label)),
        "pearson_r": (mean(label * output) - mean(label) * mean(output)) / np.sqrt(spread[0] * spread[1]),
        "r2": 1 - mean((output - label) ** 2) / spread[0],
    }
    for name, values in draws.items():
        assert found[name].high - found[name].low == pytest.approx(width(values), rel=0.1), name
        assert found[name].low < values.mean() < found[name].high


@pytest.mark.parametrize("task", TASKS[:3])
def test_groups_of_one_have_the_intervals_of_samples(task: Classification | MultiLabel) -> None:
    outputs, labels = draw(task, 300, 6)
    loss = losses(task, outputs, labels)
    alone = intervals(task, tally(task, outputs, labels, loss))
    grouped = intervals(task, tally(task, outputs, labels, loss, groups=torch.arange(300)))
    assert set(alone) == set(grouped)
    for name, one in alone.items():
        if name != "accuracy" or task.name != "multi-label":  # which knows more of labels than one sample's mean
            assert (grouped[name].low, grouped[name].high) == pytest.approx((one.low, one.high), rel=1e-6), name


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_copies_of_samples_leave_intervals_as_they_are(task: TaskSpec) -> None:
    outputs, labels = draw(task, 400, 7)
    loss = losses(task, outputs, labels)
    once = intervals(task, tally(task, outputs, labels, loss, groups=torch.arange(400)))
    four = [one.repeat_interleave(4, dim=0) for one in (outputs, labels, loss, torch.arange(400))]
    copied = intervals(task, tally(task, four[0], four[1], four[2], groups=four[3]))
    naive = intervals(task, tally(task, four[0], four[1], four[2]))
    for name, one in once.items():
        assert copied[name].high - copied[name].low == pytest.approx(one.high - one.low, rel=0.01), name
        if name in naive:
            assert naive[name].high - naive[name].low < 0.6 * (one.high - one.low), name


def test_without_groups_a_tally_is_as_it_was() -> None:
    for task in TASKS:
        assert parts(task, tally(task, *draw(task, 9, 0), torch.zeros(9))).clusters is None


def test_labels_are_equal_in_any_order_of_rows() -> None:
    """A tally over groups adds rows in the order of their groups, that of a guess in the table's."""
    for scale in (1e-9, 1.0, 1e9):
        outputs, labels = draw(NUMBER, 301, 5, scale)
        order, groups = torch.randperm(301, generator=torch.Generator().manual_seed(1)), torch.arange(301) // 3
        alike = tallied(NUMBER, outputs[order], labels[order], groups=groups)
        assert same_labels(NUMBER, alike, tallied(NUMBER, 0 * outputs, labels))
        labels[7] *= 1 + 1e-4
        assert not same_labels(NUMBER, alike, tallied(NUMBER, outputs, labels))
