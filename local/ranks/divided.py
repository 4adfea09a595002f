"""A replica divided between a site's ranks: each has a part of the weights and of their moments.

`shard` divides each weight's rows, see `local.ranks.fsdp`, `tensor` layers, see `local.ranks.tensor`, and `pipeline`
blocks, see `local.ranks.pipeline`. Gradients of whole weights are exchanged as without, so torch reduces none. Each
rank applies the update to its own part, which equals the whole update for elementwise optimizers. All ranks call each
method at the same time.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from rankdad.common.collectives import all_gather_equal
from rankdad.common.devices import CPU
from rankdad.common.errors import SpecError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.layers import linear_layers
from rankdad.common.lowrank.pairs import Pair
from rankdad.common.lowrank.routes import ALL, Index
from rankdad.common.meshes import Cut, Division, cut, local, wrapped
from rankdad.common.run.batches import batch_sizes, parts
from rankdad.common.run.optimizer import load_moments, moments_of
from rankdad.common.run.replica import Replica, copies
from rankdad.common.run.snapshot import under
from rankdad.common.run.weight_sketch import sketch
from rankdad.common.spec import Adam, RunSpec
from rankdad.common.tensors import weights_sha256
from rankdad.local.config import SiteConfig
from rankdad.local.ranks.fsdp import sharded
from rankdad.local.ranks.pipeline import Stages
from rankdad.local.ranks.tensor import divide


class DividedReplica(Replica):
    """The part of a replica at one rank.

    Weights are this rank's parts, which `load` accepts beside whole ones.

    Args:
        spec: the run.
        model: with its initial weights, equal at all ranks; each keeps its part.
        mesh: of the ranks, with dimensions out of data, shard, pipeline and tensor.
    """

    def __init__(self, spec: RunSpec, model: nn.Module, mesh: DeviceMesh) -> None:
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # two gatherings are meant
        sizes = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
        self._is_first, self._ranks = not mesh.get_rank(), mesh.size()
        self._batches = sizes.get("data", 1) * sizes.get("shard", 1)
        self._layers = linear_layers(model)
        self._shapes = {name: value.shape for name, value in model.state_dict().items()}
        first = dict[nn.Parameter, str]()
        self._names = {name: first.setdefault(p, name) for name, p in model.named_parameters(remove_duplicate=False)}
        self.stages = Stages(spec, model, mesh["pipeline"].get_group()) if "pipeline" in sizes else None
        self._orders = divide(spec, model, mesh["tensor"], self._elsewhere) if "tensor" in sizes else {}
        cuts = {name: _cuts_of_tensor(parameter) for name, parameter in model.named_parameters()}
        dims = tuple(name for name in ("data", "shard") if name in sizes)
        self._blocks = sharded(model, mesh[dims]) if "shard" in sizes else []
        super().__init__(spec, model=model)
        self._division = Division(model, None, start=False)
        self._cuts = {name: cuts[name] + part.cuts for name, part in self._division.parts.items()}
        self._kept = {name: self._index(name) for name in cuts}

    def _elsewhere(self, name: str) -> bool:
        return self.stages is not None and self.stages.is_elsewhere(name)

    def shapes(self) -> Mapping[str, torch.Size]:
        """Return the shapes of whole weights and buffers, by name."""
        return self._shapes

    def _trained(self) -> dict[str, nn.Parameter]:
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        return {name: nn.Parameter(local(parameter.detach())) for name, parameter in named.items()}

    def _index(self, name: str) -> tuple[Index, slice]:
        if self._elsewhere(name):
            return slice(0), ALL
        shape = self._shapes[name]
        kept = [torch.arange(length) for length in shape[:2]]
        if name in self._orders:
            kept[0] = self._orders[name]
        for each in self._cuts[name]:
            kept[each[0]] = kept[each[0]][cut(len(kept[each[0]]), each)]
        slices = [slice(int(own[0]), int(own[-1]) + 1) if len(own) else slice(0) for own in kept] + [ALL, ALL]
        rows = kept[0].to(self.device) if name in self._orders else slices[0]
        return rows, slices[1] if any(axis for axis, *_ in self._cuts[name]) else ALL

    def kept(self, name: str) -> tuple[Index, slice]:
        """Return the rows and columns of a parameter's gradient, as a matrix, that this rank applies."""
        return self._kept[name]

    def capture(self, only: Container[str] | None = None) -> FactorCapture:
        """Return a capture of the gradients of whole weights; see `FactorCapture`."""
        return _WholeCapture(self.model, only, layers=self._layers, replica=self)

    def passes(self, samples: Sequence[int] = (), largest: int = 1) -> AbstractContextManager[None]:
        """Return a context for passes: weights are gathered by block if all ranks make equally many, else at once.

        Args:
            samples: of each of the step's batches.
            largest: samples that go through the model at once.
        """
        sizes = [parts(count, self._batches) for count in samples]  # of the ranks; the first has most samples
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
        for parameter in self._division.passing.values():
            parameter.grad = None

    @contextmanager
    def evaluating(self, weights: Mapping[str, Tensor] = MappingProxyType({})) -> Iterator[nn.Module]:
        """Yield the model with these weights, for passes without gradients at all ranks."""
        own = self.weights() if weights else {}
        self.load(weights)
        with self.passes():
            yield self.model
        self.load(own)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load this rank's part from whole weights, or its own part from `weights`, and buffers."""
        own = self.model.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                whole = value.shape == self._shapes[name]
                local(own[name]).copy_(self._part(self._name(name), value) if whole else value)

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of this rank's parts of weights, and of all buffers, on the CPU."""
        return copies({name: local(value) for name, value in self.model.state_dict().items()})

    def gathered(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return whole weights at rank 0, from those that `weights` has returned; empty at the others."""
        return self._gathered(weights)

    def parameters(self) -> dict[str, Tensor]:
        """Return copies of the parameters, whole at all ranks."""
        return self._gathered(dict(self.model.named_parameters()), at_all=True)

    def sketch(self) -> Tensor:
        """Return the sketch of the whole parameters, gathering one at a time."""
        return sketch(_Gathering(self, dict(self.model.named_parameters())))

    def digest(self) -> str:
        """Return the sha256 of all weights and buffers, gathering one at a time."""
        return weights_sha256(_Gathering(self, self.model.state_dict()))

    def state(self) -> dict[str, Tensor]:
        """Return weights, buffers and moments by name, without copying; see `spread`."""
        weights = {f"weights/{name}": value for name, value in self.model.state_dict().items()}
        return self.spread(weights | moments_of(self._optimizer, self.trained))

    def spread(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's parts of weights, moments and buffers as distributed tensors.

        Rows are in the model's order. Parameters of other stages have no memory (`device="meta"`).
        """
        return {key: self._spread(key, own[key].detach()) for key in sorted(own)}  # in the same order at all ranks

    def _spread(self, key: str, value: Tensor) -> Tensor:
        name = self._name(key)
        if name not in self._division.parts or not value.ndim:
            return value
        if self._elsewhere(name):
            return torch.empty(self._shapes[name], dtype=value.dtype, device="meta")
        tensor = wrapped(local(value).contiguous(), self._division.parts[name].own)
        if name not in self._orders or not isinstance(tensor, DTensor):
            return tensor
        same = [Replicate()] * tensor.device_mesh.ndim
        whole = DTensor.from_local(self.whole(name, tensor), tensor.device_mesh, same, run_check=False)
        return whole.redistribute(placements=[p if p.is_replicate() else Shard(0) for p in tensor.placements])

    def parts(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this rank's parts of whole or distributed weights and moments, by name."""
        return {key: self._part(self._name(key), whole[key]) for key in sorted(whole)}

    def blank(self, key: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return a tensor as from `spread`, to be filled from a checkpoint."""
        part = self._division.parts.get(self._name(key)) if shape else None
        return self._spread(key, torch.empty(shape if part is None else local(part.own).shape, dtype=dtype))

    def _name(self, key: str) -> str:
        """Return the first name of a parameter or buffer, given one of its own or a moment's."""
        name = key if key in self._shapes else key.partition("/")[2]
        return self._names.get(name, name)

    def load_state(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Restore the whole state of a replica after this many steps.

        Raises:
            ValueError, KeyError, RuntimeError: the state is of another model.
        """
        self.step = step
        weights = under("weights", tensors)
        moments = {name: value for name, value in tensors.items() if not name.startswith("weights/")}
        if {name: value.shape for name, value in weights.items()} != self._shapes:
            raise ValueError("the weights are of another model")
        for key, value in moments.items():
            if value.ndim and value.shape != self._shapes.get(key.partition("/")[2]):
                raise ValueError(f"{key}: got {list(value.shape)}, which is not its weight's shape")
        self.load(weights)
        load_moments(self._optimizer, self.trained, self.parts(moments))

    def _clip(self, most: float) -> float:
        """Limit the norm of the gradients over all ranks' parts, and return the norm before."""
        own = torch.zeros((), dtype=torch.float64)
        for name, parameter in self.trained.items():
            if parameter.grad is not None:  # at as many ranks as have the same part
                parted = math.prod(number for _, number, _ in self._cuts[name])
                copies = self._ranks / parted / (self.stages.number(name) if self.stages else 1)
                own += parameter.grad.norm().double().square().cpu() / copies
        total = all_gather_equal(own).sum().sqrt()
        like = next(iter(self.trained.values()))
        nn.utils.clip_grads_with_norm_(self.trained.values(), most, total.to(like))
        return float(total)

    def _part(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole or distributed parameter, or of its moment; of a buffer all."""
        if name not in self._kept or not whole.ndim:
            return whole
        if isinstance(whole, DTensor):
            if name not in self._orders:
                return whole.to_local()
            whole = whole.full_tensor()
        rows, columns = self._kept[name]
        if whole.is_meta:
            whole = whole.new_empty(0, *whole.shape[1:], device=self.device)
        part = whole[rows.to(whole.device) if isinstance(rows, Tensor) else rows]
        return part if columns == ALL else part[:, columns]

    def whole(self, name: str, value: Tensor, axis: int = 0) -> Tensor:
        """Return a tensor of all ranks, which call this at the same time.

        Args:
            name: of the parameter that it belongs to.
            value: distributed.
            axis: whose entries belong to the parameter's rows.
        """
        if isinstance(value, DTensor):
            value = value.full_tensor()
            if name in self._orders:
                value = value.index_select(axis, self._orders[name].argsort().to(value.device))
        return value

    def _gathered(self, named: Mapping[str, Tensor], *, at_all: bool = False) -> dict[str, Tensor]:
        """Return copies on the CPU of parameters, moments and buffers, with the parts of all ranks.

        Args:
            named: by name, moments as in `moments_of`.
            at_all: whether all ranks return them, not only rank 0.
        """
        found, gathering = dict[str, Tensor](), _Gathering(self, named)
        for name in sorted(named):  # in the same order at all ranks
            whole = gathering[name]
            found |= copies({name: whole}) if at_all or self._is_first else {}
        return found

    def gather(self, key: str, value: Tensor) -> Tensor:
        """Return a parameter, moment or buffer of all ranks."""
        name, value = self._name(key), local(value).to(self.device)
        own = self._division.parts[name].own if name in self._division.parts and value.ndim else value
        whole = self.whole(name, wrapped(value, own))
        return self.stages.shared(name, whole, self._shapes[name]) if self.stages and value.ndim else whole


class _Gathering(Mapping[str, Tensor]):
    """Parameters, moments and buffers by name, whole when they are looked up, at all ranks at the same time."""

    def __init__(self, replica: DividedReplica, named: Mapping[str, Tensor]) -> None:
        self._replica, self._named = replica, named

    def __getitem__(self, key: str) -> Tensor:
        return self._replica.gather(key, self._named[key].detach())

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


class _WholeCapture(FactorCapture):
    """A capture of whole factors and gradients, out of those of layers that are divided by tensor parallel."""

    def __init__(self, model: nn.Module, only: Container[str] | None, *, replica: DividedReplica, **given: Any) -> None:
        super().__init__(model, only, parameters=replica._division.passing, **given)
        self._replica = replica

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Run the backward pass; then all ranks gather what it has captured."""
        before = {name: len(pairs) for name, pairs in self._pairs.items()}
        super().backward(loss, retain_graph=retain_graph)
        whole = self._replica.whole
        for name, pairs in self._pairs.items():
            pairs[before[name] :] = [
                replace(one, kept=Factor(whole(name, one.factor.delta, 1), whole("", one.factor.activation)))
                for one in pairs[before[name] :]
            ]
        if self._replica.stages is not None:
            self._share(before, self._replica.stages)

    def _share(self, before: Mapping[str, int], stages: Stages) -> None:
        """Append the other stages' factors to this one's: a layer of a block is used once in a pass."""
        new = {name: [one.factor.rows for one in pairs[before[name] :]] for name, pairs in self._pairs.items()}
        for name, count in stages.counts({name: sum(rows) for name, rows in new.items()}).items():
            if name not in self._pairs or not count:
                continue
            pairs, weight = self._pairs[name], self._parameters[name]
            own = pairs[-1].factor if new[name] else Factor(*(weight.new_empty(0, 0) for _ in range(2)))
            out, columns = self._replica.shapes()[name]
            factor = Factor(
                stages.shared(name, own.delta, torch.Size([count, out])),
                stages.shared(name, own.activation, torch.Size([count, columns])),
            )
            if stages.is_elsewhere(name):
                people = self.people
                of_rows = None if people is None else people.repeat_interleave(count // len(people))
                pairs.append(Pair(name, factor, of_rows, None, weight.dtype))
                self._counted[name] = len(pairs)

    def dense(self, only: Container[str] | None = None) -> dict[str, Tensor]:
        """Return the whole gradients of all other parameters; see `FactorCapture.dense`."""
        found = {name: self._replica.whole(name, gradient) for name, gradient in super().dense(only).items()}
        if (stages := self._replica.stages) is not None:
            for name, has in stages.counts(dict.fromkeys(found, 1)).items():
                if has:
                    own = found.get(name, self._parameters[name].detach())
                    found[name] = stages.shared(name, own, self._replica.shapes()[name])
        return found


def _cuts_of_tensor(parameter: Tensor) -> tuple[Cut, ...]:
    """Return how tensor parallel divides a parameter."""
    if not isinstance(parameter, DTensor):
        return ()
    (placement,), mesh = parameter.placements, parameter.device_mesh
    return ((placement.dim, mesh.size(), mesh.get_local_rank()),) if isinstance(placement, Shard) else ()


def check_divided(spec: RunSpec, config: SiteConfig, *, has_own_gpu: bool) -> None:
    """Check that a run's updates can be applied to parts of weights.

    Args:
        spec: the run.
        config: of the site.
        has_own_gpu: whether no other rank computes on this one's device.

    Raises:
        SpecError: names the reason.
    """
    own, method, optimizer = spec.at(config.name), spec.method, spec.training.optimizer
    cannot = {
        f"method.name {method.name} sends deltas through whole weights": method.needs_weights,
        f"method.local_steps {own.local_steps} changes weights between two updates": spec.local is not None,
        'training.optimizer.second_moment "factored" needs sums over whole columns': isinstance(optimizer, Adam)
        and optimizer.second_moment == "factored",
        'evaluation.references "local" trains a whole model': "local" in spec.evaluation.references,
        '"pipeline" has other weights at each stage than "shard" divides': not isinstance(config.parallel, str)
        and config.parallel.pipeline > 1 < config.parallel.shard,
        f"device {config.device} may be one GPU for several ranks": config.device != CPU and not has_own_gpu,
    }
    for reason, holds in cannot.items():
        if holds:
            got = json.dumps(config.model_dump(include={"parallel"})["parallel"])
            raise SpecError(
                "parallel",
                f'got {got}, but {reason}: expected "data" in this site\'s file',
                code="parallel-does-not-fit",
            )
