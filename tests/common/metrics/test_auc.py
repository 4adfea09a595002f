"""The AUC from histograms against scikit-learn's on the scores that no site shows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.metrics.summary import Metrics, summarise
from rankdad.common.spec.tasks import Classification, MultiLabel
from tests.common.metrics.samples import TASKS, draw, pooled, tallied
from tests.conftest import examples


def log_odds(logits: Tensor) -> Tensor:
    """Each class against the rest, by a sum for every class."""
    classes = range(logits.shape[1])
    return torch.stack([logits[:, c] - logits[:, [k for k in classes if k != c]].logsumexp(1) for c in classes], dim=1)


def miss(found: Metrics, exact: float) -> float:
    assert found.values["auc"] is not None
    assert found.auc_error is not None
    assert abs(found.values["auc"] - exact) <= found.auc_error + 1e-12
    return abs(found.values["auc"] - exact)


@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 9999),
    classes=st.integers(2, 6),
    spread=st.sampled_from([1e-3, 0.1, 1.0, 10.0, 300.0]),
    shift=st.sampled_from([0.0, 1.0, 5.0]),
)
def test_auc_is_within_its_printed_bound(seed: int, classes: int, spread: float, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (200,), generator=generator)
    noise = torch.randn(200, classes, generator=generator, dtype=torch.float64)
    logits = spread * (noise + shift * F.one_hot(labels, classes))
    task = Classification(classes=classes)
    found = summarise(task, pooled(task, logits, labels, [90, 0, 60, 50]))
    odds = log_odds(logits)
    exact = [roc_auc_score(labels == c, odds[:, c]) for c in range(classes) if (labels == c).any()]
    miss(found, sum(exact) / len(exact))
    assert found.absent == classes - len(exact)
    assert found.auc_error is not None
    assert found.auc_error < 0.02 or not 0.1 <= spread <= 10


def test_a_trained_networks_scores_are_off_by_millionths() -> None:
    """Well separated classes, as cross-entropy leaves them: what equal steps of the probability miss."""
    task = Classification(classes=10)
    outputs, labels = draw(task, 20_000, 0, scale=3.0)
    outputs += 8 * F.one_hot(labels, 10)
    odds = log_odds(outputs)
    exact = sum(roc_auc_score(labels == c, odds[:, c]) for c in range(10)) / 10
    assert miss(summarise(task, tallied(task, outputs, labels)), exact) < 2e-6


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("task", TASKS[:3])
def test_at_any_stage_of_training_auc_is_off_by_less_than_a_thousandth(
    task: Classification | MultiLabel, scale: float
) -> None:
    outputs, labels = draw(task, 3000, 1, scale)
    scores, truth = (log_odds(outputs), F.one_hot(labels)) if labels.dim() == 1 else (outputs, labels)
    exact = roc_auc_score(truth, scores, average="macro")
    assert miss(summarise(task, pooled(task, outputs, labels, [1000, 1, 1999])), exact) < 1e-3


def test_scores_around_a_rare_labels_frequency_need_their_bins_there() -> None:
    """A barely trained network says little more than how rare the label is."""
    task = MultiLabel(name="multi-label", labels=1)
    outputs, labels = draw(task, 4000, 2, scale=0.03)
    base = torch.tensor([-2.2])
    outputs += base
    exact = roc_auc_score(labels[:, 0], outputs[:, 0])
    assert miss(summarise(task, tallied(task, outputs, labels, base=base)), exact) < 1e-3
    assert miss(summarise(task, tallied(task, outputs, labels)), exact) > 1e-3


def test_a_class_that_a_site_lacks_has_no_auc_and_is_counted() -> None:
    task = Classification(classes=4)
    outputs, labels = draw(task, 300, 3)
    chosen = labels != 2
    found = summarise(task, tallied(task, outputs[chosen], labels[chosen]))
    odds = log_odds(outputs[chosen])
    exact = sum(roc_auc_score(labels[chosen] == c, odds[:, c]) for c in (0, 1, 3)) / 3
    assert miss(found, exact) < 1e-3
    assert found.absent == 1
    one = summarise(task, tallied(task, outputs[labels == 0], labels[labels == 0]))
    assert (one.values["auc"], one.auc_error, one.absent) == (None, None, 4)
    assert one.values["accuracy"] is not None
