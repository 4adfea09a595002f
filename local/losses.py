"""Losses per sample. The task's loss is their mean over a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.preparation.inputs import predicted
from rankdad.common.privacy.standing import NUMBER
from rankdad.common.spec.tasks import Classification, LanguageModel, MultiLabel, TaskSpec


def losses(task: TaskSpec, outputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the loss of every sample, [n].

    Args:
        task: what is predicted.
        outputs: [n, task.outputs], logits or standardised numbers; for a language model logits [n, length, tokens], or
            sums of `text_losses`.
        labels: int64 [n], float [n, labels] of 0 and 1, or standardised numbers [n]; for a language model's logits the
            texts' tokens.
        weights: of classes, of positive labels, or of tokens; they average 1 over all training samples.
    """
    if isinstance(task, LanguageModel):
        summed = (text_losses(outputs, labels) if outputs.ndim > 2 else outputs)[:, 0]
        return summed if weights is None else summed * weights.to(summed)
    if isinstance(task, Classification):
        weights = None if weights is None else weights.to(outputs)
        return F.cross_entropy(outputs, labels, weights, reduction="none")
    labels = labels.to(outputs.dtype)
    if isinstance(task, MultiLabel):
        weights = None if weights is None else weights.to(outputs)
        return F.binary_cross_entropy_with_logits(outputs, labels, pos_weight=weights, reduction="none").mean(dim=1)
    outputs = outputs.squeeze(1)
    if task.loss == "mse":
        return F.mse_loss(outputs, labels, reduction="none")
    if task.loss == "mae":
        return F.l1_loss(outputs, labels, reduction="none")
    return F.huber_loss(outputs, labels, reduction="none", delta=task.delta)


def text_losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return each text's summed loss and number of predicted tokens, [n, 2], in the logits' dtype.

    Args:
        logits: of each token's successor, [n, length, tokens]; the last ones may be missing if all texts have ended.
        tokens: int64 [n, length].
    """
    tokens = tokens[:, : logits.shape[1]]
    counted = predicted(tokens)
    lost = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view_as(counted)
    return torch.stack([(lost * counted).sum(1), counted.sum(1).to(lost)], dim=1)


def mean_loss(task: TaskSpec, outputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean loss of a batch."""
    if isinstance(task, Classification) and weights is None:  # one operation, to keep earlier results bit for bit
        return F.cross_entropy(outputs, labels)
    return torch.mean(losses(task, outputs, labels, weights))


def deltas(task: TaskSpec, outputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the gradient of each sample's loss with respect to its outputs, in their shape; see `losses`."""
    single = outputs.dtype in (torch.float16, torch.bfloat16)
    with torch.enable_grad(), torch.autocast(outputs.device.type, enabled=False):
        alone = (outputs.detach().float() if single else outputs.detach()).requires_grad_()
        (found,) = torch.autograd.grad(losses(task, alone, labels, weights).sum(), alone)
    return found


def kinds_of(task: TaskSpec, labels: Tensor, outputs: int) -> Tensor:
    """Return each sample's class, its labels as 0 and 1, or whether it has a number: int64 [n, outputs]."""
    if isinstance(task, Classification):
        return labels.cpu()[:, None].expand(-1, outputs)
    return labels.cpu().long() if isinstance(task, MultiLabel) else torch.full((len(labels), outputs), NUMBER)
