"""Pooled metrics against scikit-learn on the scores that no site shows."""

from __future__ import annotations

from functools import reduce
from operator import add

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from common.metrics import summarise, tally


def log_odds(logits: Tensor) -> Tensor:
    """Each class against the rest, by a sum for every class."""
    classes = range(logits.shape[1])
    return torch.stack([logits[:, c] - logits[:, [k for k in classes if k != c]].logsumexp(1) for c in classes], dim=1)


@settings(max_examples=40, deadline=None)
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
    sites = zip(logits.split([90, 0, 60, 50]), labels.split([90, 0, 60, 50]), strict=True)
    found = summarise(reduce(add, (tally(x, y) for x, y in sites)))
    odds = log_odds(logits)
    exact = [roc_auc_score(labels == c, odds[:, c]) for c in range(classes) if (labels == c).any()]
    assert found.auc is not None
    assert found.auc_error is not None
    assert abs(found.auc - sum(exact) / len(exact)) <= found.auc_error + 1e-12
    assert found.auc_error < 0.02 or not 0.1 <= spread <= 10
    assert found.loss == pytest.approx(float(F.cross_entropy(logits, labels)))
    assert found.accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert found.samples == 200


def test_a_trained_networks_scores_are_off_by_millionths() -> None:
    """Well separated classes, as cross-entropy leaves them: what equal steps of the probability miss."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (20_000,), generator=generator)
    logits = torch.randn(20_000, 10, generator=generator, dtype=torch.float64) * 3 + 10 * F.one_hot(labels, 10)
    found = summarise(tally(logits, labels))
    odds = log_odds(logits)
    exact = sum(roc_auc_score(labels == c, odds[:, c]) for c in range(10)) / 10
    assert found.auc == pytest.approx(exact, abs=2e-6)


def test_nothing_to_measure_is_none_not_an_error() -> None:
    empty = summarise(tally(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)))
    assert (empty.samples, empty.loss, empty.auc) == (0, None, None)
    one_class = summarise(tally(torch.randn(4, 2), torch.zeros(4, dtype=torch.int64)))
    assert one_class.auc is None
    assert one_class.accuracy is not None
