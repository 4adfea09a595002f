"""Shares of a step: how much of its gradient is one patient's, and how much may be.

A gradient is a sum over patients of what flows back from the loss through each one's outputs. Where a model is certain
of all patients but one, that one is the whole gradient: divided by the bias's, it is the patient's row. So of all that
flows back no patient has more than a share.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-9  # beyond equal shares: where as many as share a step have as much, nobody has too much


def limit(sums: Tensor, sharing: int) -> Tensor:
    """Return how much one patient may have, so that nobody has more than one part of so many of what is left then.

    Of fewer patients than share a step nothing is left.

    Args:
        sums: what each patient has, at least 0, float64 [patients].
        sharing: how many patients share a step at least.
    """
    ordered = torch.cat([sums.sort(descending=True).values, sums.new_zeros(sharing)])
    rest = ordered.flip(0).cumsum(0).flip(0)  # of a patient and all who have less
    for larger in range(sharing):  # so many have more than they may; the last of these always fits
        equal = rest[larger] / (sharing - larger)
        if ordered[larger] <= equal * (1 + ROUNDING):
            break
    return equal


def scales(deltas: Tensor, people: Tensor, sharing: int) -> Tensor | None:
    """Return by what is multiplied what flows back from each row's outputs; None where nobody has too large a share.

    Args:
        deltas: gradients of each row's loss by its outputs, [rows, outputs].
        people: which patient each row is of, int64 [rows].
        sharing: how many patients share a step at least.

    Returns:
        Of the type of the deltas, [rows, 1], from 0 to 1.
    """
    if sharing < 2 or not len(deltas) or not deltas.isfinite().all():
        return None
    names, of = people.unique(return_inverse=True)
    sizes = torch.linalg.vector_norm(deltas.double(), dim=1)
    sums = sizes.new_zeros(len(names)).index_add_(0, of, sizes)
    most = limit(sums, sharing)
    larger = sums > most * (1 + ROUNDING)
    if not larger.any():
        return None
    return torch.where(larger, most / sums, 1.0)[of, None].to(deltas.dtype)
