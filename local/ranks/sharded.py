"""A replica sharded over a site's ranks: each has some rows of every weight and of its moments (FSDP).

torch's `fully_shard` gathers a block's whole weights for its passes. Gradients are exchanged as without it, so FSDP
reduces none. Each rank applies the update to its own rows, which equals the whole update for elementwise optimizers.
All ranks call each method at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from rankdad.common.collectives import all_gather_equal, all_gather_rows
from rankdad.common.devices import CPU
from rankdad.common.errors import SpecError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.layers import has_hooks, linear_layers
from rankdad.common.run.batches import batch_sizes, parts
from rankdad.common.run.optimizer import load_moments, moments_of
from rankdad.common.run.replica import Replica, copies
from rankdad.common.run.snapshot import under
from rankdad.common.spec import Adam, RunSpec

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # their members are blocks


class ShardedReplica(Replica):
    """The rows of a replica at one rank.

    Rank 0 returns whole weights and states. The others return their own rows, which `load` also accepts.

    Args:
        spec: the run.
        model: with its initial weights, equal at all ranks; each keeps its rows.
        group: the process group of the ranks; None for the default one.
    """

    def __init__(self, spec: RunSpec, model: nn.Module, group: dist.ProcessGroup | None) -> None:
        self._group, self._rank, self._size = group, dist.get_rank(group), dist.get_world_size(group)
        self._layers = linear_layers(model)
        device = next(model.parameters()).device.type
        world = dist.group.WORLD if group is None else group
        assert world is not None
        mesh = DeviceMesh.from_group(world, device)
        self._blocks = _sharded(model, mesh)
        super().__init__(spec, model=model)
        self._parameters = dict[str, nn.Parameter]()
        with self._gathering(alike=False):
            self._parameters = dict(model.named_parameters())  # whole ones, allocated during passes

    def _trained(self) -> dict[str, nn.Parameter]:
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        return {name: nn.Parameter(_rows_of(parameter.detach())) for name, parameter in named.items()}

    def rows(self, length: int) -> slice:
        """Return this rank's rows of a parameter of this length; maybe none."""
        most = math.ceil(length / self._size)
        return slice(min(self._rank * most, length), min((self._rank + 1) * most, length))

    def capture(self, only: Container[str] | None = None) -> FactorCapture:
        """Return a capture of the gradients of whole weights; see `FactorCapture`."""
        return FactorCapture(self.model, only, layers=self._layers, parameters=self._parameters)

    def passes(self, samples: Sequence[int] = (), largest: int = 1) -> AbstractContextManager[None]:
        """Return a context for passes: weights are gathered by block if all ranks make equally many, else at once.

        Args:
            samples: of each of the step's batches.
            largest: samples that go through the model at once.
        """
        sizes = [parts(count, self._size) for count in samples]  # of the ranks; the first has most samples
        alike = all(len(batch_sizes(each[0], largest)) == len(batch_sizes(each[-1], largest)) for each in sizes)
        return self._gathering(alike=alike)

    @contextmanager
    def _gathering(self, *, alike: bool) -> Iterator[None]:
        for block in self._blocks:
            block.set_reshard_after_forward(alike and block is not self._blocks[-1], recurse=False)
            block.set_reshard_after_backward(alike, recurse=False)
            if not alike:
                block.unshard()
        yield
        for block in self._blocks:
            block.reshard()
        for parameter in self._parameters.values():
            parameter.grad = None

    @contextmanager
    def evaluating(self, weights: Mapping[str, Tensor] = MappingProxyType({})) -> Iterator[nn.Module]:
        """Yield the model with these weights, for passes without gradients at all ranks."""
        own = {name: _rows_of(value).clone() for name, value in self.model.state_dict().items()} if weights else {}
        self.load(weights)
        with self.passes():
            yield self.model
        self.load(own)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load this rank's rows from whole weights, or its own rows from `weights`, and buffers."""
        own = self.model.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                target = own[name]
                rows = value.shape == target.shape and isinstance(target, DTensor)
                _rows_of(target).copy_(value[self.rows(len(value))] if rows else value)

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of all weights and buffers on the CPU; at ranks other than 0, of their rows."""
        return self._gathered(self.model.state_dict())

    def parameters(self) -> dict[str, Tensor]:
        """Return copies of the parameters, whole at all ranks."""
        return self._gathered(dict(self.model.named_parameters()), at_all=True)

    def state(self) -> dict[str, Tensor]:
        """Return copies of weights, buffers and moments by name: whole, or this rank's rows."""
        weights = {f"weights/{name}": value for name, value in self.model.state_dict().items()}
        return self._gathered(weights | moments_of(self._optimizer, self.trained))

    def load_state(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Restore the whole state of a replica after this many steps.

        Raises:
            ValueError, KeyError, RuntimeError: the state is of another model.
        """
        self.step = step
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        weights = under("weights", tensors)
        moments = {name: value for name, value in tensors.items() if not name.startswith("weights/")}
        if {name: value.shape for name, value in self.model.state_dict().items()} != {
            name: value.shape for name, value in weights.items()
        }:
            raise ValueError("the weights are of another model")
        for key, value in moments.items():
            if value.ndim and value.shape != shapes.get(key.partition("/")[2]):
                raise ValueError(f"{key}: got {list(value.shape)}, which is not its weight's shape")
        self.load(weights)
        own = {name: value[self.rows(len(value))] if value.ndim else value for name, value in moments.items()}
        load_moments(self._optimizer, self.trained, own)

    def _clip(self, most: float) -> float:
        """Limit the norm of the gradients over all ranks' rows, and return the norm before."""
        gradients = [parameter.grad for parameter in self.trained.values() if parameter.grad is not None]
        own = nn.utils.get_total_norm(gradients).double().square()
        total = all_gather_equal(own, self._group).sum().sqrt()
        nn.utils.clip_grads_with_norm_(self.trained.values(), most, total.to(gradients[0].dtype))
        return float(total)

    def _gathered(self, rows: Mapping[str, Tensor], *, at_all: bool = False) -> dict[str, Tensor]:
        """Return copies on the CPU with the rows of all ranks; buffers are whole already.

        Args:
            rows: by name.
            at_all: whether all ranks return them, not only rank 0.
        """
        found = dict[str, Tensor]()
        for name in sorted(rows):  # in the same order at all ranks
            value = rows[name]
            own = _rows_of(value)
            divided = value.ndim and (isinstance(value, DTensor) or name.partition("/")[2] in self.trained)
            whole = torch.cat(all_gather_rows(own, self._group)) if divided else own
            found |= copies({name: whole if at_all or not self._rank else own})
        return found


def check_sharded(spec: RunSpec, site: str, device: str, *, has_own_gpu: bool) -> None:
    """Check that a run's updates can be applied to rows of weights.

    Args:
        spec: the run.
        site: its name.
        device: of this rank.
        has_own_gpu: whether no other rank computes on it.

    Raises:
        SpecError: names the reason.
    """
    own, method, optimizer = spec.at(site), spec.method, spec.training.optimizer
    cannot = {
        f"method.name {method.name} sends deltas through whole weights": method.needs_weights,
        f"method.local_steps {own.local_steps} changes weights between two updates": spec.local is not None,
        'training.optimizer.second_moment "factored" needs sums over whole columns': isinstance(optimizer, Adam)
        and optimizer.second_moment == "factored",
        'evaluation.references "local" trains a whole model': "local" in spec.evaluation.references,
        f"device {device} may be one GPU for several ranks": device != CPU and not has_own_gpu,
    }
    for reason, holds in cannot.items():
        if holds:
            raise SpecError(
                "parallel",
                f'got "fsdp", but {reason}: expected "data" in this site\'s file',
                code="parallel-does-not-fit",
            )


def _sharded(model: nn.Module, mesh: DeviceMesh) -> list[FSDPModule]:
    """Shard a model block by block; return the blocks, with the model itself last.

    Raises:
        SpecError: a parameter has no rows, or has a hook, which its rows would lose.
    """
    for name, parameter in model.named_parameters():
        if has_hooks(parameter):
            problem = f'{name} has a hook on its gradient, which sharding drops ("parallel": "fsdp")'
            raise SpecError("model", f'{problem}: expected "parallel": "data" in this site\'s file', code="hook-lost")
    blocks = [] if _has_tied(model) else [b for b in _members(model) if any(True for _ in b.parameters())]
    try:
        for module in (*blocks, model):
            fully_shard(module, mesh=mesh)
    except ValueError as error:
        raise SpecError(
            "model", f'cannot be divided ("parallel": "fsdp"): {error}', code="model-cannot-be-divided"
        ) from None
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


def _rows_of(value: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory."""
    return value.to_local() if isinstance(value, DTensor) else value
