"""The plan: everything that all agree on before the first round, including the layout of every payload.

It depends only on the spec and the initial model, so that sites and aggregator compute it independently and compare
digests. One synthetic batch on a copy of the model shows whether a layer's factor covers its weight.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import nn

from rankdad.common import __version__
from rankdad.common.lowrank.layout import Exchange, MessageLayout, with_projections
from rankdad.common.lowrank.routes import Route
from rankdad.common.metrics.tally_codec import tally_bytes
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.arrays import BufferSlot
from rankdad.common.protocol.routing import choose_routes
from rankdad.common.protocol.versions import WIRE
from rankdad.common.rounds.scores import scores_shape
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import TaskSpec
from rankdad.common.tensors import saved_buffers, weights_sha256


@dataclass(frozen=True)
class StageSize:
    """A round of preparation: its name, and the number of its sums per fold."""

    name: str
    size: int


@dataclass(frozen=True)
class Plan:
    """The plan, compared by digest in the hello round.

    Args:
        version: of rankdad; not in the digest, because all versions of a wire make the same plan.
        protocol: number of the wire, see `common.protocol.versions`.
        torch: version of torch's numerics.
        spec_sha256: digest of the spec.
        weights_sha256: digest of the initial weights.
        sites: names in the order of concatenation.
        seed: of all random numbers.
        threads: of tensor operations.
        wire: number format.
        routes: of every trained parameter, in the model's order.
        exchanges: of one step, with their layouts.
        buffers: of the model, in its order.
        task: what is predicted.
        grouped: whether samples have groups, so that tests are also summed over groups.
        folds: number of trainings.
        stages: names and sizes of the sums for preparation in every fold.
        references: reference models of a test, besides a guess.
        staleness: steps by which a contribution may be late.
        dense_bytes: size of one full gradient in float32, as sent by dsgd.
        replica_bytes: largest size of a replica's state: weights, buffers and moments.
        warnings: layers that look like factors but are not, one sentence each.
    """

    version: str
    protocol: int
    torch: str
    spec_sha256: str
    weights_sha256: str
    sites: tuple[str, ...]
    seed: int
    threads: int
    wire: str
    routes: tuple[Route, ...]
    exchanges: tuple[Exchange, ...]
    buffers: tuple[BufferSlot, ...]
    task: TaskSpec
    grouped: bool
    folds: int
    stages: tuple[StageSize, ...]
    references: tuple[str, ...]
    staleness: int
    dense_bytes: int
    replica_bytes: int
    warnings: tuple[str, ...]

    def __hash__(self) -> int:
        """Return a fast hash, for caches by plan."""
        return hash((self.spec_sha256, self.weights_sha256))

    @property
    def factor_names(self) -> frozenset[str]:
        """Names of the weights with captured factors."""
        return frozenset(route.name for route in self.routes if route.captured)

    def layout(self, exchange: int, *, up: bool) -> MessageLayout:
        """Return the layout of a message in a step's exchange."""
        return self.exchanges[exchange].up if up else self.exchanges[exchange].down

    def stage_size(self, name: str) -> int:
        """Return the number of sums per fold in a preparation stage.

        Raises:
            ValueError: the run has no such stage.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage.size
        raise ValueError(f"there is no preparation stage {name[:40]!r}")

    @property
    def buffer_bytes(self) -> int:
        """Size of the model's buffers, in bytes."""
        return sum(buffer.size for buffer in self.buffers)

    @property
    def control_bytes(self) -> int:
        """Largest size of the numbers in a message other than a step: buffers, counts, sums, or tallies."""
        counts = 4 * self.folds * max(3, len(self.sites))
        sums = 8 * self.folds * max((stage.size for stage in self.stages), default=0)
        most = tally_bytes(self.task) + (1 + len(self.references)) * tally_bytes(self.task, self.grouped)
        return max(self.buffer_bytes, counts, sums, most, 4 * math.prod(scores_shape(self)))

    def document(self) -> dict[str, object]:
        """Return the plan as JSON, with its own digest."""
        return {**self._plain(), "sha256": self.sha256()}

    def _plain(self) -> dict[str, object]:
        return {**asdict(self), "task": self.task.model_dump(mode="json")}

    def sha256(self) -> str:
        """Return the digest of the plan's JSON form, without the version."""
        agreed = {name: value for name, value in self._plain().items() if name != "version"}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()


def make_plan(spec: RunSpec, model: nn.Module) -> Plan:
    """Make the plan from the spec and the initial model.

    Raises:
        SpecError: the model does not accept the data's shape or does not return logits of the task's classes, or the
            method does not fit it.
    """
    spec.method.check_model(model)
    routes, warnings = choose_routes(spec, model)
    exchanges = spec.method.exchanges(routes, len(spec.federation.sites))
    preparing = Preparing(spec)
    return Plan(
        version=__version__,
        protocol=WIRE,
        torch=torch.__version__.split("+")[0],
        spec_sha256=spec.sha256(),
        weights_sha256=weights_sha256(model.state_dict()),
        sites=spec.federation.sites,
        seed=spec.seed,
        threads=spec.training.threads,
        wire=spec.method.wire,
        routes=routes,
        exchanges=with_projections(exchanges, routes) if spec.training.sends_projections else exchanges,
        buffers=tuple(
            BufferSlot(name, str(buffer.dtype).removeprefix("torch."), tuple(buffer.shape))
            for name, buffer in saved_buffers(model).items()
        ),
        task=spec.task,
        grouped=spec.grouped,
        folds=spec.folds,
        references=spec.references,
        staleness=spec.federation.staleness,
        stages=tuple(StageSize(name, preparing.size(name)) for name in preparing.stages),
        dense_bytes=4 * sum(p.numel() for p in model.parameters() if p.requires_grad),
        replica_bytes=_replica_bytes(model),
        warnings=warnings,
    )


def _replica_bytes(model: nn.Module) -> int:
    tensors = model.state_dict().values()
    moments: int = sum(2 * p.numel() * p.element_size() + 8 for p in model.parameters() if p.requires_grad)
    values: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return 4096 + 1024 * len(tensors) + values + moments
