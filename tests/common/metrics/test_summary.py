"""Figures from sums against scikit-learn's on the samples themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle
from torch import Tensor

from rankdad.common.metrics.summary import bound, calibration, confusion, summarise
from rankdad.common.metrics.sums import Tally, empty, tally
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec
from tests.common.metrics.samples import TASKS, draw, losses, pooled, tallied
from tests.conftest import examples

SEVERAL = MultiLabel(name="multi-label", labels=3)
NUMBER = Regression(name="regression")


def calibration_error(confidence: Tensor, hit: Tensor) -> float:
    """Bin by bin, as its definition says."""
    error = 0.0
    for at in range(15):
        inside = (confidence >= at / 15) & ((confidence < (at + 1) / 15) | (at == 14))
        if inside.any():
            error += float(inside.double().mean() * (confidence[inside].mean() - hit[inside].double().mean()).abs())
    return error


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 9999), classes=st.integers(2, 6), samples=st.integers(2, 200))
def test_classes(seed: int, classes: int, samples: int) -> None:
    task = Classification(classes=classes)
    outputs, labels = draw(task, samples, seed)
    total = tallied(task, outputs, labels)
    found, guess = summarise(task, total).values, outputs.argmax(dim=1)
    confidence, hit = outputs.softmax(dim=1).max(dim=1).values, guess == labels
    if classes == 2:  # the risk that is predicted, not the confidence
        confidence, hit = outputs.softmax(dim=1)[:, 1], labels == 1
    present = labels.unique()
    assert list(found) == list(task.metrics)
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(labels, guess))
    recalls = oracle.recall_score(labels, guess, labels=present, average="macro")
    assert found["balanced_accuracy"] == (pytest.approx(recalls) if len(present) > 1 else None)
    seen = torch.cat([labels, guess]).unique()
    if classes > 2:
        assert found["f1"] == pytest.approx(oracle.f1_score(labels, guess, labels=seen, average="macro"))
    elif 1 in seen:
        assert found["f1"] == pytest.approx(oracle.f1_score(labels, guess))
    else:
        assert found["f1"] is None
    assert found["loss"] == pytest.approx(float(losses(task, outputs, labels).mean()))
    assert found["calibration_error"] == pytest.approx(calibration_error(confidence, hit))
    assert confusion(task, total).tolist() == oracle.confusion_matrix(labels, guess, labels=range(classes)).tolist()


def test_labels() -> None:
    outputs, labels = draw(SEVERAL, 400, 5)
    total = tallied(SEVERAL, outputs, labels)
    found, guess, probabilities = summarise(SEVERAL, total).values, outputs > 0, outputs.sigmoid()
    truth = labels > 0.5
    assert found["accuracy"] == pytest.approx(float((guess == truth).double().mean()))
    recalls = [oracle.balanced_accuracy_score(truth[:, at], guess[:, at]) for at in range(3)]
    assert found["balanced_accuracy"] == pytest.approx(sum(recalls) / 3)
    assert found["f1"] == pytest.approx(oracle.f1_score(truth, guess, average="macro"))
    errors = [calibration_error(probabilities[:, at], truth[:, at]) for at in range(3)]
    assert found["calibration_error"] == pytest.approx(sum(errors) / 3)
    assert confusion(SEVERAL, total).tolist() == oracle.multilabel_confusion_matrix(truth, guess).tolist()
    curve = calibration(SEVERAL, total)
    inside = (probabilities * 15).long() == 9
    assert curve[9] == pytest.approx(
        (float(probabilities[inside].mean()), float(truth[inside].double().mean()), int(inside.sum()))
    )
    assert sum(count for *_, count in curve) == 1200


@pytest.mark.parametrize(("level", "centre"), [(0.0, 0.0), (1e6, 1e6), (1e6, 1e6 - 30.0), (-7e-9, 0.0)])
def test_numbers_far_from_zero_lose_no_digits(level: float, centre: float) -> None:
    outputs, labels = (one + level for one in draw(NUMBER, 300, 6))
    found = summarise(NUMBER, pooled(NUMBER, outputs, labels, [100, 1, 0, 199], centre=centre)).values
    assert found["mae"] == pytest.approx(oracle.mean_absolute_error(labels, outputs[:, 0]))
    assert found["r2"] == pytest.approx(oracle.r2_score(labels, outputs[:, 0]), rel=1e-8)
    assert found["pearson_r"] == pytest.approx(np.corrcoef(labels, outputs[:, 0])[0, 1], rel=1e-8)
    assert found["loss"] == pytest.approx(float((outputs[:, 0] - labels).square().mean()))


def test_labels_or_outputs_that_are_all_the_same_have_no_correlation() -> None:
    outputs, labels = draw(NUMBER, 50, 7)
    same = torch.full((50,), 0.1, dtype=torch.float64)
    values = summarise(NUMBER, tallied(NUMBER, outputs, same)).values
    assert (values["r2"], values["pearson_r"]) == (None, None)
    values = summarise(NUMBER, tallied(NUMBER, same.unsqueeze(1), labels)).values
    assert values["pearson_r"] is None
    assert values["r2"] == pytest.approx(oracle.r2_score(labels, same))


@pytest.mark.parametrize("task", TASKS)
def test_sites_add_up_to_their_pooled_samples(task: TaskSpec) -> None:
    outputs, labels = draw(task, 500, 8)
    whole, parts = tallied(task, outputs, labels), pooled(task, outputs, labels, [200, 0, 1, 299])
    assert torch.equal(whole.counts, parts.counts)
    torch.testing.assert_close(whole.sums, parts.sums)
    assert parts.samples == 500
    assert parts.loss == pytest.approx(float(losses(task, outputs, labels).sum()))


@pytest.mark.parametrize("task", TASKS)
def test_nothing_to_measure_is_none_not_an_error(task: TaskSpec) -> None:
    outputs, labels = draw(task, 0, 0)
    for total in (empty(task), tallied(task, outputs, labels)):
        found = summarise(task, total)
        assert found.samples == 0
        assert found.values == dict.fromkeys(task.metrics)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_show_in_the_sums(task: TaskSpec, value: float) -> None:
    outputs, labels = draw(task, 5, 9)
    outputs[3] = value
    total: Tally = tally(task, outputs, labels, outputs[:, 0])
    assert total.samples == 5
    assert not math.isfinite(total.loss)


@pytest.mark.parametrize(
    ("error", "said"),
    [(0.0101, "0.011"), (0.02, "0.02"), (0.0099999, "0.010"), (1e-5, "0.00001"), (3.21e-9, "3.3e-9"), (123.0, "130")],
)
def test_a_bound_is_said_in_two_digits_and_never_below_itself(error: float, said: str) -> None:
    assert bound(error) == said
    assert float(said) >= error
