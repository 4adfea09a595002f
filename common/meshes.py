"""Models on device meshes: the parameters that passes use, the part of each that a rank keeps, and its groups.

LowRank exchanges gradients between ranks with different batches, those of the data-parallel dimensions. There,
`fully_shard` gathers whole parameters for the passes, and each rank keeps its rows. On all other dimensions, as that
of tensor parallel, each rank exchanges the gradient of its own part, and torch does the rest.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from rankdad.common.collectives import device_of
from rankdad.common.errors import UserError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.layers import has_hooks
from rankdad.common.run.optimizer import laid_out_as

Group = dist.ProcessGroup | None
Cut = tuple[int, int, int]  # the axis, the number of parts, and the position of this rank's


class Groups(NamedTuple):
    """The groups of ranks that a LowRank talks to.

    Args:
        data: the ranks with different batches; None for all.
        others: groups of this rank in the mesh's other dimensions, which hear of errors.
    """

    data: Group
    others: tuple[dist.ProcessGroup, ...] = ()


@dataclass(frozen=True)
class Part:
    """What this rank keeps of a parameter.

    Args:
        own: the model's and its optimizer's parameter.
        whole: the parameter in passes: `own`, or gathered by `fully_shard`.
        cuts: of `fully_shard`.
    """

    own: nn.Parameter
    whole: nn.Parameter
    cuts: tuple[Cut, ...] = ()

    @property
    def shape(self) -> torch.Size:
        """Shape of this rank's gradient in passes."""
        return local(self.whole).shape

    @property
    def rows(self) -> slice:
        """The rows of that gradient that this rank keeps."""
        own = [each for each in self.cuts if not each[0]]
        return cut(self.shape[0], own[0]) if own and self.shape else slice(None)

    def kept(self, tensor: Tensor, *, whole_rows: bool = True) -> Tensor:
        """Return this rank's part of a tensor in passes.

        Args:
            tensor: of shape `shape`, or already cut to `rows`.
            whole_rows: whether it is not.
        """
        for axis, number, place in self.cuts:
            if axis or whole_rows:
                index = (*[slice(None)] * axis, cut(tensor.shape[axis], (axis, number, place)))
                tensor = tensor[index]
        return tensor

    def gradient(self, matrix: Tensor) -> Tensor:
        """Return a gradient, cut to `rows`, in the form that the parameter's `.grad` has."""
        shape = self.shape
        rows = len(range(shape[0])[self.rows]) if shape else 0
        own = self.kept(matrix.reshape(rows, *shape[1:]) if shape else matrix.reshape(()), whole_rows=False)
        return wrapped(laid_out_as(local(self.own).detach(), own), self.own)


def cut(length: int, by: Cut) -> slice:
    """Return this rank's part of an axis."""
    _, number, place = by
    most = math.ceil(length / number)
    return slice(min(place * most, length), min((place + 1) * most, length))


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def wrapped(part: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part as a DTensor if `like` is one."""
    if not isinstance(like, DTensor):
        return part
    mesh, placements = like.device_mesh, like.placements
    whole: Tensor = DTensor.from_local(
        part, mesh, placements, run_check=False, shape=like.shape, stride=tuple(like.stride())
    )
    return whole


def local_gradient(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter's gradient, whose own placements may differ."""
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        return gradient.redistribute(placements=parameter.placements).to_local()
    return local(gradient)


def local_factor(factor: Factor, weight: Tensor) -> Factor:
    """Return the factor of this rank's part of a weight's gradient.

    Args:
        factor: of the whole gradient; its matrices are distributed as the layer's passes left them.
        weight: of the layer.
    """
    if not isinstance(weight, DTensor):
        return Factor(local(factor.delta), local(factor.activation))
    sides = []
    for axis, matrix in enumerate((factor.delta, factor.activation)):  # rows and columns of the weight's gradient
        placements: list[Placement] = [Shard(1) if p.is_shard(axis) else Replicate() for p in weight.placements]
        if isinstance(matrix, DTensor):
            matrix = matrix.redistribute(placements=placements).to_local()
        sides.append(matrix)
    return Factor(*sides)


def same_rows(weight: Tensor, bias: Tensor) -> bool:
    """Return whether a layer's bias is divided as the rows of its weight, so that it may be a column of its factor."""
    if not isinstance(weight, DTensor) or not isinstance(bias, DTensor):
        return not isinstance(weight, DTensor) and not isinstance(bias, DTensor)
    return weight.device_mesh == bias.device_mesh and tuple(weight.placements) == tuple(bias.placements)


def groups_of(model: object, group: dist.ProcessGroup | DeviceMesh | None) -> Groups:
    """Return the groups of a model's ranks, given that of the data-parallel dimensions.

    With a DeviceMesh, all dimensions of the mesh that it was sliced from hear of errors; otherwise those that the
    model's parameters are divided over.
    """
    if isinstance(group, DeviceMesh):
        root = group._get_root_mesh()
        whole = group.ndim > 1 and group.size() == dist.get_world_size()
        data = dist.group.WORLD if whole else (group if group.ndim == 1 else group._flatten()).get_group()
        dims = [root.get_group(dim) for dim in range(root.ndim)]
    else:
        data, dims = group, []
    if not isinstance(model, nn.Module) or (data is not None and dist.get_rank(data) < 0):
        return Groups(data)
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            dims += [parameter.device_mesh.get_group(dim) for dim in range(parameter.device_mesh.ndim)]
    members, found = set(ranks_of(data)), dict[tuple[int, ...], dist.ProcessGroup]()
    for each in dims:
        ranks = ranks_of(each)
        if len(ranks) > 1 and len(members & set(ranks)) == 1:
            found.setdefault(ranks, each)
    return Groups(data, tuple(found.values()))


def ranks_of(group: Group) -> tuple[int, ...]:
    """Return a group's ranks, as numbered in the default group."""
    return tuple(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))


def is_divided(model: nn.Module) -> bool:
    """Return whether a model has distributed tensors."""
    return any(isinstance(tensor, DTensor) for tensor in model.parameters()) or bool(blocks_of(model))


def blocks_of(model: nn.Module) -> list[FSDPModule]:
    """Return the modules that `fully_shard` was called on."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def check_division(model: nn.Module, group: Group) -> None:
    """Check that LowRank can exchange the gradients of a model over a group.

    Raises:
        UserError: a mesh has ranks in the group that it should not have, or the reverse; a hook or a sparse gradient of
            a gathered parameter would be lost. Names the parameter.
    """
    members, managed = set(ranks_of(group)), _gathered_over(model)
    sparse = {m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            continue
        data = managed.get(parameter, set())
        mesh = parameter.device_mesh
        for dim in range(mesh.ndim):
            ranks = ranks_of(mesh.get_group(dim))
            listed = ", ".join(map(str, ranks))
            if ranks in data and not set(ranks) <= members:
                problem = f"{name} is sharded by fully_shard over ranks {listed}, which are not all in the group"
                raise _of_mesh(name, f"{problem} {sorted(members)}")
            if ranks not in data and len(ranks) > 1 and len(set(ranks) & members) > 1:
                problem = f"{name} is divided over ranks {listed}, but not by fully_shard, and these are in the group"
                raise _of_mesh(name, f"{problem} {sorted(members)}")
        if data and has_hooks(parameter):
            problem = f"{name} has a hook on its gradient, which fully_shard drops: remove the hook"
            raise UserError(problem, code="hook-lost", field=name)
        if parameter in sparse:
            problem = f"{name} is divided between ranks and has sparse gradients: expected sparse=False"
            raise UserError(problem, code="sparse-divided", field=name)


def _of_mesh(name: str, problem: str) -> UserError:
    remedy = 'pass the mesh\'s data-parallel dimensions, and no others, such as group=mesh["data"]'
    return UserError(f"{problem}: {remedy}", code="mesh-does-not-fit", field=name)


def _gathered_over(model: nn.Module) -> dict[nn.Parameter, set[tuple[int, ...]]]:
    """Return the ranks of the dimensions that `fully_shard` has divided each parameter over."""
    found = dict[nn.Parameter, set[tuple[int, ...]]]()
    for each in _managed(model):
        mesh = each.mesh_info.mesh
        found[each.sharded_param] = {ranks_of(mesh.get_group(dim)) for dim in range(mesh.ndim)}
    return found


def _managed(model: nn.Module) -> list[FSDPParam]:
    """Return what `fully_shard` knows of each parameter."""
    return [each for block in blocks_of(model) for group in _groups_of(block) for each in group.fsdp_params]


def _groups_of(block: FSDPModule) -> list[FSDPParamGroup]:
    return block._get_fsdp_state()._fsdp_param_groups


class Division:
    """A model's division between ranks; made at all ranks at the same time.

    Args:
        model: to train.
        group: the data-parallel ranks.
        start: whether all take the values of its first rank.

    Attributes:
        parts: by parameter name.
        divided: whether passes have collectives of their own, so that all ranks take part in each.
    """

    def __init__(self, model: nn.Module, group: Group, *, start: bool) -> None:
        self._blocks = blocks_of(model)
        policies = {group: group.mp_policy for block in self._blocks for group in _groups_of(block)}
        self._restore = weakref.finalize(self, _exchange_again, self._blocks, policies)
        self._restore.atexit = False
        for block in self._blocks:
            block.reshard()
        own = dict(model.named_parameters())
        managed = _gathered_over(model)
        cuts = {name: _cuts(p, managed.get(p, set())) for name, p in own.items()}
        self.divided = is_divided(model)
        self.parts = {name: Part(p, p) for name, p in own.items() if not cuts[name] and p not in managed}
        for block in self._blocks:
            with _gathering(block):
                for name, parameter in model.named_parameters():
                    if parameter is not own[name]:
                        self.parts[name] = part = Part(own[name], parameter, cuts[name])
                        if start and math.prod(number for _, number, _ in part.cuts) < len(ranks_of(group)):
                            _broadcast(local(parameter.detach()), group)
                            with torch.no_grad():
                                local(part.own).copy_(part.kept(local(parameter)))
        for group_, policy in policies.items():  # a `reduce_dtype` would move gradients out of `.grad`
            group_.mp_policy = replace(policy, reduce_dtype=None)
            group_._init_mp_dtypes()
        self.hold()
        self.parts = {name: self.parts[name] for name in own}
        if start:
            plain = [part for part in self.parts.values() if part.own is part.whole]
            for tensor in (*(part.own for part in plain), *model.buffers()):
                _broadcast(local(tensor.detach()), group)
            for each in groups_of(model, group).others:
                for part in plain:
                    if not isinstance(part.own, DTensor):
                        _broadcast(part.own.detach(), each)

    @property
    def passing(self) -> dict[str, nn.Parameter]:
        """The parameters in passes."""
        return {name: part.whole for name, part in self.parts.items()}

    def follow(self) -> None:
        """Freeze and unfreeze gathered parameters as the model's."""
        for part in self.parts.values():
            part.whole.requires_grad_(part.own.requires_grad)

    def hold(self) -> None:
        """Let the next passes leave gathered parameters' gradients in `.grad`, as they are.

        Loops that accumulate gradients ask for an exchange in the last of several passes.
        """
        for block in self._blocks:
            block.set_requires_gradient_sync(False, recurse=False)

    def again(self, model: nn.Module, group: Group) -> Division:
        """Return the division of the model as it is now, in place of this one."""
        self.close()  # first: it would undo what the next one changes
        return Division(model, group, start=False)

    def close(self) -> None:
        """Let `fully_shard` exchange gradients again."""
        self._restore()


def _exchange_again(blocks: Sequence[FSDPModule], policies: Mapping[FSDPParamGroup, MixedPrecisionPolicy]) -> None:
    for block in blocks:
        block.set_requires_gradient_sync(True, recurse=False)
    for group, policy in policies.items():
        group.mp_policy = policy
        group._init_mp_dtypes()


def _cuts(parameter: Tensor, ranks: set[tuple[int, ...]]) -> tuple[Cut, ...]:
    """Return how `fully_shard` divides a parameter over its dimensions with these ranks."""
    if not isinstance(parameter, DTensor):
        return ()
    mesh, found = parameter.device_mesh, []
    for dim, placement in enumerate(parameter.placements):
        axis: int | None = getattr(placement, "dim", None)  # also that of strided shards, which are no Shard
        if ranks_of(mesh.get_group(dim)) in ranks and axis is not None:
            found.append((axis, mesh.size(dim), mesh.get_local_rank(dim)))
    return tuple(found)


@contextmanager
def _gathering(block: FSDPModule) -> Iterator[None]:
    block.unshard()
    try:
        yield
    finally:
        block.reshard()


def _broadcast(tensor: Tensor, group: Group) -> None:
    """Copy the first rank's tensor to all ranks of a group, in place."""
    sent = tensor.to(device_of(group)).contiguous()
    dist.broadcast(sent.reshape(-1).view(torch.uint8), group=group, group_src=0)  # no backend has all dtypes
    tensor.copy_(sent)


def agreed(flags: Sequence[int], others: Sequence[dist.ProcessGroup]) -> Sequence[int]:
    """Return the largest of all ranks' flags, if those of the data-parallel ranks are equal."""
    for group in others:
        found = torch.tensor(flags, device=device_of(group))
        dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
        flags = found.tolist()
    return flags
