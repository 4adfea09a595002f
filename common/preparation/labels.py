"""Statistics of all sites' labels: counts of classes, or mean and scale of a number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.spec.tasks import Classification, MultiLabel, TaskSpec


def counts_of(task: TaskSpec, labels: Tensor) -> Tensor:
    """Return the number of samples of every class, or with every label."""
    assert isinstance(task, Classification | MultiLabel)
    if isinstance(task, MultiLabel):
        return labels.to(torch.float64).sum(0)
    return torch.bincount(labels, minlength=task.classes).to(torch.float64)


def one_sided(counts: Sequence[float], site: str) -> list[str]:
    """Return a question to a site at which an outcome never or always occurs, if any.

    Args:
        counts: of rows without and with the outcome; other lengths give no question.
        site: its name.
    """
    if len(counts) != 2 or all(counts) or not any(counts):
        return []
    often = "always" if counts[1] else "never"
    return [f"the outcome {often} occurs in {site}'s table: is it coded as elsewhere?"]


def balanced(task: Classification | MultiLabel, rows: float, counts: Tensor) -> Tensor:
    """Return the weights in the loss that balance classes, or each label's positives with its negatives.

    Classes: rows / (classes · count), so that every class has the same weight; 0 without samples. A label's positives:
    negatives / positives; 1 if all or no samples have it.
    """
    if isinstance(task, Classification):
        return torch.where(counts > 0, rows / (task.classes * counts.clamp(min=1)), 0.0)
    return torch.where((counts > 0) & (counts < rows), (rows - counts) / counts.clamp(min=1), 1.0)
