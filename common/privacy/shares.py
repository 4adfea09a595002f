"""Shares of a step: how much of its gradient is one patient's, and how much may be.

A gradient is a sum over patients of what flows back from the loss through each one's outputs. Where a model is certain
of all patients but one, that one is the whole gradient: divided by the bias's, it is the patient's row. So no patient
has more than a share of what flows back from an output.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-9  # beyond equal shares: of as many patients as share a step, all are as large as may be


def limits(sums: Tensor, sharing: int) -> Tensor:
    """Return how much one patient may have, so that nobody has more than one part of so many of what is left then.

    Of fewer patients than share a step nothing is left.

    Args:
        sums: of each patient, at least 0, [patients, outputs].
        sharing: how many patients share a step at least.

    Returns:
        float64 [outputs].
    """
    ordered = sums.double().sort(dim=0, descending=True).values
    ordered = torch.cat([ordered, ordered.new_zeros(sharing, sums.shape[1])])
    rest = ordered.flip(0).cumsum(0).flip(0)  # of a patient and all who have less
    limit = rest[sharing - 1]
    for larger in reversed(range(sharing - 1)):  # so many have more than they may
        equal = rest[larger] / (sharing - larger)
        limit = torch.where(ordered[larger] <= equal * (1 + ROUNDING), equal, limit)
    return limit


def scales(deltas: Tensor, people: Tensor, sharing: int) -> Tensor | None:
    """Return by what is multiplied what flows back from a step's outputs; None where nobody has too large a share.

    Args:
        deltas: gradients of each row's loss by its outputs, [rows, outputs].
        people: which patient each row is of, int64 [rows].
        sharing: how many patients share a step at least.

    Returns:
        Of the type of the deltas, [rows, outputs], from 0 to 1.
    """
    if sharing < 2 or not len(deltas) or not deltas.isfinite().all():
        return None
    names, of = people.unique(return_inverse=True)
    sums = deltas.new_zeros(len(names), deltas.shape[1], dtype=torch.float64)
    sums.index_add_(0, of, deltas.abs().double())
    most = limits(sums, sharing)
    larger = sums > most * (1 + ROUNDING)
    if not larger.any():
        return None
    return torch.where(larger, most / sums, 1.0)[of].to(deltas.dtype)
