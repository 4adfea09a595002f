"""The guess that knows only the site, by hand."""

from __future__ import annotations

import torch

from rankdad.common.preparation import Fit
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression
from rankdad.local.baseline import guess

CLASSES, LABELS = Classification(classes=3), MultiLabel(name="multi-label", labels=2)
NUMBER = Regression(name="regression")


def test_shares_of_classes_with_one_more_sample_of_the_mixture() -> None:
    labels, nowhere = torch.tensor([0, 0, 1]), Fit()
    expected = torch.tensor([2 + 1 / 3, 1 + 1 / 3, 1 / 3]) / 4
    torch.testing.assert_close(guess(CLASSES, labels, nowhere).softmax(dim=0), expected)
    everywhere = Fit(rows=7, class_counts=torch.tensor([4, 0, 3]))
    expected = torch.tensor([2 + 5 / 10, 1 + 1 / 10, 4 / 10]) / 4
    torch.testing.assert_close(guess(CLASSES, labels, everywhere).softmax(dim=0), expected)
    torch.testing.assert_close(guess(CLASSES, labels[:0], everywhere).softmax(dim=0), torch.tensor([0.5, 0.1, 0.4]))


def test_shares_of_positive_labels() -> None:
    labels, everywhere = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), Fit(rows=9, class_counts=torch.tensor([2, 0]))
    torch.testing.assert_close(guess(LABELS, labels, Fit()).sigmoid(), torch.tensor([2.5, 1.5]) / 3)
    torch.testing.assert_close(guess(LABELS, labels, everywhere).sigmoid(), torch.tensor([2.25, 1.05]) / 3)
    torch.testing.assert_close(guess(LABELS, labels[:0], everywhere).sigmoid(), torch.tensor([0.25, 0.05]))


def test_the_mean_of_numbers_and_without_any_that_of_all_sites() -> None:
    assert guess(NUMBER, torch.tensor([1.0, 2.0, 6.0]), Fit()).tolist() == [3.0]
    assert guess(NUMBER, torch.zeros(0), Fit(target_mean=50.0, target_scale=3.0)).tolist() == [0.0]
