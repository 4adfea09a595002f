"""The baseline of a site: a constant guess from its own training labels."""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.preparation import Fit
from rankdad.common.preparation.inputs import predicted
from rankdad.common.spec.tasks import Classification, MultiLabel, TaskSpec
from rankdad.common.spec.text import BYTES


def guess(task: TaskSpec, labels: Tensor, fit: Fit) -> Tensor:
    """Return one output for all samples of a site, float32 [outputs].

    Shares of classes or positive labels become logits, smoothed by one sample of all sites' mixture. Numbers become
    their mean. A site without training samples guesses as all sites together would.

    Args:
        task: what is predicted.
        labels: the site's training labels; numbers standardised by all sites' mean and deviation.
        fit: statistics of all sites' training rows.
    """
    if isinstance(task, Classification):
        counts = torch.bincount(labels, minlength=task.classes).double()
        return torch.log(counts + _mixture(fit.class_counts, task.classes)).float()
    if isinstance(task, MultiLabel):
        everywhere = fit.class_counts if fit.class_counts is not None else torch.full((task.labels,), fit.rows / 2)
        share = (everywhere + 0.5) / (fit.rows + 1)
        return torch.logit((labels.double().sum(dim=0) + share) / (len(labels) + 1)).float()
    return labels.double().mean().reshape(1).float() if len(labels) else torch.zeros(1)


def token_guesses(train: Tensor, test: Tensor) -> Tensor:
    """Return `text_losses` of a guess by each token's frequency in a site's training texts, float64 [n, 2].

    Args:
        train: tokens, int64 [m, length].
        test: tokens, int64 [n, length].
    """
    known, counted = train[:, 1:][predicted(train)], predicted(test)
    seen = torch.bincount(known, minlength=max(BYTES, int(test.max()) + 1 if len(test) else 0)).double() + 1
    lost = -torch.log(seen / seen.sum())[test[:, 1:]]
    return torch.stack([(lost * counted).sum(1), counted.sum(1).double()], dim=1)


def _mixture(counts: Tensor | None, classes: int) -> Tensor:
    counts = torch.zeros(classes, dtype=torch.float64) if counts is None else counts
    return (counts + 1) / (counts.sum() + classes)
