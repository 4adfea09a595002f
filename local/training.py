"""The trainer: a generator that yields contributions and is sent updates. It has no I/O of its own.

Whatever carries the messages, HTTP, a platform's iterations or a loop in one process, is a short driver around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from common import __version__
from common.capture import FactorCapture
from common.errors import ModelError, NonFiniteError, ProtocolError, RunFailedError
from common.factors import norm
from common.messages import (
    Body,
    Buffers,
    Decision,
    Evaluation,
    Failure,
    Farewell,
    Goodbye,
    Hello,
    Kind,
    Message,
    Pooled,
    Roster,
    Step,
)
from common.methods import State, method_for
from common.metrics import Tally, tally
from common.plan import Plan
from common.protocol import pack_buffers, pack_scores, unpack_buffers
from common.replica import Replica, saved_buffers
from common.routes import Payload, gather, scatter
from common.seeds import derive
from common.spec import RunSpec
from local.data import Samples, SiteData

EVALUATION_BATCH = 1024  # samples per forward pass without gradients
B = TypeVar("B", bound=Body)
Exchange = Generator[Message, Message, B]
Lap = Callable[[str], None]


@dataclass
class TrainingState:
    """Where a site stands: with the replica, all that it needs to go on.

    Args:
        site: its name in the plan.
        round: number of the next round.
        epoch: of the next step.
        step: of the next step, within its epoch.
        method: state of the method.
        best_value: best validation metric so far; None before the first.
        best_epoch: when that was.
        best_weights: the weights of that epoch.
        stale: epochs since then.
        roster: training samples of every site; empty before hello.
    """

    site: str
    round: int = 0
    epoch: int = 0
    step: int = 0
    method: State = field(default_factory=State)
    best_value: float | None = None
    best_epoch: int = 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    stale: int = 0
    roster: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Result:
    """What a site ends with.

    Args:
        best: weights of the epoch with the best validation metric.
        final: weights after the last step.
        best_epoch: counted from 0.
        epochs: how many were trained.
        test: metrics of the best weights over all sites' test samples.
        weights_sha256: digest of every site's final weights.
    """

    best: dict[str, Tensor]
    final: dict[str, Tensor]
    best_epoch: int
    epochs: int
    test: Pooled
    weights_sha256: dict[str, str]


def train(
    spec: RunSpec,
    plan: Plan,
    data: SiteData,
    replica: Replica,
    state: TrainingState,
    lap: Lap = lambda name: None,
    between_steps: Callable[[], None] = lambda: None,
) -> Generator[Message, Message, Result]:
    """Train a site's replica, from hello or from wherever its state stands.

    Args:
        spec: the run.
        plan: made from the spec and the replica's initial weights.
        data: the site's samples, on the replica's device.
        replica: changed in place.
        state: changed in place.
        lap: told the name of each stretch of work when it ends, for timings.
        between_steps: called before every step: replica and state are then all that is needed to go on.

    Yields:
        contributions; is sent the update of the same round.

    Returns:
        The trained weights and the pooled test metrics.

    Raises:
        RunFailedError: the aggregator says that a site could not go on.
        NonFiniteError: the loss is NaN or infinite.
        ProtocolError: an update does not answer the contribution.

    Source: arXiv 2102.09631, Algorithm 1 (a site's part).
    """
    return (yield from _Trainer(spec, plan, data, replica, state, lap, between_steps).run())


class _Trainer:
    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        data: SiteData,
        replica: Replica,
        state: TrainingState,
        lap: Lap,
        between_steps: Callable[[], None],
    ) -> None:
        self.spec, self.plan, self.data, self.replica, self.state, self.lap = spec, plan, data, replica, state, lap
        self.between_steps = between_steps
        self.index = plan.sites.index(state.site)
        self.method = method_for(spec, plan.routes, replica.model)
        self.weights: list[int] = []  # of every step in an epoch, all sites together

    def run(self) -> Generator[Message, Message, Result]:
        state, replica = self.state, self.replica
        if not state.roster:
            roster = yield from self._exchange(Kind.HELLO, self._hello(), Roster)
            state.roster = tuple(roster.train)
        sizes = [batch_sizes(samples, self.spec.training.step_size) for samples in state.roster]
        self.weights = [sum(column) for column in zip_longest(*sizes, fillvalue=0)]
        replica.steps_per_epoch = len(self.weights)
        stop = False
        while state.epoch < self.spec.training.epochs and not stop:
            yield from self._epoch()
            stop = yield from self._end_of_epoch()
            state.epoch, state.step = state.epoch + 1, 0
        final = replica.weights()
        replica.load(state.best_weights)
        test = yield from self._evaluate("test", self.data.test, state.best_epoch)
        replica.load(final)
        farewell = yield from self._exchange(Kind.GOODBYE, Goodbye(weights_sha256=replica.digest()), Farewell)
        return Result(state.best_weights, final, state.best_epoch, state.epoch, test, farewell.weights_sha256)

    def _hello(self) -> Hello:
        return Hello(
            version=__version__,
            spec_sha256=self.plan.spec_sha256,
            plan_sha256=self.plan.sha256(),
            weights_sha256=self.plan.weights_sha256,
            train=len(self.data.train),
            validation=len(self.data.validation),
            test=len(self.data.test),
        )

    def _epoch(self) -> Generator[Message, Message, None]:
        generator = torch.Generator().manual_seed(derive(self.plan.seed, "order", self.index, self.state.epoch))
        order = torch.randperm(len(self.data.train), generator=generator)
        batches = order.split(batch_sizes(len(order), self.spec.training.step_size))
        while self.state.step < self.replica.steps_per_epoch:
            self.between_steps()
            rows = batches[self.state.step] if self.state.step < len(batches) else order[:0]
            yield from self._step(self.data.train.take(rows.to(self.data.train.labels.device)))
            self.state.step += 1

    def _step(self, batch: Samples) -> Generator[Message, Message, None]:
        """Take one optimizer step; a site that is out of data contributes no rows, and is present."""
        self.lap("begin")
        gradients, loss = self._gradients(batch)
        sizes = [norm(value) for value in gradients]
        for route, size in zip(self.plan.routes, sizes, strict=True):
            if not math.isfinite(size):
                raise NonFiniteError(f"the gradient of {route.name} in step {self.replica.step + 1}")
        size = math.hypot(*sizes)
        self.lap("compute")
        seed = derive(self.plan.seed, "site", self.index, self.state.round)
        share = len(batch) / self.weights[self.state.step]
        exchange = self.method.step(gradients, share, self.state.method, seed)
        payload, updates = next(exchange), list[Payload]()
        while True:
            self.lap("reduce")
            body = Step(float(len(batch)), loss, size, payload)
            update = yield from self._exchange(Kind.STEP, body, Step, len(updates))
            updates.append(update.payload)
            try:
                payload = exchange.send(update.payload)
            except StopIteration as stop:
                self.state.method = stop.value
                break
        pooled = self.method.gradients(updates)
        self.lap("reduce")
        self.replica.apply(scatter(self.plan.routes, pooled))
        self.lap("compute")

    def _gradients(self, batch: Samples) -> tuple[Payload, float]:
        """Return the gradients of the batch's mean loss in the plan's order, and that loss."""
        model = self.replica.model.train()
        like = next(model.parameters())
        if not len(batch):
            return gather(self.plan.routes, {}, {}, like), 0.0
        torch.manual_seed(derive(self.plan.seed, "forward", self.index, self.state.round))
        value = 0.0
        with FactorCapture(model, only=self.plan.factor_names) as capture:
            for part in batch.split(batch_sizes(len(batch), self.spec.training.batch_size)):
                try:
                    loss = self._loss(part) * (len(part) / len(batch))
                    capture.backward(loss)
                except Exception as error:
                    raise ModelError(error) from error
                value += float(loss.detach())
        if not math.isfinite(value):
            raise NonFiniteError(f"the training loss in step {self.replica.step + 1}")
        return gather(self.plan.routes, capture.factors(), capture.dense(), like), value

    def _loss(self, batch: Samples) -> Tensor:
        kind = batch.labels.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.spec.training.autocast is not None):
            return F.cross_entropy(self.replica.model(batch.inputs), batch.labels)

    def _end_of_epoch(self) -> Generator[Message, Message, bool]:
        """Average the buffers, evaluate, and decide together whether this was the best epoch and the last."""
        state = self.state
        if self.plan.buffers:
            own = Buffers(
                samples=len(self.data.train), values=pack_buffers(saved_buffers(self.replica.model), self.plan)
            )
            average = yield from self._exchange(Kind.BUFFERS, own, Buffers)
            self.replica.load(unpack_buffers(average.values, self.plan))
        pooled = yield from self._evaluate("validation", self.data.validation, state.epoch)
        value = getattr(pooled, self.spec.training.monitor)
        best = value is None or state.best_value is None or self._improves(value, state.best_value)
        stopping = self.spec.training.early_stopping
        stale = 0 if best else state.stale + 1
        own_view = Decision(epoch=state.epoch, best=best, stop=bool(stopping and stale >= stopping.patience))
        decision = yield from self._exchange(Kind.DECISION, own_view, Decision)
        state.stale = stale
        if decision.best:
            state.best_value, state.best_epoch = value, state.epoch
            state.best_weights = self.replica.weights()
        return decision.stop

    def _improves(self, value: float, best: float) -> bool:
        return value < best if self.spec.training.monitor == "loss" else value > best

    def _evaluate(self, split: str, samples: Samples, epoch: int) -> Exchange[Pooled]:
        model = self.replica.model.eval()
        total = tally(torch.empty(0, self.plan.classes), torch.empty(0, dtype=torch.int64))
        with torch.no_grad():
            for at in range(0, len(samples), EVALUATION_BATCH):
                chosen = slice(at, at + EVALUATION_BATCH)
                try:
                    logits = model(samples.inputs[chosen])
                except Exception as error:
                    raise ModelError(error) from error
                total += tally(logits.cpu(), samples.labels[chosen].cpu())
        if not math.isfinite(total.loss):
            raise NonFiniteError(f"the {split} loss")
        return (yield from self._exchange(Kind.EVALUATION, _evaluation(split, epoch, total), Pooled))

    def _exchange(self, kind: Kind, body: Body, answer: type[B], phase: int = 0) -> Exchange[B]:
        """Send a contribution, and return the body of its round's update."""
        update = yield Message(kind, self.state.round, body, phase)
        if isinstance(update.body, Failure):
            raise RunFailedError(update.body.site, update.body.reason)
        if (update.kind, update.round) != (kind, self.state.round) or not isinstance(update.body, answer):
            raise ProtocolError(
                502,
                f"round {self.state.round} asked for {kind.name}, but the aggregator answered with "
                f"{update.kind.name} of round {update.round}",
            )
        self.state.round += 1
        return update.body


def batch_sizes(samples: int, largest: int) -> list[int]:
    """Return the sizes of an epoch's batches: as few as can be, and as equal, so that none is a straggler of one."""
    count = math.ceil(samples / largest)
    return [samples // count + (batch < samples % count) for batch in range(count)]


def _evaluation(split: str, epoch: int, total: Tally) -> Evaluation:
    return Evaluation.model_validate(
        {
            "split": split,
            "epoch": epoch,
            "samples": total.samples,
            "loss": total.loss,
            "correct": total.correct,
            "scores": pack_scores(total.scores),
        }
    )
