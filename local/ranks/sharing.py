"""How ranks share a site's work: rank 0 runs the trainer, and has the others compute their parts and follow updates.

Between two of these they wait for what rank 0 says next: the first byte is the order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rankdad.common import __version__
from rankdad.common.collectives import all_gather_rows, broadcast_bytes, gather_bytes
from rankdad.common.errors import SpecError, UserError
from rankdad.common.lowrank.routes import Payload
from rankdad.common.protocol.messages import Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.batches import batch_sizes, parts
from rankdad.common.run.checkpoints import pack_state
from rankdad.common.run.replica import Replica, copies, pack_parameters
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.local.data import SiteData
from rankdad.local.ranks import gradients as of_ranks
from rankdad.local.ranks.alone import Alone
from rankdad.local.ranks.group import Ranks

START, FOLLOW, STEP, END = b"A", b"F", b"S", b"E"
OTHERS = {
    "parallel": 'another "parallel"',
    "gpu": "another device",
    "rankdad": "another version of rankdad",
    "torch": "another version of torch",
    "plan": "another model",
    "data": "other data",
}


class Sharing(Alone):
    """What every rank of a site does of a step.

    Args:
        ranks: of the site.
        config: the site's own file.

    Attributes:
        join: does what rank 0 needs this rank for, where the replica is sharded.
    """

    def __init__(self, ranks: Ranks, config: SiteConfig) -> None:
        self._ranks, self._config = ranks, config
        self._trained: Mapping[str, Tensor] = {}
        self.join: Callable[[bytes], None] = lambda order: None

    @property
    def key(self) -> tuple[int, ...]:
        """Ranks other than 0 draw their own numbers: no two parts of a batch have the same dropout masks."""
        return (self._ranks.rank,) if self._ranks.rank else ()

    def summon(self, order: bytes) -> AbstractContextManager[None]:
        """Return a context for what needs all ranks; see `ShardedReplica`. Only rank 0 gives orders."""
        return nullcontext()

    def state(self, spec: RunSpec, plan: Plan, replica: Replica) -> RunState:
        """Return the state of a run at its beginning, of a replica that is sharded if the site's file says so."""
        if self._config.parallel == "fsdp":
            from rankdad.local.ranks.sharded import ShardedReplica

            sharded = ShardedReplica(spec, replica.model, self._ranks.group, self.summon)
            replica, self.join = sharded, sharded.join
        self._trained = replica.trained
        return self._made(spec, plan, replica)

    def _made(self, spec: RunSpec, plan: Plan, replica: Replica) -> RunState:
        """Return the state that follows updates."""
        return RunState(spec, plan, replica)

    def compare(self, spec: RunSpec, plan: Plan, data: SiteData, model: nn.Module) -> None:
        """Check that all ranks have the same model and the same data, and can share batches of them.

        Raises:
            SpecError: ranks cannot share a batch of this model, or the model itself.
            UserError: they have others; names the first rank that has.
        """
        check_model(model)
        config = self._config
        own = {"rankdad": __version__, "torch": str(torch.__version__), "plan": plan.sha256(), "data": data.sha256()}
        own |= {"parallel": config.parallel, "gpu": str(self._ranks.has_own_gpu)}
        for rank, said in enumerate(gather_bytes(json.dumps(own).encode())):
            theirs = json.loads(said)
            other = next((key for key, value in own.items() if theirs[key] != value), None)
            if other is not None:
                raise UserError(
                    f"rank {rank}: has {OTHERS[other]} than rank 0: all ranks of a site read the same files, on "
                    "machines set up alike",
                    code="ranks-disagree",
                )
        if config.parallel == "fsdp":
            from rankdad.local.ranks.sharded import check_sharded

            check_sharded(spec, config.name, config.device, has_own_gpu=self._ranks.has_own_gpu)
        broadcast_bytes(b"")  # rank 0 agrees
        self._ranks.connect()

    def alike(self, samples: Sequence[int], largest: int) -> bool:
        """Tell whether all ranks divide their parts of batches into as many parts: the first has most samples."""
        sizes = [parts(count, self._ranks.size) for count in samples]
        return all(len(batch_sizes(each[0], largest)) == len(batch_sizes(each[-1], largest)) for each in sizes)

    def part(self, rows: Tensor) -> Tensor:
        """Return which of a batch's samples are this rank's part: none if there are more ranks than samples."""
        mine: Tensor = rows.split(parts(len(rows), self._ranks.size))[self._ranks.rank]
        return mine

    def pooled(self, payload: Payload, loss: float) -> tuple[Payload, float] | None:
        """Return the gradients of the whole batch and its loss at rank 0, and None at the others."""
        return of_ranks.pooled(payload, loss, self._ranks.group)

    def summed(self, gradients: Mapping[str, Tensor], loss: float) -> tuple[Mapping[str, Tensor], float]:
        """Return the gradients of the whole batch by parameter and its loss, the same at all ranks."""
        return of_ranks.summed(gradients, loss, self._trained, self._ranks.group)

    def gathered(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the rows of all ranks, in their order, and where this rank's begin; their numbers may differ."""
        each = all_gather_rows(rows, self._ranks.group)
        return torch.cat(each), sum(map(len, each[: self._ranks.rank]))


class Leader(Sharing):
    """Rank 0: whatever it does not do by itself fails with the name of the rank that could not go on."""

    def __init__(self, ranks: Ranks, config: SiteConfig) -> None:
        super().__init__(ranks, config)
        self._digest: Callable[[], str] = str
        self._in_step = False  # with the others, which need no orders
        self._answers: dict[int, bytes] = {}  # of the aggregator, by round, until they are followed

    @contextmanager
    def summon(self, order: bytes) -> Iterator[None]:
        """Have the others join what needs all ranks, unless they come to it by themselves."""
        with self._ranks.together():
            if order and not self._in_step:
                broadcast_bytes(order)
            yield

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Do what all ranks do at the same time."""
        self._in_step = True
        with self._ranks.together():
            yield
        self._in_step = False

    def introduce(self, offered: Mapping[str, Any]) -> None:
        """Tell all ranks which run the aggregator offers."""
        self._tell(json.dumps(offered).encode())

    def state(self, spec: RunSpec, plan: Plan, replica: Replica) -> RunState:
        """Return the state of a run at its beginning, whose updates all ranks follow."""
        with self.in_step():
            run = super().state(spec, plan, replica)
        self._digest = run.replica.digest
        return run

    def _made(self, spec: RunSpec, plan: Plan, replica: Replica) -> RunState:
        """Return the state that follows updates, and has the others follow them."""
        return _LeadingState(spec, plan, replica, self)

    def compare(self, spec: RunSpec, plan: Plan, data: SiteData, model: nn.Module) -> None:
        """Check that all ranks have the same model and the same data, and can share batches of them."""
        with self._ranks.together():
            super().compare(spec, plan, data, model)

    def start(self, run: RunState) -> None:
        """Let all ranks start from where a run stands."""
        if run.between_steps:
            self._tell(START + pack_state(run))

    def hear(self, round_: int, answer: bytes) -> None:
        """Take note of the aggregator's answer in a round: an update that may be followed later."""
        self._answers[round_] = answer

    def begin(self, moments: Mapping[str, Tensor]) -> None:
        """Let all ranks compute their part of the next step, with these moments of the site's own optimizer."""
        self._tell(STEP + pack_parameters(copies(moments)))

    def pooled(self, payload: Payload, loss: float) -> tuple[Payload, float] | None:
        """Return the gradients of the whole batch and its loss."""
        with self._ranks.together():
            return super().pooled(payload, loss)

    def summed(self, gradients: Mapping[str, Tensor], loss: float) -> tuple[Mapping[str, Tensor], float]:
        """Return the gradients of the whole batch by parameter and its loss, the same at all ranks."""
        with self._ranks.together():
            return super().summed(gradients, loss)

    def gathered(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the rows of all ranks, in their order, and where this rank's begin; their numbers may differ."""
        with self._ranks.together():
            return super().gathered(rows)

    def end(self) -> None:
        """Let all ranks end: the run is over."""
        self._tell(END + (b"" if self._config.parallel == "fsdp" else self._digest().encode()))

    def lead(self, update: Message) -> None:
        """Let all ranks follow an update; answers to earlier rounds are not needed any more."""
        self._tell(FOLLOW + self._answers[update.round])
        self._answers = {round_: answer for round_, answer in self._answers.items() if round_ > update.round}

    def _tell(self, message: bytes) -> None:
        with self._ranks.together():
            broadcast_bytes(message)


class _LeadingState(RunState):
    """The state of a run at rank 0: all other ranks follow what it follows, at the same time.

    Args:
        spec, plan, replica: as `RunState` has them.
        leader: has the others follow an update.
    """

    def __init__(self, spec: RunSpec, plan: Plan, replica: Replica, leader: Leader) -> None:
        super().__init__(spec, plan, replica)
        self._leader = leader

    def follow(self, update: Message) -> None:
        """Apply the update of the next round, here and at all other ranks."""
        self.check(update, 502)
        self._leader.lead(update)
        with self._leader.in_step():
            super().follow(update)


def check_model(model: nn.Module) -> None:
    """Check that the gradients of a batch are those of its parts added up.

    Raises:
        SpecError: statistics of the whole batch go into a layer.
    """
    for name, module in model.named_modules():
        whole = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if whole or (isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats):
            raise SpecError(
                "model",
                f"{name or 'the model'} ({type(module).__name__}) has statistics of a whole batch, of which each rank "
                "sees a part: start this site without torchrun, or choose GroupNorm or LayerNorm",
                code="batch-statistics",
            )
