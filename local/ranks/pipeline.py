"""Pipeline parallel at a site: each stage of ranks has some of a transformer's blocks, and computes them for all.

Activations go from stage to stage, and their gradients back; all ranks have what comes before and after the blocks, and
the same outputs. Stages compute one after the other, so this saves memory, not time. torch.distributed.pipelining does
not fit a step: its stages take micro-batches of one shape, and batches here differ in samples and padding; 1F1B begins
the first backward pass before the last forward pass, and the limit of a patient's share needs all outputs before.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdad.common.errors import SpecError
from rankdad.common.models.vit import Block
from rankdad.common.run.batches import parts
from rankdad.common.spec import RunSpec
from rankdad.common.spec.model import Transformer, Vit


class Stages:
    """The stages of a model's blocks; this rank computes one.

    Args:
        spec: the run.
        model: the other stages' blocks are emptied, and pass on what they get.
        group: a rank of each stage.

    Attributes:
        owners: stage of each parameter of a block, by name.
        place: number of this rank's stage.

    Raises:
        SpecError: the model cannot be divided into so many stages.
    """

    def __init__(self, spec: RunSpec, model: nn.Module, group: dist.ProcessGroup) -> None:
        self._group, self.place, self._size = group, dist.get_rank(group), dist.get_world_size(group)
        blocks = [(name, block) for name, block in model.named_modules() if isinstance(block, Block)]
        check_stages(spec, len(blocks), self._size)
        of = [stage for stage, count in enumerate(parts(len(blocks), self._size)) for _ in range(count)]
        self.owners = dict[str, int]()
        own = list[nn.Module]()
        for (prefix, block), stage in zip(blocks, of, strict=True):
            for name, parameter in block.named_parameters(prefix=prefix):
                self.owners[name] = stage
                if stage != self.place:
                    parameter.data = parameter.data[:0].clone()
            if stage == self.place:
                own.append(block)
            else:
                block.forward = _same  # type: ignore[method-assign]
        own[0].register_forward_pre_hook(lambda module, given: (self._enter(given[0]), *given[1:]))
        own[-1].register_forward_hook(lambda module, given, output: self._leave(output))

    def is_elsewhere(self, name: str) -> bool:
        """Return whether another stage has a parameter."""
        return self.owners.get(name, self.place) != self.place

    def number(self, name: str) -> int:
        """Return the number of stages if only one has a parameter; 1 if all have it."""
        return self._size if name in self.owners else 1

    def _enter(self, hidden: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not hidden.requires_grad:  # earlier stages need the gradient
            hidden = hidden.detach().requires_grad_()
        entered: Tensor = _Enter.apply(hidden, self)  # type: ignore[no-untyped-call]
        return entered

    def _leave(self, hidden: Tensor) -> Tensor:
        left: Tensor = _Leave.apply(hidden, self)  # type: ignore[no-untyped-call]
        return left

    def shared(self, name: str, value: Tensor, shape: torch.Size) -> Tensor:
        """Return a tensor of this shape of the stage that has a parameter, at all stages; others' is ignored."""
        if name not in self.owners:
            return value
        return self._broadcast(value if not self.is_elsewhere(name) else value.new_empty(shape), self.owners[name])

    def counts(self, counts: dict[str, int]) -> dict[str, int]:
        """Return a number for each parameter of a block, from the stage that has it."""
        listed = torch.tensor([counts.get(name, 0) if not self.is_elsewhere(name) else 0 for name in self.owners])
        dist.all_reduce(listed, group=self._group)
        return dict(zip(self.owners, listed.tolist(), strict=True))

    def _broadcast(self, value: Tensor, stage: int) -> Tensor:
        value = value.detach().contiguous().clone()
        dist.broadcast(value, group=self._group, group_src=stage)
        return value

    def send(self, value: Tensor, step: int) -> None:
        """Send a tensor to the next stage (1) or the one before (-1), if there is one."""
        if 0 <= self.place + step < self._size:
            dist.send(value.contiguous(), group=self._group, group_dst=self.place + step)

    def receive(self, value: Tensor, step: int) -> Tensor:
        """Return a tensor like `value` from the next stage (1) or the one before (-1); `value` if there is none."""
        if 0 <= self.place + step < self._size:
            value = torch.empty_like(value, memory_format=torch.contiguous_format)
            dist.recv(value, group=self._group, group_src=self.place + step)
        return value

    def from_first(self, value: Tensor) -> Tensor:
        """Return the first stage's tensor."""
        return self._broadcast(value, 0)

    def from_last(self, value: Tensor) -> Tensor:
        """Return the last stage's tensor."""
        return self._broadcast(value, self._size - 1)


class _Enter(torch.autograd.Function):
    """Hand the activations of the stage before to this one's first block; return the first stage's gradient to all."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, stages: Stages) -> Tensor:
        ctx.stages = stages
        return stages.receive(hidden.detach(), -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.stages.send(gradient, -1)
        return ctx.stages.from_first(gradient), None


class _Leave(torch.autograd.Function):
    """Hand the outputs of this stage's last block to the next, and those of the last stage to all."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, stages: Stages) -> Tensor:
        ctx.stages = stages
        stages.send(hidden, 1)
        return stages.from_last(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.stages.receive(gradient, 1), None


def _same(x: Tensor, *_: object, **__: object) -> Tensor:
    return x


def check_stages(spec: RunSpec, blocks: int, size: int) -> None:
    """Check that a model of so many blocks can be divided into stages.

    Raises:
        SpecError: it cannot.
    """
    model = spec.model
    problem = None
    if not isinstance(model, Transformer | Vit):
        problem = f"the model {model.name} has no blocks: expected transformer or vit"
    elif blocks < size:
        problem = f"the model has {blocks} blocks: expected at most {blocks}"
    elif model.dropout:
        problem = f"model.dropout is {model.dropout}, and stages would drop other values than one process: expected 1"
    if problem is not None:
        raise SpecError("parallel.pipeline", f"got {size}, but {problem}", code="model-cannot-be-divided")
