"""Samples of every task, with scores that know something of the labels."""

from __future__ import annotations

from functools import reduce
from operator import add

import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.metrics.sums import Tally, empty, tally
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec

TASKS: tuple[TaskSpec, ...] = (
    Classification(classes=2),
    Classification(classes=5),
    MultiLabel(name="multi-label", labels=3),
    Regression(name="regression"),
)


def draw(task: TaskSpec, samples: int, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return outputs and labels; rarer classes have larger numbers."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(samples, task.outputs, generator=generator, dtype=torch.float64)
    if isinstance(task, Regression):
        labels = torch.randn(samples, generator=generator, dtype=torch.float64)
        return scale * (noise + labels.unsqueeze(1)), scale * labels
    if isinstance(task, Classification):
        labels = (torch.rand(samples, generator=generator).square() * task.classes).long()
        return scale * (noise + F.one_hot(labels, task.classes)), labels
    assert isinstance(task, MultiLabel)
    labels = (torch.rand(samples, task.labels, generator=generator) < 0.3).float()
    return scale * (noise + 2 * labels - 1), labels


def losses(task: TaskSpec, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return a loss for each sample."""
    if isinstance(task, Regression):
        return (outputs[:, 0] - labels).square()
    if isinstance(task, Classification):
        return F.cross_entropy(outputs, labels, reduction="none")
    return F.binary_cross_entropy_with_logits(outputs, labels.double(), reduction="none").mean(dim=1)


def tallied(
    task: TaskSpec,
    outputs: Tensor,
    labels: Tensor,
    *,
    centre: float = 0.0,
    scale: float = 1.0,
    base: Tensor | None = None,
    groups: Tensor | None = None,
) -> Tally:
    """Tally samples, their losses with them."""
    loss = losses(task, outputs, labels)
    return tally(task, outputs, labels, loss, centre=centre, scale=scale, base=base, groups=groups)


def pooled(task: TaskSpec, outputs: Tensor, labels: Tensor, sizes: list[int], *, centre: float = 0.0) -> Tally:
    """Tally samples site by site and add up."""
    sites = zip(outputs.split(sizes), labels.split(sizes), strict=True)
    return reduce(add, (tallied(task, x, y, centre=centre) for x, y in sites), empty(task))
