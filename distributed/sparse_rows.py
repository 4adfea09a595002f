"""Gradients of sparse embeddings, exchanged unreduced and kept sparse, as with DistributedDataParallel."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdad.common.collectives import all_gather_equal, all_gather_rows
from rankdad.common.errors import NonFiniteError
from rankdad.common.lowrank.wire import finite
from rankdad.distributed.agreement import reaching

UNUSED = -1


def infinite_row(parameter: nn.Parameter) -> Tensor:
    """Return a sparse gradient with an infinite value."""
    row = torch.full_like(parameter[:1], math.inf, requires_grad=False)
    return torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64, device=row.device), row, parameter.shape)


def shared(own: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return this rank's part of the sparse gradients.

    Raises:
        NonFiniteError: one holds NaN or infinity.
    """
    for name, gradient in own.items():
        if not finite(gradient.values()):
            raise NonFiniteError(f"the gradient of {name}")
    return {name: gradient * share for name, gradient in own.items()}


def add_sparse(parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor], scale: float) -> None:
    """Add gradients times a scale to `.grad`."""
    for name, gradient in gradients.items():
        parameter, scaled = parameters[name], gradient if scale == 1 else gradient * scale
        parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled


def summed(
    own: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], like: Tensor, group: dist.ProcessGroup | None
) -> dict[str, Tensor]:
    """Return the sums of all ranks' sparse gradients, for the parameters with one at some rank.

    Args:
        own: this rank's gradients, coalesced, with one sparse dimension.
        parameters: the same at all ranks.
        like: a tensor with the gradients' dtype and device.
        group: the ranks.
    """
    if not parameters:
        return {}
    rows = torch.tensor([own[name]._nnz() if name in own else UNUSED for name in parameters])
    total: dict[str, Tensor] = {}
    with reaching("a step's exchange"):
        most: list[int] = all_gather_equal(rows, group).amax(dim=0).tolist()
        for (name, parameter), count in zip(parameters.items(), most, strict=True):
            if count == UNUSED:
                continue
            mine = own.get(name)
            indices = torch.empty(0, dtype=torch.int64) if mine is None else mine.indices()[0].cpu()
            values = like.new_empty(0, *parameter.shape[1:]) if mine is None else mine.values()
            places = torch.cat(all_gather_rows(indices, group)).to(parameter.device)
            numbers = torch.cat(all_gather_rows(values, group)).to(parameter)
            total[name] = torch.sparse_coo_tensor(places[None], numbers, parameter.shape).coalesce()
    return total
