"""What is known of all sites' labels together: how many there are of each class, or mean and scale of a number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.spec.tasks import Classification, MultiLabel


def counts_of(task: Classification | MultiLabel, labels: Tensor) -> Tensor:
    """Return how many samples there are of every class, or how many have every label."""
    if isinstance(task, MultiLabel):
        return labels.to(torch.float64).sum(0)
    return torch.bincount(labels, minlength=task.classes).to(torch.float64)


def one_sided(counts: Sequence[float], site: str) -> list[str]:
    """Return what to ask a site, by name, at which an outcome never or always occurs.

    Args:
        counts: of rows without the outcome, and with it; of more classes nothing is asked.
        site: its name.
    """
    if len(counts) != 2 or all(counts) or not any(counts):
        return []
    often = "always" if counts[1] else "never"
    return [f"the outcome {often} occurs in {site}'s table: is it coded as elsewhere?"]


def balanced(task: Classification | MultiLabel, rows: float, counts: Tensor) -> Tensor:
    """Return the weights in the loss that balance classes, or each label's positives with its negatives.

    Of a class: rows / (classes · count), so that every class weighs the same; 0 if there is no sample of it.
    Of a label's positives: negatives / positives; 1 if all or no samples have it: nothing is to be balanced.
    """
    if isinstance(task, Classification):
        return torch.where(counts > 0, rows / (task.classes * counts.clamp(min=1)), 0.0)
    return torch.where((counts > 0) & (counts < rows), (rows - counts) / counts.clamp(min=1), 1.0)
