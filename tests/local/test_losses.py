"""Losses against scikit-learn and by hand; weights of balanced classes are 1 on average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, mean_absolute_error, mean_squared_error
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from rankdad.common.preparation import Preparing, Rows
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec
from rankdad.local.losses import losses, mean_loss
from tests.conftest import run_spec

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 2])
LOGITS = torch.randn(7, 3, generator=GENERATOR, dtype=torch.float64)
SEVERAL = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
OUTPUTS = torch.randn(4, 2, generator=GENERATOR, dtype=torch.float64)


def test_classes_without_weights_are_plain_cross_entropy_to_the_last_bit() -> None:
    task, logits = Classification(classes=3), LOGITS.float()
    assert torch.equal(mean_loss(task, logits, LABELS), F.cross_entropy(logits, LABELS))
    expected = log_loss(LABELS.numpy(), LOGITS.softmax(dim=1).numpy())
    assert float(losses(task, LOGITS, LABELS).mean()) == pytest.approx(expected)


def test_balanced_classes_count_alike_over_all_sites() -> None:
    spec = run_spec(task={"name": "classification", "classes": 3, "class_weights": "balanced"})
    preparing = Preparing(spec)
    sites = [Rows(torch.zeros(len(own), 6), own) for own in LABELS.split([5, 2])]
    total = sum(preparing.contribution("labels", {}, rows) for rows in sites)
    assert isinstance(total, torch.Tensor)
    weights = preparing.fit({"labels": total}).class_weights
    assert weights is not None
    known = compute_class_weight("balanced", classes=np.arange(3), y=LABELS.numpy())
    torch.testing.assert_close(weights, torch.from_numpy(known))
    expected = log_loss(LABELS.numpy(), LOGITS.softmax(dim=1).numpy(), sample_weight=known[LABELS.numpy()])
    assert float(mean_loss(spec.task, LOGITS, LABELS, weights)) == pytest.approx(expected)
    assert losses(spec.task, LOGITS.float(), LABELS, weights).dtype == torch.float32


def test_labels_are_averaged_and_positives_weighted() -> None:
    task = MultiLabel(name="multi-label", labels=2)
    expected = [log_loss(SEVERAL[:, i].numpy(), OUTPUTS[:, i].sigmoid().numpy()) for i in (0, 1)]
    assert float(mean_loss(task, OUTPUTS, SEVERAL)) == pytest.approx(sum(expected) / 2)
    weights = torch.tensor([1.0, 3.0])
    chances = OUTPUTS.sigmoid()
    by_hand = -(weights * SEVERAL * chances.log() + (1 - SEVERAL) * (1 - chances).log()).mean(dim=1)
    torch.testing.assert_close(losses(task, OUTPUTS, SEVERAL, weights), by_hand)


def test_numbers_have_squared_absolute_and_huber_losses() -> None:
    outputs, labels = torch.tensor([[0.0], [1.0], [5.0]], dtype=torch.float64), torch.tensor([0.5, 1.0, 1.0])
    found = {name: Regression(name="regression", loss=name, delta=2.0) for name in ("mse", "mae", "huber")}
    expected = mean_squared_error(labels, outputs[:, 0])
    assert float(mean_loss(found["mse"], outputs, labels)) == pytest.approx(expected)
    expected = mean_absolute_error(labels, outputs[:, 0])
    assert float(mean_loss(found["mae"], outputs, labels)) == pytest.approx(expected)
    assert losses(found["huber"], outputs, labels).tolist() == [0.125, 0.0, 2.0 * (4.0 - 1.0)]


@pytest.mark.parametrize(
    "task", [Classification(classes=3), MultiLabel(name="multi-label", labels=3), Regression(name="regression")]
)
def test_parts_of_a_batch_add_up(task: TaskSpec) -> None:
    outputs = LOGITS[:, : task.outputs]
    labels = F.one_hot(LABELS, 3).double() if isinstance(task, MultiLabel) else LABELS
    parts = zip(outputs.split([2, 5]), labels.split([2, 5]), strict=True)
    total = sum(float(losses(task, *part).sum()) for part in parts)
    assert total / 7 == pytest.approx(float(mean_loss(task, outputs, labels)))
