"""Rows of weights at a site: each rank has some of each weight's, by torch's `fully_shard`, block by block."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from rankdad.common.errors import SpecError
from rankdad.common.lowrank.layers import has_hooks

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # their members are blocks


def sharded(model: nn.Module, mesh: DeviceMesh) -> list[FSDPModule]:
    """Shard a model block by block; return the blocks, with the model itself last.

    Raises:
        SpecError: a parameter has no rows, or has a hook, which its rows would lose.
    """
    for name, parameter in model.named_parameters():
        if has_hooks(parameter):
            problem = f'{name} has a hook on its gradient, which sharding drops ("parallel")'
            raise SpecError("model", f'{problem}: expected "parallel": "data" in this site\'s file', code="hook-lost")
    blocks = [] if _has_tied(model) else [b for b in _members(model) if any(True for _ in b.parameters())]
    blocks = [block for block in blocks if not isinstance(block, nn.Embedding)]  # a tied head uses its weights, too
    try:
        for module in (*blocks, model):
            fully_shard(module, mesh=mesh)
    except ValueError as error:
        raise SpecError("model", f'cannot be divided ("parallel"): {error}', code="model-cannot-be-divided") from None
    sharded: list[FSDPModule] = [module for module in (*blocks, model) if isinstance(module, FSDPModule)]
    for before, block in zip((sharded[0], *sharded), sharded, strict=False):
        block.set_requires_gradient_sync(False, recurse=False)
        # By default, torch prefetches in the order of earlier forward passes, including those of evaluation.
        block.set_modules_to_backward_prefetch([before])
    return sharded


def _members(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a model's blocks: its members, and the members of its containers."""
    for member in module.children():
        if isinstance(member, CONTAINERS):
            yield from _members(member)
        else:
            yield member


def _has_tied(model: nn.Module) -> bool:
    """Return whether blocks share a parameter, or occur twice in the model."""
    held = [p for _, p in model.named_parameters(remove_duplicate=False)]
    return len(held) > len(set(held))
