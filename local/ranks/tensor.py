"""Tensor parallel at a site: each rank has a part of the layers, by torch's `parallelize_module`.

Of two linear layers, the first is divided by its units and the second by its inputs, so that the ranks' outputs of the
second add up to those of one process. In a transformer's blocks, these are the projection to heads and their merging,
and the two layers of the hidden units; in a perceptron, the first and the second layer, the third and the fourth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from rankdad.common.errors import SpecError
from rankdad.common.models.vit import Attention, Block
from rankdad.common.spec import RunSpec
from rankdad.common.spec.model import Mlp, Transformer, Vit


class Pair(NamedTuple):
    """Two layers to divide.

    Args:
        first: name of the module.
        second: name of the other.
        stacked: number of equal blocks of the first layer's units; each block is divided: query, key and value.
    """

    first: str
    second: str
    stacked: int = 1


class PartOfDropout(nn.Module):
    """Drop the units of this rank's part that one process would drop.

    Args:
        p: probability.
        size: number of ranks.
        place: of this one.
    """

    def __init__(self, p: float, size: int, place: int) -> None:
        super().__init__()
        self.p, self.size, self.place = p, size, place

    def forward(self, x: Tensor) -> Tensor:
        """Return the remaining units, scaled; without training all."""
        if not self.training:
            return x
        kept = F.dropout(x.new_ones(*x.shape[:-1], x.shape[-1] * self.size), self.p)
        return x * kept.chunk(self.size, dim=-1)[self.place]


def divide(spec: RunSpec, model: nn.Module, mesh: DeviceMesh, is_elsewhere: Callable[[str], bool]) -> dict[str, Tensor]:
    """Divide a model's weights between the ranks of a mesh of one dimension.

    Args:
        spec: the run.
        model: to divide.
        mesh: of the ranks.
        is_elsewhere: returns whether another stage has a parameter, given its name.

    Returns:
        For each parameter whose rows are in another order than the model's, where each is from, int64 [rows].

    Raises:
        SpecError: the model has no layers to divide, or their units cannot be divided by the number of ranks.
    """
    size, place = mesh.size(), mesh.get_local_rank()
    plan, orders, modules = dict[str, ParallelStyle](), dict[str, Tensor](), dict(model.named_modules())
    for first, second, stacked in pairs(spec, model, size):
        if is_elsewhere(f"{first}.weight"):
            continue
        plan |= {first: ColwiseParallel(), second: RowwiseParallel()}
        for name, parameter in modules[first].named_parameters(prefix=first) if stacked > 1 else ():
            order = torch.arange(len(parameter)).view(stacked, size, -1).transpose(0, 1).flatten()
            parameter.data, orders[name] = parameter.data[order.to(parameter.device)], order
    for name, module in modules.items():
        if isinstance(module, Attention):
            module.heads //= size
        elif isinstance(model, nn.Sequential) and isinstance(module, nn.Dropout):
            before = [style for layer, style in plan.items() if int(layer) < int(name)]
            if before and isinstance(before[-1], ColwiseParallel):
                setattr(model, name, PartOfDropout(module.p, size, place))
    parallelize_module(model, mesh, plan)
    return orders


def pairs(spec: RunSpec, model: nn.Module, size: int) -> list[Pair]:
    """Return the pairs of layers of a run's model that so many ranks divide.

    Raises:
        SpecError: there are none, or their number of units cannot be divided.
    """
    found = list[tuple[Pair, int, str]]()
    if isinstance(spec.model, Mlp):
        layers = [(name, layer) for name, layer in model.named_children() if isinstance(layer, nn.Linear)]
        for (first, layer), (second, _) in zip(layers[::2], layers[1::2], strict=False):
            found.append((Pair(first, second), layer.out_features, "units"))
    for name, module in model.named_modules() if isinstance(spec.model, Transformer | Vit) else ():
        if isinstance(module, Block):
            heads = Pair(f"{name}.attention.project", f"{name}.attention.merge", stacked=3)
            found.append((heads, module.attention.heads, "heads"))
            found.append((Pair(f"{name}.widen", f"{name}.narrow"), module.widen.out_features, "units"))
    if not found:
        problem = f"got {size}, but the model {spec.model.name} has no layers to divide"
        remedy = 'expected mlp, transformer or vit, or "shard" in this site\'s file'
        raise SpecError("parallel.tensor", f"{problem}: {remedy}", code="model-cannot-be-divided")
    for pair, number, kind in found:
        if number % size:
            problem = f"got {size}, but {pair.first} has {number} {kind}: expected a divisor of {number}"
            raise SpecError("parallel.tensor", problem, code="model-cannot-be-divided")
    return [pair for pair, *_ in found]
