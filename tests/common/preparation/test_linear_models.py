"""Linear models of sites' sums are scikit-learn's on all rows together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from rankdad.common.preparation import linear
from rankdad.common.spec.solver import lines
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec
from tests.common.preparation.reference import sklearn_model


def apart(task: TaskSpec, given: Tensor, model: Any, inputs: Any) -> float:
    """Return how far a linear model's outputs are from scikit-learn's predictions."""
    if isinstance(task, Regression):
        return float(np.abs(given[:, 0].numpy() - model.predict(inputs)).max())
    return float(np.abs(given.softmax(1).numpy() - model.predict_proba(inputs)).max())


@pytest.mark.parametrize("task", [Classification(classes=2), Classification(classes=3), Regression(name="regression")])
def test_sums_of_sites_lead_to_the_model_of_all_rows_together(task: TaskSpec) -> None:
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(150, 5)) * [1, 10, 0.1, 1, 3] + [0, 100, 5, 0, 2020]
    inputs[:, 3] = inputs[:, 3] > 0
    inputs = np.c_[inputs, np.ones(150)]  # a constant column says nothing
    score = StandardScaler().fit_transform(inputs) @ [2.0, 3, -1, 1, 0.5, 0] + draw.normal(size=150) / 2
    labels = score if isinstance(task, Regression) else np.digitize(score, [-1, 1][: task.outputs - 1])
    rows, known = torch.tensor(inputs), torch.tensor(labels)
    totals, shape = list[dict[str, Tensor]](), (lines(task), 7)
    at = torch.zeros(shape, dtype=torch.float64)
    for number in range(1 if isinstance(task, Regression) else linear.ROUNDS):
        curved = number < linear.CURVED
        halves = (slice(0, 40), slice(40, 150))
        parts = [linear.sums(task, rows[half], known[half], at, curved=curved) for half in halves]
        assert not any(linear.contradiction(task, part, count) for part, count in zip(parts, (40, 110), strict=True))
        totals.append({name: parts[0][name] + parts[1][name] for name in parts[0]})
        variance = linear.variances(linear.square(totals[0]["curvature"]), 7)
        at = linear.descend(task, totals, variance).at.reshape(shape)
    given = linear.outputs(task, rows, at)
    assert apart(task, given, sklearn_model(task).fit(inputs, labels), inputs) < 1e-6


@pytest.mark.parametrize("rows", [8, math.inf])
def test_a_loss_that_no_float32_holds_is_checked_as_any_other(rows: float) -> None:
    """A site whose answer would tell of few says a loss so large; of weighted classes no number of rows bounds it."""
    slope = torch.ones(4, dtype=torch.float64)
    sums = {"loss": torch.tensor([1e300], dtype=torch.float64), "slope": slope}
    assert linear.contradiction(Classification(classes=2), sums, rows) is None
    assert linear.contradiction(Classification(classes=2), {**sums, "slope": slope * 1e301}, rows) is not None


def test_labels_have_a_line_each() -> None:
    draw, task = np.random.default_rng(2), MultiLabel(name="multi-label", labels=2)
    inputs = draw.normal(size=(80, 3))
    labels = (inputs[:, :2] + draw.normal(size=(80, 2)) > 0).astype(float)
    weights = linear.fitted(task, torch.tensor(inputs), torch.tensor(labels))
    assert weights is not None
    given = linear.outputs(task, torch.tensor(inputs), weights)
    for label in range(2):
        expected = sklearn_model(task).fit(inputs, labels[:, label]).predict_proba(inputs)[:, 1]
        assert np.abs(given[:, label].sigmoid().numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("task", [Classification(classes=2), Regression(name="regression")])
@pytest.mark.parametrize("steady", [0.0, 1e-15, 7.0])
def test_what_does_not_vary_where_a_model_is_trained_has_no_weight_elsewhere(task: TaskSpec, steady: float) -> None:
    """A level that no training row has is 0 in all of them: 1 in a test row made an output of 1e20."""
    draw = np.random.default_rng(3)
    inputs = np.c_[draw.normal(size=(200, 12)), np.full((200, 3), steady)]
    score = inputs[:, 0] - inputs[:, 1] + draw.normal(size=200)
    labels = score if isinstance(task, Regression) else (score > 0).astype(int)
    weights = linear.fitted(task, torch.tensor(inputs[:150]), torch.tensor(labels[:150]))
    assert weights is not None
    assert float(weights.abs().max()) < 10
    inputs[150:, 12:] = 1.0
    given = linear.outputs(task, torch.tensor(inputs[150:]), weights)
    model = sklearn_model(task).fit(inputs[:150, :12], labels[:150])
    assert apart(task, given, model, inputs[150:, :12]) < 1e-6


def test_classes_that_are_told_apart_without_error_converge() -> None:
    task, inputs = Classification(classes=2), torch.cat([torch.full((20, 3), -1.0), torch.full((20, 3), 1.0)])
    labels = torch.arange(40) // 20
    weights = linear.fitted(task, inputs, labels)
    assert weights is not None
    model = sklearn_model(task).fit(inputs, labels)
    assert weights[0, 1:].sum() == pytest.approx(model[-1].coef_.sum(), rel=1e-6)
