"""Joint work of a site's ranks: each runs the trainer, and computes its part of every batch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdad.common import __version__
from rankdad.common.collectives import all_gather_bytes, all_gather_equal, all_gather_rows, broadcast_bytes, device_of
from rankdad.common.data import SiteData
from rankdad.common.errors import SpecError, UserError
from rankdad.common.lowrank.factors import Factor, Matrix, concatenate
from rankdad.common.lowrank.routes import Payload
from rankdad.common.models.vit import Block
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.local.config import Parallel, SiteConfig
from rankdad.local.ranks.alone import Alone
from rankdad.local.ranks.group import Ranks

OTHERS = {
    "parallel": 'another "parallel"',
    "gpu": "another device",
    "rankdad": "another version of rankdad",
    "torch": "another version of torch",
    "policy": "another policy",
    "plan": "another model",
    "data": "other data",
}


class Sharing(Alone):
    """One of several ranks of a site.

    Args:
        ranks: of the site.
        config: of the site.

    Attributes:
        mesh: of the ranks.

    Raises:
        SpecError: `parallel` is a mesh of another number of ranks.
    """

    def __init__(self, ranks: Ranks, config: SiteConfig) -> None:
        self._ranks, self._config, self.mesh = ranks, config, config.mesh(ranks.size)
        self.rank, self.size = ranks.rank * self.mesh.batches // ranks.size, self.mesh.batches

    def together(self) -> AbstractContextManager[None]:
        """Return a context for joint work of all ranks; see `Ranks.together`."""
        return self._ranks.together()

    def share(self, message: bytes | None = None, *, patiently: bool = False) -> bytes | None:
        """Return rank 0's message at all ranks; None stays None."""
        with self.together():
            if patiently:
                self._ranks.barrier()
            return broadcast_bytes(message or b"") or None

    def pause(self, saves: bool = False, stopped_by: int = 0) -> tuple[bool, int]:
        """Return at all ranks whether they save their state before a step, and the signal that stops them there."""
        saving, number = self.share(bytes((saves, stopped_by)) if saves or stopped_by else None) or (0, 0)
        return bool(saving), number

    def replica(self, spec: RunSpec, plan: Plan, data: SiteData, replica: Replica) -> Replica:
        """Return the shared replica, whole or in rows, after checking that run, data and model are equal.

        Raises:
            SpecError: ranks cannot share a batch of this model, or the model itself.
            UserError: they differ; names the first rank that does.
        """
        check_model(replica.model)
        with self.together():
            self._compare(plan, data)
            mesh = self._ranks.connect(self.mesh)
            if mesh is None:
                return replica
            from rankdad.local.ranks.divided import DividedReplica, check_divided

            check_divided(spec, self._config, has_own_gpu=self._ranks.has_own_gpu)
            return DividedReplica(spec, replica.model, mesh)

    def checkpoints(self, folder: Path, plan: Plan, owner: str, data: SiteData) -> Checkpoints:
        """Return the site's checkpoints in a folder, which ranks share if they divide the weights."""
        from rankdad.local.ranks.checkpoints import SharedCheckpoints  # takes 0.7 s, which one rank does not need

        divided, digest = self.mesh.is_divided, data.sha256()
        return SharedCheckpoints(self._ranks, folder, plan, owner, data_sha256=digest, divided=divided)

    def _compare(self, plan: Plan, data: SiteData) -> None:
        own = {"rankdad": __version__, "torch": str(torch.__version__), "plan": plan.sha256(), "data": data.sha256()}
        own["policy"] = Policy.read(self._config.policy).text()
        own |= {"parallel": self.mesh.model_dump_json(), "gpu": str(self._ranks.has_own_gpu)}
        first, *others = map(json.loads, all_gather_bytes(json.dumps(own).encode()))
        for rank, theirs in enumerate(others, 1):
            other = next((key for key in OTHERS if theirs[key] != first[key]), None)
            if other is not None:
                raise UserError(
                    f"rank {rank}: has {OTHERS[other]} than rank 0: all ranks of a site need the same files and "
                    "software",
                    code="ranks-disagree",
                )

    def pooled(self, payload: Payload, loss: float) -> tuple[Payload, float]:
        """Return the gradients of the whole batch and its loss; see `pooled`."""
        return pooled(payload, loss, self._ranks.group) if self.size > 1 else (payload, loss)

    def gathered(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the rows of all ranks in order, and the position of this rank's first row; numbers may differ."""
        if self.size < 2:
            return rows, 0
        each = all_gather_rows(rows, self._ranks.group)
        return torch.cat(each), sum(map(len, each[: self.rank]))


def pooled(payload: Payload, loss: float, group: dist.ProcessGroup | None = None) -> tuple[Payload, float]:
    """Return the gradients of the whole batch and its loss: rows of factors are gathered, matrices summed.

    A weight that one rank has used outside its layer is a matrix at all of them.

    Args:
        payload: this rank's share of the gradients of the batch's mean loss, in the plan's order.
        loss: this rank's share of that loss.
        group: the process group; None for the default one.
    """
    rows = [value.rows if isinstance(value, Factor) else -1 for value in payload]
    table = all_gather_equal(torch.tensor([loss, *rows], dtype=torch.float64), group)
    is_dense = (table[:, 1:].amin(dim=0) < 0).tolist()
    factors, matrices = list[Factor](), list[Tensor]()
    for value, dense in zip(payload, is_dense, strict=True):
        if dense:
            matrices.append(value.gradient() if isinstance(value, Factor) else value)
        else:
            assert isinstance(value, Factor)
            factors.append(value)
    counts = [[int(row) for row, dense in zip(each, is_dense, strict=True) if not dense] for each in table[:, 1:]]
    found = [iter(_stacked(factors, counts, group)), iter(_sums(matrices, group))]
    whole: list[Matrix] = [next(found[dense]) for dense in is_dense]
    return tuple(whole), sum(table[:, 0].tolist())


def _stacked(factors: list[Factor], counts: list[list[int]], group: dist.ProcessGroup | None) -> list[Factor]:
    """Return factors with the rows of all ranks, in the order of ranks.

    Args:
        factors: of this rank.
        counts: rows of every factor, for each rank.
        group: the process group.
    """
    if not any(map(sum, counts)):
        return factors
    own = torch.cat([array.reshape(-1) for factor in factors for array in (factor.delta, factor.activation)])
    parts = list[list[Factor]]()
    for flat, rows in zip(all_gather_rows(own, group), counts, strict=True):
        shapes = [(n, width) for n, factor in zip(rows, factors, strict=True) for width in factor.shape]
        arrays = _pieces(flat, shapes)
        parts.append([Factor(*pair) for pair in zip(arrays[::2], arrays[1::2], strict=True)])
    return [concatenate(of_ranks) for of_ranks in zip(*parts, strict=True)]


def _sums(matrices: list[Tensor], group: dist.ProcessGroup | None) -> list[Tensor]:
    """Return the sums of all ranks' matrices."""
    if not matrices:
        return []
    flat = torch.cat([matrix.reshape(-1) for matrix in matrices])
    total = flat.to(device_of(group))
    dist.all_reduce(total, group=group)
    return _pieces(total.to(flat.device), [matrix.shape for matrix in matrices])


def _pieces(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    pieces = flat.split([math.prod(shape) for shape in shapes])
    return [piece.view(tuple(shape)) for piece, shape in zip(pieces, shapes, strict=True)]


def check_model(model: nn.Module) -> None:
    """Check that the gradients of a batch are the sum of those of its parts.

    Raises:
        SpecError: a layer uses statistics of the whole batch.
    """
    for name, module in model.named_modules():
        whole = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if whole or (isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats):
            raise SpecError(
                "model",
                f"{name or 'the model'} ({type(module).__name__}) uses statistics of a whole batch, and each rank sees "
                "only a part: start this site without torchrun, or choose GroupNorm or LayerNorm",
                code="batch-statistics",
            )


def check_mesh(spec: RunSpec, config: SiteConfig, model: nn.Module) -> None:
    """Check that ranks could share a run's model as a site's file says, before any of them is started.

    Raises:
        SpecError: they could not.
    """
    mesh = config.parallel if isinstance(config.parallel, Parallel) else Parallel(shard=2 - (config.parallel == "data"))
    if config.parallel != "data":
        check_model(model)
    if mesh.is_divided:
        from rankdad.local.ranks.divided import check_divided
        from rankdad.local.ranks.pipeline import check_stages
        from rankdad.local.ranks.tensor import pairs

        check_divided(spec, config, has_own_gpu=True)
        if mesh.tensor > 1:
            pairs(spec, model, mesh.tensor)
        if mesh.pipeline > 1:
            check_stages(spec, sum(isinstance(module, Block) for module in model.modules()), mesh.pipeline)
