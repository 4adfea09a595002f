"""The state of a run: the result of its updates on the initial replica, and the next round.

The schedule of a run is defined only here. The trainer computes the round that is due, and the aggregator accepts no
other. The aggregator's replica, late sites and `rankdad export` apply the same updates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from rankdad.common.errors import ProtocolError
from rankdad.common.lowrank.routes import Payload, scatter
from rankdad.common.methods import Method
from rankdad.common.preparation import Preparing
from rankdad.common.projections import Projections
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.base import Due
from rankdad.common.rounds.evaluation import PooledMetrics
from rankdad.common.rounds.goodbye import Farewell
from rankdad.common.rounds.registry import ROUNDS, due_of
from rankdad.common.run.batches import MAX_STEPS, Schedule, drawn_sizes, idle, largest_sizes, schedule
from rankdad.common.run.replica import Replica, copies
from rankdad.common.run.snapshot import Progress, check_progress, under
from rankdad.common.run.study import Study, limited
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import LOWER_IS_BETTER
from rankdad.common.staleness import Late, after_step, check_late, damped

MAX_WEIGHT = 1e15  # of an exact solution, so that a site cannot make another's outputs infinite


class RunState:
    """Follow a run by its updates.

    Args:
        spec: the run.
        plan: of the run.
        replica: with the initial weights; changed in place.

    Attributes:
        spec: the run.
        plan: of the run.
        preparing: its preparation.
        progress: of the run.
        initial: the initial weights of every fold, if they are needed again.
        exact: whether the model is solved exactly, without steps.
        totals: sums of preparation stages over all sites, float64 [folds, …] by stage.
        excluded: indices of the sites that an exchange of this step has left out.
        bases: directions of the last step's update, by parameter, to start the next reduction from.
        validation: pooled metrics of the last epoch.
        buffers_pooled: whether this epoch's buffers have been pooled.
        decides: whether the next round decides about the epoch.
        pairs: whether the next round compares the tested models.
        test: pooled metrics of the best epoch's weights, in the last tested fold.
        best_weights: weights of the best epoch so far.
        epochs: largest number in this fold's training.
        farewell: the last update.
    """

    def __init__(self, spec: RunSpec, plan: Plan, replica: Replica) -> None:
        self.replica = replica
        self.method: Method = spec.method.method(plan.routes, replica.model, spec.seed)
        self.spec, self.plan, self.preparing = spec, plan, Preparing(spec)
        self._updates: list[Payload] = []  # of the step's exchanges so far
        self._projections: tuple[Projections, ...] = ()  # of the step so far
        self.excluded: frozenset[int] = frozenset()
        self.buffers_pooled = False  # of this epoch
        self._first = self._schedule = Schedule((), (), (), 0)  # of the fold's first epoch, and of this one
        self.initial = replica.weights() if spec.folds > 1 or spec.references else {}
        self.progress = Progress()
        self.exact = self.decides = self.pairs = False
        self.epochs = spec.training.epochs
        self.totals: dict[str, Tensor] = {}
        self.bases: Mapping[str, Tensor] = {}
        self.validation: PooledMetrics | None = None
        self.test: PooledMetrics | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.farewell: Farewell | None = None

    @property
    def due(self) -> Due | None:
        """The next round; None at the end of the run."""
        return due_of(self)

    def next(
        self,
        kind: Kind,
        *,
        epoch: int | None = None,
        stage: str | None = None,
        split: Literal["validation", "test"] | None = None,
    ) -> Due:
        """Return the next round, of this kind."""
        here = self.round, len(self._updates), self.fold
        return Due(kind, *here, self.epoch if epoch is None else epoch, stage, split)

    def check(self, message: Message, status: int) -> None:
        """Refuse a message of another round than the one due, with a status; see `Due.check`."""
        due = self.due
        if due is None or message.round != due.round:
            expected = "none: the run has ended" if due is None else f"round {due.round}"
            raise ProtocolError(
                status, f"r: got round {message.round}, expected {expected}", code="round-unexpected", field="r"
            )
        due.check(message, status)
        check_late(self.progress.left_out, message.late, self.plan.sites)
        ROUNDS[due.kind].agrees(self, message, status)

    @property
    def between_steps(self) -> bool:
        """Whether a run can be resumed from a snapshot taken now: not within a step or the end of an epoch."""
        due = self.due
        if due is None or due.exchange or not self.trains:
            return False
        ends = due.kind is Kind.EVALUATION and not self.buffers_pooled
        return ends or due.kind in (Kind.COMPARISON, Kind.STEP, Kind.BUFFERS)

    @property
    def round(self) -> int:
        """Number of the next round."""
        return self.progress.round

    @property
    def roster(self) -> tuple[tuple[int, ...], ...]:
        """Training samples of every fold and site, in the plan's order; empty before hello."""
        return self.progress.roster

    @property
    def epoch(self) -> int:
        """Epoch of the next step."""
        return self.progress.epoch

    @property
    def step(self) -> int:
        """Index of the next step within its epoch."""
        return self.progress.step

    @property
    def steps(self) -> int:
        """Optimizer steps done, over all folds."""
        return self.progress.steps

    @property
    def rng_key(self) -> str:
        """Key of the next round's seeds: the fold, and the round within it, independent of earlier folds' length."""
        within = str(self.round - self.progress.study.began)
        return f"{self.fold}/{within}" if self.fold else within

    @property
    def stage(self) -> str | None:
        """Name of the next preparation stage; None if there is none left."""
        due = (one.name for one in self.plan.stages if self.preparing.is_due(one.name, exact=self.exact))
        return next((name for name in due if name not in self.totals), None)

    @property
    def where(self) -> str:
        """Current epoch and number of epochs, as text; "" before hello."""
        if self.exact:
            return "solved exactly, without steps"
        return f"epoch {min(self.epoch + 1, self.epochs)} of {self.epochs}" if self.roster else ""

    @property
    def fold(self) -> int:
        """Number of the current training, from 0."""
        return self.progress.study.fold

    @property
    def over(self) -> bool:
        """Whether all trainings are done and tested."""
        return self.fold == self.spec.folds

    @property
    def trains(self) -> bool:
        """Whether there are epochs left to train in this fold."""
        ready = bool(self.roster) and self.stage is None and not self.over
        return ready and not self.exact and self.epoch < self.epochs and not self.progress.stopped

    def totals_of(self, fold: int) -> dict[str, Tensor]:
        """Return the totals of preparation stages for one fold."""
        return {name: total[fold] for name, total in self.totals.items()}

    @property
    def comparison_due(self) -> bool:
        """Whether the weights are compared before the next step."""
        every, step = self.spec.federation.compare_every, self.replica.step
        return bool(every and step and step % every == 0 and self.progress.compared != step)

    def batch_sizes(self, site: int, fold: int) -> list[int]:
        """Return the sizes of a site's batches in a fold's first epoch; later ones are not smaller."""
        return drawn_sizes(self.spec, self.roster[fold])[site]

    def largest_batches(self, site: int, fold: int) -> list[int]:
        """Return the sizes of a site's batches in the epochs of a fold with the largest ones."""
        return largest_sizes(self.spec, self.roster[fold])[site]

    def batches(self, site: int) -> list[list[int]]:
        """Return the sizes of a site's batches in each step of this epoch; empty for steps without data."""
        return self._schedule.batches[site]

    def next_batches(self, site: int) -> list[int]:
        """Return the sizes of a site's batches in the next step."""
        batches = self.batches(site)
        return batches[self.step] if self.step < len(batches) else []

    def samples(self, site: int) -> int:
        """Return the number of a site's training samples in this epoch."""
        return self.roster[self.fold][site] if any(map(sum, self.batches(site))) else 0

    def weight(self, site: int, ago: int = 0) -> float:
        """Return the weight of a site's samples in the next step, or in one `ago` steps before; 0 without data."""
        step = self.step - ago if ago <= self.step else (self.step - ago) % self._schedule.steps
        batches = self.batches(site)
        return sum(batches[step]) * self._schedule.weights[site] if step < len(batches) else 0.0

    @property
    def batches_per_step(self) -> int:
        """Largest number of batches in a step with local steps; 1 if every batch is exchanged."""
        return max(map(max, filter(None, self._first.counts)))

    def next_batch(self, site: int) -> tuple[int, int]:
        """Return the number of a site's next batch within the fold, and batches per epoch, for learning rates.

        Every epoch counts as many as the first, which has most.
        """
        total = sum(self._first.counts[site])
        return self.epoch * total + sum(self._schedule.counts[site][: self.step]), total

    def share(self, site: int, weight: float) -> float:
        """Return a site's share of the next step's weight, assuming the participants of the last step."""
        missing = {place for place in self.progress.missing if place != site}
        return weight / (self.weight_without(missing) + self.progress.late) if weight else 0.0

    def late_weight(self, late: Collection[Late]) -> float:
        """Return the weight of contributions to earlier steps in the next one."""
        return math.fsum(damped(self.weight(place, age), age) for age, place in late)

    def weight_without(self, missing: Collection[int]) -> float:
        """Return the weight of all sites but the missing ones in the next step."""
        return sum(self.weight(site) for site in range(len(self.plan.sites)) if site not in missing)

    @property
    def has_steps(self) -> bool:
        """Whether the current epoch has steps left."""
        return self.trains and self.step < self._schedule.steps

    @property
    def epochs_since_best(self) -> int:
        """Epochs since the best one, including the one that ends now; 0 if it is the best."""
        value, best = self._value(), self.progress.best_value
        if value is None or best is None:
            return 0
        improves = value < best if self.spec.training.monitor in LOWER_IS_BETTER else value > best
        return 0 if improves else self.progress.stale + 1

    def note(self, **changes: Any) -> None:
        """Change fields of the run's progress."""
        self.progress = self.progress.model_copy(update=changes)

    def follow(self, update: Message) -> None:
        """Apply the update of the next round.

        Raises:
            ProtocolError: it is not due, or does not fit this run.
        """
        self.check(update, 502)
        ROUNDS[update.kind].apply(self, update)
        self.note(round=self.round + 1)

    def add_up(self, stage: str, total: Tensor) -> None:
        """Store the totals of a preparation stage; remaining stages of a converged solution are skipped."""
        self.totals[stage] = total
        for name in self.preparing.solving.converged(self.totals_of(self.plan.folds - 1)):
            self.totals[name] = total.new_zeros(self.plan.folds, self.plan.stage_size(name))
        self._solve()

    def exchange(self, update: Message, payload: Payload, projections: tuple[Projections, ...]) -> None:
        """Apply one exchange of a step; after the last one, the step."""
        self._updates.append(payload)
        self._projections += projections
        self.excluded |= update.missing
        if len(self._updates) == len(self.plan.exchanges):
            self._finish_step(update)

    def set_roster(self, roster: tuple[tuple[int, ...], ...]) -> None:
        """Set all sites' training samples, for every fold.

        Raises:
            ProtocolError: a run cannot train on them.
        """
        for site, most in zip(self.plan.sites, map(max, zip(*roster, strict=True)), strict=True):
            if most > MAX_STEPS * self.spec.at(site).training.step_size:
                raise ProtocolError(
                    502,
                    f"train: got {most} samples, more than {MAX_STEPS} steps an epoch",
                    code="too-many-steps",
                    field="train",
                )
        if problem := idle(self.spec, roster):
            raise ProtocolError(502, f"train: {problem}", code="preparation-impossible", field="train")
        self.note(roster=roster)
        self._begin()

    def _begin(self, weights: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Start or resume a fold, with its settings."""
        settings, self.epochs = self.progress.study.settings(self.spec)
        routes = limited(self.plan.routes, settings.method)
        self.method = settings.method.method(routes, self.replica.model, settings.seed)
        self.replica.restart(settings.training, weights)
        self._first = schedule(self.spec, self.roster[self.fold], 0)
        self.replica.steps_per_epoch = self._first.steps
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        """Compute the epoch's batches; some sites may train only in the first epochs."""
        federation, first = self.spec.federation, self._first
        same = all(federation.trains(site, self.epoch) == federation.trains(site, 0) for site in federation.sites)
        self._schedule = first if same else schedule(self.spec, self.roster[self.fold], self.epoch)

    def next_fold(self) -> None:
        """Restart from the initial weights, unless this was the last fold."""
        best = self.progress.best_value, self.progress.best_epoch
        study = self.progress.study.following(self.spec, best, self.round + 1, self.steps)
        if study.fold == self.spec.folds:
            self.note(study=study)
            return
        self.progress = self.progress.at(study)
        self.validation, self.best_weights, self.bases = None, {}, {}
        self._begin(self.initial)
        self._solve()

    def _solve(self) -> None:
        """Load the weights of an exact solution, once all sums are there."""
        if self.exact and self.stage is None:
            found = self.preparing.solving.solution(self.totals_of(self.fold))
            values = (value.clamp(-MAX_WEIGHT, MAX_WEIGHT) for value in found)
            self.replica.load(dict(zip(self.replica.trained, values, strict=True)))
            self.best_weights = self.replica.weights()

    def skip_to(self, fold: int) -> None:
        """Start with another fold than the first, after preparation; folds do not depend on earlier ones."""
        self.note(study=Study(fold=fold, began=self.round if fold else 0, equal=self.progress.study.equal))
        self._begin()
        self._solve()

    def _finish_step(self, update: Message) -> None:
        staleness, late = self.spec.federation.staleness, self.late_weight(update.late)
        left_out = after_step(self.progress.left_out, update.round, update.missing, update.late, staleness)
        pooled = self.method.gradients(self._updates)
        self.bases = self.method.bases(self._updates)
        names = (slot.name for exchange in self.plan.exchanges for slot in exchange.down.projections)
        number = self.epoch * self._first.steps + self.step
        gradients = scatter(self.plan.routes, pooled, self.replica.kept)
        self.replica.apply(gradients, dict(zip(names, self._projections, strict=True)), number)
        self._updates, self._projections, self.excluded = [], (), frozenset()
        missing = tuple(sorted(update.missing))
        self.note(step=self.step + 1, steps=self.steps + 1, missing=missing, left_out=left_out, late=late)

    def end_epoch(self, *, best: bool, stop: bool) -> None:
        """Store the weights if they are the best so far, and continue with the next epoch."""
        changes: dict[str, Any] = {"stale": self.epochs_since_best, "stopped": stop, "epoch": self.epoch + 1, "step": 0}
        if best:
            changes |= {"best_value": self._value(), "best_epoch": self.epoch}
            self.best_weights = self.replica.weights()
        self.decides = self.buffers_pooled = False
        self.note(**changes)
        self._begin_epoch()

    def _value(self) -> float | None:
        return None if self.validation is None else self.validation.values.get(self.spec.training.monitor)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name; with `progress`, they suffice to resume the run. See `Replica.spread`."""
        assert self.between_steps
        named = {f"replica/{name}": value for name, value in self.replica.state().items()}
        named |= {f"best/{name}": value for name, value in self.replica.spread(self.best_weights).items()}
        named |= {f"total/{name}": value for name, value in self.totals.items()}
        # Copies, because a view would keep a whole received update in memory.
        return named | copies({f"basis/{name}": value for name, value in self.bases.items()})

    def load(self, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of a run between two steps.

        Raises:
            ValueError: it does not fit this run; see `check_progress`.
            RuntimeError, KeyError: the tensors do not fit this replica.
        """
        check_progress(self.spec, self.plan, self.replica.shapes(), progress, tensors)
        self.progress = progress
        self.totals = under("total", tensors)
        self.set_roster(progress.roster)
        self.replica.load_state(under("replica", tensors), progress.steps - progress.study.before)
        self.best_weights = self.replica.parts(under("best", tensors))
        device = self.replica.device
        self.bases = {name: value.to(device) for name, value in under("basis", tensors).items()}
