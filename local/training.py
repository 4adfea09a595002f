"""The trainer: a generator that yields contributions and is sent updates. It has no I/O of its own.

Whatever carries the messages, HTTP, a platform's iterations or a loop in one process, is a short driver around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from common import __version__
from common.arrays import pack_counts, pack_sums
from common.capture import FactorCapture
from common.course import Course, batch_sizes
from common.errors import (
    ModelError,
    NonFiniteError,
    ProtocolError,
    RankdadError,
    RunFailedError,
    UserError,
)
from common.factors import norm
from common.messages import (
    Ask,
    Body,
    Buffers,
    Comparison,
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
    Sketch,
    Step,
    Sums,
)
from common.methods import State
from common.plan import Plan
from common.policy import Policy
from common.preparation import Fit, OwnFit, Preparing
from common.protocol import pack_buffers
from common.reduction.feedback import Residuals, mixed
from common.replica import saved_buffers
from common.routes import Payload, gather
from common.seeds import derive
from common.spec import RunSpec
from local.admission import check_steps
from local.data import Samples, SiteData
from local.data.prepared import Prepared, Split, prepare
from local.evaluation import outputs_of, packed_baseline, packed_tally
from local.losses import mean_loss

B = TypeVar("B", bound=Body)
R = TypeVar("R")
Exchange = Generator[Message | Ask, Message | None, R]
Lap = Callable[[str], None]
Tested = Callable[[int, Tensor], None]


@dataclass
class TrainingState:
    """Where a site stands: all that it needs to go on.

    Args:
        site: its name in the plan.
        course: of the run, with the site's replica.
        residuals: what error feedback keeps for the next step, by parameter.
        follows: whether the site has lost its residuals, and only follows until it is where the run is: what it has
            sent before is in the updates, and cannot be made again.
    """

    site: str
    course: Course
    residuals: Residuals = field(default_factory=dict)
    follows: bool = False


@dataclass(frozen=True, eq=False)
class Result:
    """What a site ends with.

    Args:
        best: weights of the epoch with the best validation metric.
        final: weights after the last step.
        best_epoch: counted from 0.
        epochs: how many were trained.
        test: metrics of the best weights over all sites' test samples; of several folds, of the last.
        weights_sha256: digest of every site's final weights.
        fit: what the last fold's preparation has found in all sites' samples.
        own: what it has found in this site's alone.
    """

    best: dict[str, Tensor]
    final: dict[str, Tensor]
    best_epoch: int
    epochs: int
    test: Pooled
    weights_sha256: dict[str, str]
    fit: Fit
    own: OwnFit


def train(
    spec: RunSpec,
    plan: Plan,
    data: SiteData,
    state: TrainingState,
    policy: Policy,
    lap: Lap = lambda name: None,
    between_steps: Callable[[], None] = lambda: None,
    tested: Tested = lambda fold, outputs: None,
    notice: Callable[[str], None] = lambda sentence: None,
) -> Generator[Message | Ask, Message | None, Result]:
    """Train a site's replica, fold after fold, from hello or from wherever its state stands.

    Args:
        spec: the run.
        plan: made from the spec and the replica's initial weights.
        data: the site's samples.
        state: changed in place, and the replica with it.
        policy: of the site: rows of a step, and weights that are taken over.
        lap: told the name of each stretch of work when it ends, for timings.
        between_steps: called before every step: the state is then all that is needed to go on.
        tested: given every fold's outputs for its test samples, [n, outputs], numbers in the label's unit; of a site
            that comes back from a crash maybe twice.
        notice: told what a person at the site should know.

    Yields:
        contributions, and is sent the update of the same round; or the question whether a round is complete already,
        and is sent its update or None.

    Returns:
        The trained weights and the pooled test metrics.

    Raises:
        RunFailedError: the aggregator says that a site could not go on.
        NonFiniteError: the loss is NaN or infinite.
        PolicyError: steps have too few of this site's samples, or the aggregator's weights are too far from its own.
        ProtocolError: an update does not answer the contribution.

    Source: arXiv 2102.09631, Algorithm 1 (a site's part).
    """
    return (yield from _Trainer(spec, plan, data, state, policy, lap, between_steps, tested, notice).run())


class _Trainer:
    """Trains, and catches up first where the run is further than this site.

    A site may be behind when it starts, and when an update has left it out. It then asks before each round whether that
    is complete. If so, its contribution is not wanted any more: if it is not in the update, it applies that with its
    residuals as they are; if it is (it crashed since), it makes the contribution again for the residuals that it left.
    """

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        data: SiteData,
        state: TrainingState,
        policy: Policy,
        lap: Lap,
        between_steps: Callable[[], None],
        tested: Tested,
        notice: Callable[[str], None],
    ) -> None:
        self.spec, self.plan, self.data, self.state, self.policy = spec, plan, data, state, policy
        self.course, self.replica = state.course, state.course.replica
        self.lap, self.between_steps, self.tested, self.notice = lap, between_steps, tested, notice
        self.index = plan.sites.index(state.site)
        self.preparing = Preparing(spec)
        self.behind = True

    def run(self) -> Exchange[Result]:
        course = self.course
        if not course.roster:
            yield from self._exchange(Kind.HELLO, self._hello, Roster)
        found = [train for train, *_ in self._samples()]
        expected = [fold[self.index] for fold in course.roster]
        if found != expected:
            fold_by_fold = ", fold by fold" * (len(found) > 1)
            got, began = (", ".join(map(str, counts)) for counts in (found, expected))
            raise UserError(
                f"data: {got} samples to train on{fold_by_fold}, but this run began with {began}: a site goes on with "
                "the same data"
            )
        sizes = (size for fold in range(self.plan.folds) for size in course.batch_sizes(self.index, fold))
        check_steps(self.policy, self.spec, self.plan, sizes)  # even batches are known only now
        while course.stage is not None:
            sums = yield from self._exchange(Kind.SUMS, self._stage, Sums)
            for total, roster in zip(course.totals[sums.stage], course.roster, strict=True):
                problem = self.preparing.check(sums.stage, total, sum(roster))
                if problem:
                    raise ProtocolError(502, f"d.values: the sites' total of {sums.stage}: {problem}")
        while True:
            try:
                prepared = prepare(self.spec, self.data, course, self.replica)
            except ValueError as error:  # totals lead to no finite numbers
                raise RankdadError(str(error)) from None
            final = yield from self._fold(prepared)
            if course.tested:
                break
        farewell = yield from self._exchange(Kind.GOODBYE, self._goodbye, Farewell)
        assert course.test is not None
        outcome = (course.best_weights, final, course.best_epoch, course.epoch, course.test, farewell.weights_sha256)
        return Result(*outcome, prepared.fit, prepared.own)

    def _fold(self, prepared: Prepared) -> Exchange[dict[str, Tensor]]:
        """Train, and test the best epoch's weights; return the final ones."""
        course, replica = self.course, self.replica
        while course.trains:
            yield from self._epoch(prepared)
            yield from self._end_of_epoch(prepared)
        final = replica.weights()
        replica.load(course.best_weights)
        tallies = self._tallies("test", prepared, course.best_epoch)  # a site that comes late, too, has its predictions
        yield from self._exchange(Kind.EVALUATION, lambda: tallies, Pooled)
        if course.tested:
            replica.load(final)
        return final

    def _samples(self) -> list[tuple[int, int, int]]:
        """Return how many samples each fold trains on, validates and tests with."""
        return [(len(split.train), len(split.validation), len(split.test)) for split in self.data.splits]

    def _hello(self) -> Hello:
        return Hello(
            version=__version__,
            spec_sha256=self.plan.spec_sha256,
            plan_sha256=self.plan.sha256(),
            weights_sha256=self.plan.weights_sha256,
            samples=pack_counts(self._samples()),
            dropped=self.data.dropped,
            warnings=list(self.data.warnings),
        )

    def _stage(self) -> Sums:
        """Return the sums of the next stage of preparation: over the training rows of every fold."""
        course, stage = self.course, self.course.stage
        assert stage is not None
        sums = []
        for fold in range(self.plan.folds):
            rows = self.data.summed(fold)
            try:
                sums.append(self.preparing.contribution(stage, course.totals_of(fold), rows))
            except ValueError as error:
                raise RankdadError(f"preparation: {error}: a number here, or all sites' mean, is too large") from None
        return Sums(stage=stage, values=pack_sums(torch.stack(sums)))

    def _goodbye(self) -> Goodbye:
        return Goodbye(weights_sha256=self.replica.digest(), sketch=self.course.sketch())

    def _epoch(self, prepared: Prepared) -> Exchange[None]:
        course, generator, train = self.course, torch.Generator(), prepared.train
        epoch = course.fold * self.spec.training.epochs + course.epoch
        generator.manual_seed(derive(self.plan.seed, "order", prepared.order_key, epoch))
        order = torch.randperm(len(train), generator=generator)
        batches = order.split(course.batch_sizes(self.index))
        while course.step < self.replica.steps_per_epoch:
            self.between_steps()
            if course.comparison_due:
                yield from self._exchange(Kind.COMPARISON, lambda: Sketch(weights=course.sketch()), Comparison)
            rows = batches[course.step] if course.step < len(batches) else order[:0]
            yield from self._step(prepared, train.take(rows.to(train.labels.device)))

    def _step(self, prepared: Prepared, batch: Samples) -> Exchange[None]:
        """Take one optimizer step; a site that is out of data contributes no rows, and is present."""
        known = yield from self._ask()
        if known is not None and (self.state.follows or self.index in known.missing):
            batch = batch.take(torch.arange(0))  # nobody waits for its gradients: it only follows
        self.lap("begin")
        gradients, loss = self._gradients(batch, prepared.fit.class_weights)
        size = self._size(gradients)
        self.lap("compute")
        seed = derive(self.plan.seed, "site", self.index, self.course.moment)
        share, weight = self.course.share(self.index, len(batch)), float(len(batch))
        state = State(self.state.residuals, self.course.bases)
        exchange = self.course.method.step(gradients, share, state, seed, self.policy.rank(len(batch)))
        payload, phase, missing = next(exchange), 0, set[int]()
        while True:
            self.lap("reduce")
            update = known or (yield self._contribution(Kind.STEP, Step(weight, loss, size, payload), phase))
            body = self._check(update, Kind.STEP, Step)
            assert update is not None
            missing |= update.missing
            self.course.check_weight(update, missing)
            applied = self.course.own_share(self.index, weight, update)
            weight = weight if applied else 0.0  # once left out of a step, it is in none of its exchanges
            try:
                payload, phase = exchange.send(body.payload), phase + 1
            except StopIteration as stop:
                new = stop.value.residuals
                break
            self._follow(update)
            known = yield from self._ask()
        self.state.residuals = mixed(self.state.residuals, new, applied / share if share else 1.0)
        self.lap("reduce")
        self._follow(update)
        self.lap("compute")

    def _size(self, gradients: Payload) -> float:
        """Return the norm of all gradients.

        Raises:
            NonFiniteError: one holds NaN or infinity; names its parameter.
        """
        sizes = [norm(value) for value in gradients]
        for route, size in zip(self.plan.routes, sizes, strict=True):
            if not math.isfinite(size):
                raise NonFiniteError(f"the gradient of {route.name} in step {self.replica.step + 1}")
        return math.hypot(*sizes)

    def _gradients(self, batch: Samples, weights: Tensor | None) -> tuple[Payload, float]:
        """Return the gradients of the batch's mean loss in the plan's order, and that loss."""
        model = self.replica.model.train()
        like = next(model.parameters())
        if not len(batch):
            return gather(self.plan.routes, {}, {}, like), 0.0
        torch.manual_seed(derive(self.plan.seed, "forward", self.index, self.course.moment))
        value = 0.0
        with FactorCapture(model, only=self.plan.factor_names) as capture:
            for part in batch.split(batch_sizes(len(batch), self.spec.training.batch_size)):
                try:
                    loss = self._loss(part, weights) * (len(part) / len(batch))
                    capture.backward(loss)
                except Exception as error:
                    raise ModelError(error) from error
                value += float(loss.detach())
        if not math.isfinite(value):
            raise NonFiniteError(f"the training loss in step {self.replica.step + 1}")
        return gather(self.plan.routes, capture.factors(), capture.dense(), like), value

    def _loss(self, batch: Samples, weights: Tensor | None) -> Tensor:
        kind = batch.labels.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.spec.training.autocast is not None):
            return mean_loss(self.spec.task, self.replica.model(batch.inputs), batch.labels, weights)

    def _end_of_epoch(self, prepared: Prepared) -> Exchange[None]:
        """Average the buffers, evaluate, and decide together whether this was the best epoch and the last."""
        if self.plan.buffers:
            yield from self._exchange(Kind.BUFFERS, lambda: self._buffers(prepared), Buffers)
        epoch = self.course.epoch
        yield from self._exchange(Kind.EVALUATION, lambda: self._tallies("validation", prepared, epoch), Pooled)
        yield from self._exchange(Kind.DECISION, self.course.view, Decision)

    def _buffers(self, prepared: Prepared) -> Buffers:
        values = pack_buffers(saved_buffers(self.replica.model), self.plan)
        return Buffers(samples=len(prepared.train), values=values)

    def _tallies(self, split: Split, prepared: Prepared, epoch: int) -> Evaluation:
        """Return what the model's outputs for a split add up to, and at a test what guesses from the site alone do."""
        task, samples = self.spec.task, getattr(prepared, split)
        outputs = outputs_of(self.replica.model, samples.inputs, task.outputs)
        found, baseline = packed_tally(task, prepared, split, outputs), b""
        if split == "test":
            self.tested(self.course.fold, prepared.in_units(outputs))
            baseline = packed_baseline(task, prepared)
        return Evaluation(split=split, fold=self.course.fold, epoch=epoch, tally=found, baseline=baseline)

    def _exchange(self, kind: Kind, make: Callable[[], Body], answer: type[B]) -> Exchange[B]:
        """Send a contribution, unless its round is complete already; return the body of the round's update."""
        update = yield from self._ask()
        if update is None:
            update = yield self._contribution(kind, make())
        body = self._check(update, kind, answer)
        if isinstance(body, Comparison) and body.replica:
            self._check_replica(body.replica)
        self._follow(update)
        return body

    def _check_replica(self, replica: bytes) -> None:
        """Check the weights that the aggregator gives to all, and say that they are taken over.

        Raises:
            PolicyError: they are too far from this site's own.
        """
        name, apart = self.course.furthest(replica)
        self.policy.check_replica(self.spec, self.state.site, name, apart)
        self.notice(
            f"{self.state.site}: takes over the aggregator's weights after step {self.course.steps}: those of {name} "
            f"are {apart:.3g} of their size from its own, the others no further"
        )

    def _ask(self) -> Exchange[Message | None]:
        """Return the update of the next round if it is complete already; ask only if that may be."""
        if not self.behind:
            return None
        known = yield Ask(self.course.round)
        self.behind = known is not None
        self.state.follows = self.state.follows and self.behind
        return known

    def _contribution(self, kind: Kind, body: Body, phase: int = 0) -> Message:
        return Message(kind, self.course.round, body, phase)

    def _check(self, update: Message | None, kind: Kind, answer: type[B]) -> B:
        """Return the body of an update, if it is that of the next round."""
        assert update is not None
        if isinstance(update.body, Failure):
            raise RunFailedError(update.body.site, update.body.reason)
        if (update.kind, update.round) != (kind, self.course.round) or not isinstance(update.body, answer):
            raise ProtocolError(
                502,
                f"round {self.course.round} asked for {kind.name}, but the aggregator answered with "
                f"{update.kind.name} of round {update.round}",
            )
        return update.body

    def _follow(self, update: Message | None) -> None:
        assert update is not None
        self.behind = self.behind or self.index in update.missing
        fold = self.course.fold
        self.course.follow(update)
        if self.course.fold != fold:
            self.state.residuals = {}
