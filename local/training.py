"""The trainer: a generator that yields contributions and receives updates. It does no I/O.

Drivers carry the messages: over HTTP, in a platform's iterations, or in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.errors import RunFailedError, counted
from rankdad.common.lowrank.reduction.feedback import Residuals, plus
from rankdad.common.methods import MethodState
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_replica
from rankdad.common.preparation import Fit, OwnFit
from rankdad.common.privacy.standing import Place, Places, arrived
from rankdad.common.protocol.messages import Ask, Body, Failure, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.comparison import Comparison
from rankdad.common.rounds.evaluation import PooledMetrics
from rankdad.common.rounds.step import Step, check_weight
from rankdad.common.run.state import RunState
from rankdad.common.run.weight_sketch import furthest
from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.common.staleness import Sent, assumed, residuals_after, settle
from rankdad.local.catching_up import CatchingUp, Steps
from rankdad.local.contributions import Contributions
from rankdad.local.local_steps import Moments
from rankdad.local.observer import Observer
from rankdad.local.passes import Passes
from rankdad.local.privacy.cells import StepNumbers
from rankdad.local.ranks.alone import Alone
from rankdad.local.references import References

MUCH = 0.1  # share of a batch's tokens that training may do without, unsaid


@dataclass
class TrainingState:
    """The state of a site, as saved in checkpoints.

    Args:
        site: its name in the plan.
        run: state of the run, with the site's replica.
        residuals: what error feedback keeps for the next step, by parameter.
        moments: of the site's own optimizer, for local steps.
        follows: whether the site has lost its residuals. It then only applies updates until it has caught up, because
            it cannot repeat its earlier contributions.
        sent: contributions to steps that have left the site out, and may join a later one.
        places: weights at which batches have been sent, and how many.
        order: the epoch, and the seed of its batches.
    """

    site: str
    run: RunState
    residuals: Residuals = field(default_factory=dict)
    moments: Moments = field(default_factory=dict)
    follows: bool = False
    sent: tuple[Sent, ...] = ()
    places: Places = ()
    order: tuple[int, Mapping[str, int]] = -1, MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a site.

    Args:
        best: weights of the epoch with the best validation metric.
        final: weights after the last step.
        best_epoch: counted from 0.
        epochs: how many were trained.
        test: metrics of the best weights over all sites' test samples, in the last fold.
        weights_sha256: digest of every site's final weights.
        fit: statistics for the last fold's preparation from all sites' samples.
        own: statistics from this site's samples alone.
    """

    best: dict[str, Tensor]
    final: dict[str, Tensor]
    best_epoch: int
    epochs: int
    test: PooledMetrics
    weights_sha256: dict[str, str]
    fit: Fit
    own: OwnFit


def train(
    spec: RunSpec,
    plan: Plan,
    data: SiteData,
    state: TrainingState,
    policy: Policy,
    observer: Observer | None = None,
    *,
    ranks: Alone | None = None,
    again: bool = False,
) -> Generator[Message | Ask, Message | None, Result]:
    """Train a site's replica, fold after fold, from the given state on.

    Args:
        spec: the run.
        plan: made from the spec and the replica's initial weights.
        data: the site's samples.
        state: changed in place, and the replica with it.
        policy: of the site: limits on rows of a step, and on weights that it takes over.
        observer: callbacks.
        ranks: that share the site's batches; by default the site has one process.
        again: whether the run has begun at this site before; the caller ensures that updates are the same.

    Yields:
        Contributions, and receives the update of the same round; or the number of a round that may be complete, and
        receives its update or None.

    Returns:
        The trained weights and the pooled test metrics.

    Raises:
        RunFailedError: the aggregator reports that a site failed.
        NonFiniteError: the loss is NaN or infinite.
        PolicyError: steps have too few of this site's samples, or the aggregator's weights differ too much.
        ProtocolError: an update is not of the round that is due.

    Source: arXiv 2102.09631, Algorithm 1 (a site's part).
    """
    observer = observer or Observer()
    references = References(spec, data, state.run, state.site, observer.notice)
    index = plan.sites.index(state.site)
    passes = Passes(spec, plan, data, state.run, index, ranks, policy.sharing, policy.min_rows)
    contributions = Contributions(
        spec,
        plan,
        data,
        state.run,
        index,
        passes.prepared,
        observer.tested,
        references.outputs,
        retain=policy.retain,
        again=again,
    )
    numbers = StepNumbers.of(policy, spec, plan, data)
    trainer = _Trainer(spec, plan, passes, contributions, state, policy, numbers, observer)
    with (ranks or Alone()).together():
        return (yield from trainer.run(references.advance))


class _Trainer:
    """Compute what is due, and catch up first if the run is ahead of this site.

    A site may be behind when it starts, and after an update that left it out. It then asks before each round whether
    the round is complete. If so, its contribution is no longer awaited. If the update leaves it out, it keeps its
    residuals. If the update or a later one includes it, the site has crashed since, and repeats the contribution for
    the residuals.
    """

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        passes: Passes,
        contributions: Contributions,
        state: TrainingState,
        policy: Policy,
        numbers: StepNumbers,
        observer: Observer,
    ) -> None:
        self.spec, self.plan, self.policy, self.numbers = spec, plan, policy, numbers
        self.passes, self.contributions = passes, contributions
        self.state, self.site_run, self.observer = state, state.run, observer
        self.projects = spec.training.sends_projections and any(route.projected for route in plan.routes)
        self.index = plan.sites.index(state.site)
        self.catching_up = CatchingUp(self.index, plan.staleness)

    def run(self, beside: Callable[[], None]) -> Steps[Result]:
        run = self.site_run
        if run.roster:
            self.contributions.check_roster(self.policy, anew=False)
        compared = False
        while (due := run.due) is not None:
            if due.kind in (Kind.COMPARISON, Kind.STEP) and not compared:
                self.observer.between_steps()
            compared = due.kind is Kind.COMPARISON
            known = yield from self._ask()
            if due.kind is Kind.STEP:
                told = self.passes.unknown is not None
                yield from self._step(known)
                if not told:
                    self._note_unknown()
                if known is None:
                    beside()
                continue
            body = None
            if known is None or due.split == "test":  # a site that comes late, too, has its predictions
                body = self.contributions.body(due, counts=known is None)
            self._follow(known or (yield self._message(body)))
            if due.kind is Kind.HELLO:
                self.contributions.check_roster(self.policy, anew=True)
            elif due.stage is not None:
                self.contributions.check_totals(due.stage)
        if self.passes.evened:
            self.observer.notice(
                f"{self.state.site}: in {counted(self.passes.evened, 'step')} a few patients caused more than "
                f"1/{self.policy.sharing} of the loss's gradient, and were scaled down to that (min_level): the model "
                "was certain of nearly all others"
            )
        if self.passes.divided:
            self.observer.notice(
                f"{self.state.site}: in {counted(self.passes.divided, 'gradient')} of a layer one patient had more "
                f"than 1/{self.policy.sharing} of a unit, or most of a sum of units, and was scaled down (min_level)"
            )
        assert run.test is not None
        assert run.farewell is not None
        outcome = (run.progress.best_epoch, run.epoch, run.test, run.farewell.weights_sha256)
        prepared = self.passes.prepared()
        best, final = (run.replica.gathered(own) for own in (run.best_weights, run.replica.weights()))
        return Result(best, final, *outcome, prepared.transform.fit, prepared.transform.own)

    def _note_unknown(self) -> None:
        """Note how much of a batch's texts training does not see; the aggregator does not learn it."""
        texts, share = self.passes.unknown or (0, 0.0)
        if share > MUCH:
            self.observer.notice(
                f"{self.state.site}: of the tokens in a batch of {texts} texts, {share:.0%} became the unknown one or "
                f"were cut, since fewer than {self.policy.min_rows} patients there have them (min_rows): a larger "
                "training.batch_size, or a tokenizer of fewer tokens, leaves more to learn from"
            )

    def _step(self, known: Message | None) -> Steps[None]:
        """Take one optimizer step. A site that is out of data contributes no rows, but counts as present."""
        run, reads = self.site_run, True
        if self.state.order[0] != self.passes.epoch:
            self._start_epoch()
        self._look()
        if known is not None and (self.state.follows or self.index in known.missing):
            joins = not self.state.follows and (yield from self.catching_up.joins(known))
            reads = joins is not False  # otherwise its gradients are not awaited, and it only applies the update
            if self.state.follows and self.index not in known.missing:  # the step includes it already
                reads = not (yield from self.catching_up.is_complete(known, len(self.plan.exchanges)))
            known = None if joins is None else known  # if it is unknown, it sends again
        batch = self.passes.batch(self.state.order[1], reads=reads)
        self.observer.lap("begin")
        seed = derive(self.plan.seed, "site", self.index, run.rng_key)
        weight = run.weight(self.index) if len(batch) else 0.0
        share, counted = run.share(self.index, weight), weight
        before = assumed(self.state.residuals, self.state.sent)
        state = MethodState(before, run.bases)
        # With local steps, as little as one batch may count: limits apply to each.
        most = self.numbers.rows(self.passes.behind_step)
        most = most if most is None else most - self.projects
        own, moments = self.passes.step(batch, self.state.moments)
        self.observer.lap("compute")
        exchange = run.method.step(own.gradients, share, state, seed, most)
        body = Step(weight, own.loss, own.norm, next(exchange), own.projections)
        missing = set[int]()
        while True:
            self.observer.lap("reduce")
            update = known or (yield self._message(replace(body, weight=weight)))
            answer = self._checked(update)
            assert update is not None
            assert isinstance(answer, Step)
            missing |= update.missing
            check_weight(run, update, missing)
            if self.index in update.missing or not answer.weight:
                weight = 0.0  # left out of one exchange, a site is in no later one of the step
            try:
                body = replace(body, payload=exchange.send(answer.payload), projections=())
            except StopIteration as stop:
                part, left = (weight / answer.weight / share if weight else 0.0), stop.value.residuals
                residuals = residuals_after(self.state.residuals, before, left, part)
                if part not in (0, 1):  # sums would let residuals grow from step to step
                    residuals = run.method.compacted(residuals)
                break
            self._follow(update)
            known = yield from self._ask()
        self.state.residuals = residuals
        if self.plan.staleness:
            assert update is not None
            settled = settle(self.state.residuals, self.state.sent, update.late, answer.weight, self.index, run)
            self.state.residuals, self.state.sent = settled
            if share and not weight:  # late, it may join a later step
                late = Sent(run.replica.step, counted, share, plus(left, before, -1.0))
                self.state.sent = (*self.state.sent, late)
        if weight:  # left out, it repeats the next step from the same residuals
            self.state.moments = moments
        self.observer.lap("reduce")
        self._follow(update)
        self.observer.lap("end")

    def _drawn(self, first: int, last: int) -> int:
        """Return how many steps have other patients, or other weights, each time."""
        run = self.site_run
        whole = run.samples(self.index)
        return sum(any(0 < size < whole for size in step) for step in run.batches(self.index)[first:last])

    def _start_epoch(self) -> None:
        """Draw the epoch's seed, and note its beginning; the log has the beginnings of trainings."""
        here = self.passes.start(self.contributions.known(self.policy, self.state.places))
        self.state.order = self.passes.epoch, here.drawn
        if self._drawn(0, len(self.site_run.batches(self.index))):
            self.state.places = arrived(self.state.places, here)
            if here.first:
                self.contributions.note_place(self.state.places[-1])

    def _look(self) -> None:
        """Count a stretch of steps at the weights of one of them, for this run and later ones.

        Raises:
            PolicyError: too many have been sent at nearly these weights.
        """
        stretch, at = self.contributions.stretch(self.policy)
        drawn = self._drawn(stretch.start, stretch.stop)
        step = self.site_run.step
        lost = not any(place.steps for place in self.state.places)  # counts restart after a loss
        if not drawn or (step != at and not (lost and step > at)):
            return
        here = Place(self.site_run.replica.sketch(), drawn, self.passes.flows(), drawn=self.state.order[1])
        self.state.places = arrived(self.state.places, here)
        largest = max(map(sum, self.site_run.batches(self.index)))
        self.contributions.check_standing(self.policy, self.state.places, self.numbers.sent(largest))
        self.contributions.note_place(self.state.places[-1])

    def _ask(self) -> Steps[Message | None]:
        known = yield from self.catching_up.ask(self.site_run.round)
        self.state.follows = self.state.follows and self.catching_up.behind
        return known

    def _message(self, body: Body | None) -> Message:
        due = self.site_run.due
        assert due is not None
        assert body is not None
        return Message(due.kind, due.round, body, due.exchange)

    def _checked(self, update: Message | None) -> Body:
        """Return the body of an update, if it fits what is due."""
        assert update is not None
        if isinstance(update.body, Failure):
            failed = update.body
            raise RunFailedError(failed.site, failed.reason, code=failed.code, field=failed.field)
        self.site_run.check(update, 502)
        return update.body

    def _follow(self, update: Message | None) -> None:
        body, fold = self._checked(update), self.site_run.fold
        assert update is not None
        if isinstance(body, Comparison) and body.replica:
            self._check_replica(body.replica)
        self.catching_up.note(update)
        self.site_run.follow(update)
        if self.site_run.fold != fold:
            self.state.residuals, self.state.moments, self.state.sent = {}, {}, ()
        self.observer.followed(body)

    def _check_replica(self, weights: dict[str, Tensor]) -> None:
        """Check the weights that the aggregator gives to all, and report that they are taken over.

        Raises:
            PolicyError: they differ too much from this site's.
        """
        self.site_run.replica.check_parameters(weights)
        name, apart = furthest(self.site_run.replica.parameters(), weights)
        check_replica(self.policy, self.spec, self.state.site, name, apart)
        self.observer.notice(
            f"{self.state.site}: takes over the aggregator's weights after step {self.site_run.steps}: those of {name} "
            f"differ from its own by {apart:.3g} of their size, the others by no more"
        )
