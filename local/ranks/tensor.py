"""Tensor parallel at a site: the layers of which each rank has a part, by torch's `parallelize_module`.

Of two linear layers, the first is divided by its units and the second by its inputs, so that the ranks' outputs of the
second add up to those of one process. In a transformer's blocks, these are the projection to heads and their merging,
and the two layers of the hidden units; in a perceptron, the first and the second layer, the third and the fourth.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        names: of their modules.
        number: of heads or units, which the ranks divide.
        kind: what they are.
        stacked: number of equal blocks of the first layer's units, each of which is divided: query, key and value.
    """

    names: tuple[str, str]
    number: int
    kind: str = "hidden units"
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


def divide(spec: RunSpec, model: nn.Module, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Divide a model's weights between the ranks of a mesh of one dimension.

    Returns:
        For each parameter whose rows are in another order than the model's, where each is from, int64 [rows].

    Raises:
        SpecError: the model has no layers to divide, or their units cannot be divided by the number of ranks.
    """
    size, place = mesh.size(), mesh.get_local_rank()
    plan, orders, modules = dict[str, ParallelStyle](), dict[str, Tensor](), dict(model.named_modules())
    for (first, second), number, kind, stacked in pairs(spec, model):
        if number % size:
            raise SpecError(
                "parallel.tensor",
                f"got {size}, but {first} has {number} {kind}: expected a divisor of {number}",
                code="model-cannot-be-divided",
            )
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


def pairs(spec: RunSpec, model: nn.Module) -> Iterator[Pair]:
    """Yield the pairs of layers of a run's model, in their order.

    Raises:
        SpecError: there are none.
    """
    if not isinstance(spec.model, Mlp | Transformer | Vit) or (isinstance(spec.model, Mlp) and not spec.model.hidden):
        raise SpecError(
            "parallel.tensor",
            f"model.name {spec.model.name} has no pair of layers to divide: expected mlp, transformer or vit, or "
            '"shard" in place of "tensor"',
            code="model-cannot-be-divided",
        )
    if isinstance(model, nn.Sequential):
        layers = [(name, layer) for name, layer in model.named_children() if isinstance(layer, nn.Linear)]
        for (first, layer), (second, _) in zip(layers[::2], layers[1::2], strict=False):
            yield Pair((first, second), layer.out_features)
    for name, module in model.named_modules():
        if isinstance(module, Block):
            attention = module.attention
            yield Pair((f"{name}.attention.project", f"{name}.attention.merge"), attention.heads, "heads", stacked=3)
            yield Pair((f"{name}.widen", f"{name}.narrow"), module.widen.out_features)
