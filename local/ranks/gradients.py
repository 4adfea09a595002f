"""Gradients of a batch that ranks share: rows of factors are gathered at rank 0, matrices added up there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from rankdad.common.collectives import device_of
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.routes import Payload


def pooled(payload: Payload, loss: float, group: dist.ProcessGroup | None = None) -> tuple[Payload, float] | None:
    """Return the gradients of the whole batch and its loss at rank 0, and None at the others.

    A weight that one rank has used outside its layer is a matrix at all of them.

    Args:
        payload: of a rank's part, in the plan's order: its share of the gradients of the batch's mean loss.
        loss: its share of that loss.
        group: the process group; the default one where it is None.
    """
    device = device_of(group)
    rows = [value.rows if isinstance(value, Factor) else -1 for value in payload]
    own = torch.tensor([loss, *rows], dtype=torch.float64, device=device)
    of_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(of_ranks, own, group=group)
    table = torch.stack(of_ranks).tolist()
    is_matrix = [min(row) < 0 for row in zip(*(ranks[1:] for ranks in table), strict=True)]
    factors, matrices = list[Factor](), list[Tensor]()
    for value, dense in zip(payload, is_matrix, strict=True):
        if dense:
            matrices.append(value.gradient() if isinstance(value, Factor) else value)
        else:
            assert isinstance(value, Factor)
            factors.append(value)
    counts = [[int(row) for row, dense in zip(ranks[1:], is_matrix, strict=True) if not dense] for ranks in table]
    gathered, total = _gathered(factors, counts, device, group), _sum(matrices, device, group)
    if gathered is None:
        return None
    found = [iter(gathered), iter(total)]
    whole: list[Matrix] = [next(found[dense]) for dense in is_matrix]
    return tuple(whole), sum(ranks[0] for ranks in table)


def _gathered(
    factors: list[Factor], counts: list[list[int]], device: torch.device, group: dist.ProcessGroup | None
) -> list[Factor] | None:
    """Return factors with the rows of all ranks, in the order of ranks, at rank 0.

    Args:
        factors: of this rank.
        counts: of every rank, rows of every factor.
        device: of what travels.
        group: the process group.
    """
    arrays = [array for factor in factors for array in (factor.delta, factor.activation)]
    if dist.get_rank(group):
        if sum(array.numel() for array in arrays):
            flat = torch.cat([array.reshape(-1) for array in arrays])
            dist.send(flat.to(device), group=group, group_dst=0)
        return None
    widths = [width for factor in factors for width in factor.shape]
    parts = [arrays]
    for source, rows in enumerate(counts[1:], 1):
        shapes = [(rows[place // 2], width) for place, width in enumerate(widths)]
        sizes = [count * width for count, width in shapes]
        if not sum(sizes):
            continue
        flat = torch.empty(sum(sizes), dtype=arrays[0].dtype, device=device)
        dist.recv(flat, group=group, group_src=source)
        pieces = flat.to(arrays[0].device).split(sizes)
        parts.append([piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)])
    stacked = [torch.cat(of_ranks) for of_ranks in zip(*parts, strict=True)]
    return [Factor(*pair) for pair in zip(stacked[::2], stacked[1::2], strict=True)]


def _sum(matrices: list[Tensor], device: torch.device, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Return the sums of all ranks' matrices at rank 0; at the others, what is of no use."""
    if not matrices:
        return []
    flat = torch.cat([matrix.reshape(-1) for matrix in matrices]).to(device)
    dist.reduce(flat, group=group, group_dst=0)
    pieces = flat.to(matrices[0].device).split([matrix.numel() for matrix in matrices])
    return [piece.view(matrix.shape) for piece, matrix in zip(pieces, matrices, strict=True)]


def summed(
    gradients: Mapping[str, Tensor], loss: float, like: Mapping[str, Tensor], group: dist.ProcessGroup | None = None
) -> tuple[dict[str, Tensor], float]:
    """Return the gradients of the whole batch by parameter and its loss, the same at all ranks.

    Args:
        gradients: of a rank's part, by parameter; one that it has not used has none.
        loss: its share of the loss.
        like: all trained parameters.
        group: the process group; the default one where it is None.
    """
    device = device_of(group)
    flat = torch.cat([gradients.get(name, torch.zeros_like(value)).reshape(-1) for name, value in like.items()])
    total, value = flat.to(device), torch.tensor(loss, dtype=torch.float64, device=device)
    dist.all_reduce(total, group=group)
    dist.all_reduce(value, group=group)
    pieces = total.to(flat.device).split([parameter.numel() for parameter in like.values()])
    shaped = {name: piece.view(like[name].shape) for name, piece in zip(like, pieces, strict=True)}
    return shaped, float(value)
