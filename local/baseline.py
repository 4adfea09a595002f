"""The baseline that knows only the site: what a guess from the site's own training labels would score."""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.preparation import Fit
from rankdad.common.spec.tasks import Classification, MultiLabel, TaskSpec


def guess(task: TaskSpec, labels: Tensor, fit: Fit) -> Tensor:
    """Return one output for all samples of a site, float32 [outputs].

    Shares of classes or positive labels become logits; they are those of the site with one more sample of all sites'
    mixture, so that nothing is impossible. Numbers become their mean; a site without training samples guesses as all
    sites together would.

    Args:
        task: what is predicted.
        labels: the site's training labels; numbers in standard deviations from all sites' mean.
        fit: what all sites' training rows say.
    """
    if isinstance(task, Classification):
        counts = torch.bincount(labels, minlength=task.classes).double()
        return torch.log(counts + _mixture(fit.class_counts, task.classes)).float()
    if isinstance(task, MultiLabel):
        everywhere = fit.class_counts if fit.class_counts is not None else torch.full((task.labels,), fit.rows / 2)
        share = (everywhere + 0.5) / (fit.rows + 1)
        return torch.logit((labels.double().sum(dim=0) + share) / (len(labels) + 1)).float()
    return labels.double().mean().reshape(1).float() if len(labels) else torch.zeros(1)


def _mixture(counts: Tensor | None, classes: int) -> Tensor:
    counts = torch.zeros(classes, dtype=torch.float64) if counts is None else counts
    return (counts + 1) / (counts.sum() + classes)
