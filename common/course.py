"""The course of a run: where it stands, as its updates alone tell it. The same at every site and at the aggregator.

All updates, folded over the initial replica, are the model of any step, without any gradient: so the aggregator's own
replica follows, so a site that comes late catches up, and so `rankdad export` rebuilds a model from the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import safetensors.torch
import torch
from pydantic import Field
from torch import Tensor

from common.arrays import unpack_counts, unpack_sums
from common.drift import furthest, sketch
from common.errors import ProtocolError
from common.messages import (
    Buffers,
    Comparison,
    Control,
    Count,
    Decision,
    Farewell,
    Message,
    Pooled,
    Roster,
    Step,
    Sums,
)
from common.methods import method_for
from common.plan import Plan
from common.protocol import unpack_buffers
from common.replica import Replica
from common.routes import Payload, scatter
from common.spec import PowerSgd, RunSpec
from common.tasks import LOWER_IS_BETTER

MOST_STEPS = 1_000_000  # of an epoch: everybody lists every site's
SCALARS = (
    "round",
    "fold",
    "began",
    "before",
    "epoch",
    "step",
    "compared",
    "best_value",
    "best_epoch",
    "stale",
    "stopped",
)


class Standing(Control):
    """Where a run stands between two steps; with the course's tensors, all that is needed to go on.

    `steps` are those of the whole run, all else is named as in `Course`.
    """

    round: Count
    fold: Count
    began: Count
    before: Count
    epoch: Count
    step: Count
    steps: Count
    compared: Count
    roster: Annotated[tuple[tuple[Count, ...], ...], Field(max_length=1001)]
    missing: Annotated[tuple[Count, ...], Field(max_length=1000)]
    best_value: Annotated[float, Field(allow_inf_nan=False)] | None
    best_epoch: Count
    stale: Count
    stopped: bool


class Course:
    """Follow a run by its updates.

    Args:
        spec: the run.
        plan: of the run.
        replica: with the initial weights; changed in place.

    Attributes:
        round: number of the next round.
        roster: training samples of every fold and site, in the plan's order; empty before hello.
        totals: what preparation's stages have added up over sites so far, float64 [folds, …] by stage.
        fold: that is trained now, from 0; as many as there are when all have been tested.
        began: the fold's first round.
        before: steps of the folds before.
        epoch: of the next step.
        step: of the next step, within its epoch.
        missing: places of the sites that the last step left out.
        bases: directions of the last step's update, by parameter: what the next reduction starts from.
        compared: how many of the fold's steps had been done when the weights were compared last.
        validation: pooled metrics of the last epoch.
        decides: whether the next round decides over the epoch.
        test: pooled metrics of the best epoch's weights, of the last fold tested.
        best_value: best validation metric so far; None before the first.
        best_epoch: when that was.
        best_weights: the weights of that epoch.
        stale: epochs since then.
        stopped: whether training has been ended before its last epoch.
        farewell: the last update.
        between_steps: whether neither a step nor the end of an epoch is half done: only then can a run be gone on with.
    """

    def __init__(self, spec: RunSpec, plan: Plan, replica: Replica) -> None:
        self.replica = replica
        self.method = method_for(spec, plan.routes, replica.model)
        self._spec, self._plan = spec, plan
        self._updates: list[Payload] = []  # of the step's exchanges so far
        self._sizes: list[list[int]] = []  # of every site's batches in an epoch
        self._initial = replica.weights() if spec.folds > 1 else {}
        self.round = self.fold = self.began = self.before = 0
        self.epoch = self.step = self.compared = self.best_epoch = self.stale = 0
        self.stopped = self.between_steps = self.decides = False
        self.roster: tuple[tuple[int, ...], ...] = ()
        self.totals: dict[str, Tensor] = {}
        self.missing: frozenset[int] = frozenset()
        self.bases: Mapping[str, Tensor] = {}
        self.validation: Pooled | None = None
        self.test: Pooled | None = None
        self.best_value: float | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.farewell: Farewell | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps done, of all folds."""
        return self.before + self.replica.step

    @property
    def moment(self) -> str:
        """What seeds are derived from: fold and round in it, whenever the folds before have stopped."""
        within = str(self.round - self.began)
        return f"{self.fold}/{within}" if self.fold else within

    @property
    def stage(self) -> str | None:
        """Name of the stage of preparation that is next; None if there is none left."""
        return next((stage.name for stage in self._plan.stages if stage.name not in self.totals), None)

    @property
    def tested(self) -> bool:
        """Whether all folds have been trained and tested."""
        return self.fold == self._plan.folds

    @property
    def trains(self) -> bool:
        """Whether there are epochs left to train in this fold."""
        ready = bool(self.roster) and self.stage is None and not self.tested
        return ready and self.epoch < self._spec.training.epochs and not self.stopped

    def totals_of(self, fold: int) -> dict[str, Tensor]:
        """Return what preparation's stages have added up for one fold."""
        return {name: total[fold] for name, total in self.totals.items()}

    @property
    def comparison_due(self) -> bool:
        """Whether the next round compares the sites' weights."""
        every, step = self._spec.federation.compare_every, self.replica.step
        return bool(every and step and step % every == 0 and self.compared != step)

    def batch_sizes(self, site: int, fold: int | None = None) -> list[int]:
        """Return the sizes of a site's batches in an epoch of a fold, without an argument of this one."""
        roster, largest = self.roster[self.fold if fold is None else fold], self._spec.training.step_size
        most = max(roster) if self._spec.training.batches == "even" else roster[site]
        return parts(roster[site], math.ceil(most / largest))

    def batch_size(self, site: int) -> int:
        """Return how many samples a site has in the next step: 0 if it is out of data."""
        sizes = self._sizes[site]
        return sizes[self.step] if self.step < len(sizes) else 0

    def share(self, site: int, samples: int) -> float:
        """Return the part that a site's samples have in the next step, if the sites of the last one take part."""
        if not samples:
            return 0.0
        taking_part = [i for i in range(len(self._sizes)) if i == site or i not in self.missing]
        return samples / sum(self._sizes[i][self.step] for i in taking_part if self.step < len(self._sizes[i]))

    def check_weight(self, update: Message, missing: Collection[int]) -> None:
        """Check that a step's update is weighted by the samples of the sites that it does not leave out.

        Sites divide by it: with another weight, error feedback would send all that a reduction keeps back.

        Args:
            update: of a step.
            missing: places of the sites that an exchange of this step has left out.

        Raises:
            ProtocolError: it is weighted otherwise.
        """
        assert isinstance(update.body, Step)
        due = sum(self.batch_size(site) for site in range(len(self._sizes)) if site not in missing)
        if update.body.weight != due:
            raise ProtocolError(502, f"m: the weight of the step: got {update.body.weight:g}, expected {due}")

    def own_share(self, site: int, samples: float, update: Message) -> float:
        """Return the part that a site's samples have in a step's update: 0 if it was left out."""
        assert isinstance(update.body, Step)
        present = samples > 0 and site not in update.missing and update.body.weight > 0
        return samples / update.body.weight if present else 0.0

    def view(self) -> Decision:
        """Return what every site says at the end of an epoch: whether it was the best, and whether to stop."""
        stopping = self._spec.training.early_stopping
        stale = self._stale()
        return Decision(epoch=self.epoch, best=stale == 0, stop=bool(stopping and stale >= stopping.patience))

    def sketch(self) -> bytes:
        """Return the sketch of the trained weights."""
        return sketch(dict(self.replica.model.named_parameters()))

    def furthest(self, weights: bytes) -> tuple[str, float]:
        """Return which of a comparison's weights are furthest from the replica's own, and how far; see `common.drift`.

        Raises:
            ProtocolError: they are not those of this model.
        """
        return furthest(dict(self.replica.model.named_parameters()), self._unpacked(weights))

    def _unpacked(self, weights: bytes) -> dict[str, Tensor]:
        own = {name: (value.dtype, value.shape) for name, value in self.replica.model.named_parameters()}
        try:
            found = safetensors.torch.load(weights)
        except (safetensors.SafetensorError, ValueError) as error:
            raise ProtocolError(502, f"d.replica: holds no weights: {error}") from None
        if {name: (value.dtype, value.shape) for name, value in found.items()} != own:
            raise ProtocolError(502, "d.replica: holds other weights than this model has")
        return found

    def follow(self, update: Message) -> None:
        """Apply the update of the next round."""
        body = update.body
        if isinstance(body, Roster):
            self._meet(unpack_counts(body.train, self._plan.folds, len(self._plan.sites)))
        elif isinstance(body, Sums):
            if body.stage != self.stage:
                raise ProtocolError(502, f"d.stage: got {body.stage}, expected {self.stage}")
            self.totals[body.stage] = unpack_sums(body.values, self._plan.folds, self._plan.stage_size(body.stage))
        elif isinstance(body, Step):
            self._updates.append(body.payload)
            if len(self._updates) == len(self._plan.exchanges):
                self._finish_step(update.missing)
        elif isinstance(body, Comparison):
            self.compared = self.replica.step
            if body.replica:
                self.replica.load(self._unpacked(body.replica))
        elif isinstance(body, Buffers):
            self.replica.load(unpack_buffers(body.values, self._plan))
        elif isinstance(body, Pooled):
            if body.fold != self.fold:
                raise ProtocolError(502, f"d.fold: got {body.fold}, expected {self.fold}")
            if body.split == "validation":
                self.validation, self.decides = body, True
            else:
                self.test = body
                self._next_fold()
        elif isinstance(body, Decision):
            self._finish_epoch(body)
        elif isinstance(body, Farewell):
            self.farewell = body
        self.round += 1
        over = isinstance(body, Roster | Sums | Comparison | Decision | Pooled) and not self.decides
        over = over or (isinstance(body, Step) and not self._updates)
        self.between_steps = over and self.trains

    def _meet(self, roster: tuple[tuple[int, ...], ...]) -> None:
        if not all(map(any, roster)):
            raise ProtocolError(502, "train: in one of the folds no site has a sample to train on")
        most = max(map(max, roster))
        if most > MOST_STEPS * self._spec.training.step_size:
            raise ProtocolError(502, f"train: got {most} samples, more than {MOST_STEPS} steps an epoch")
        self.roster = roster
        self._begin()

    def _begin(self) -> None:
        """Begin a fold, or go on with it."""
        self._sizes = [self.batch_sizes(site) for site in range(len(self._plan.sites))]
        self.replica.steps_per_epoch = max(map(len, self._sizes))

    def _next_fold(self) -> None:
        """Begin anew with the initial weights, unless this was the last fold."""
        self.fold += 1
        if self.tested:
            return
        self.began, self.before = self.round + 1, self.steps
        self.replica.restart(self._initial)
        self.epoch = self.step = self.compared = self.best_epoch = self.stale = 0
        self.stopped = False
        self.missing, self.bases = frozenset(), {}
        self.validation, self.best_value, self.best_weights = None, None, {}
        self._begin()

    def _finish_step(self, missing: frozenset[int]) -> None:
        pooled = self.method.gradients(self._updates)
        self.bases = self.method.bases(self._updates)
        self.replica.apply(scatter(self._plan.routes, pooled))
        self._updates, self.missing = [], missing
        self.step += 1

    def _finish_epoch(self, decision: Decision) -> None:
        value, self.stale = self._value(), self._stale()
        if decision.best:
            self.best_value, self.best_epoch = value, self.epoch
            self.best_weights = self.replica.weights()
        self.stopped, self.decides = decision.stop, False
        self.epoch, self.step = self.epoch + 1, 0

    def _value(self) -> float | None:
        return None if self.validation is None else self.validation.values.get(self._spec.monitor)

    def _stale(self) -> int:
        """Return how many epochs ago the best was, this one counted as over: 0 if it is the best."""
        value, best = self._value(), self.best_value
        if value is None or best is None:
            return 0
        improves = value < best if self._spec.monitor in LOWER_IS_BETTER else value > best
        return 0 if improves else self.stale + 1

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all tensors by name, on the CPU: with `standing`, all that is needed to go on."""
        named = {f"replica/{name}": value for name, value in self.replica.state().items()}
        named |= {f"best/{name}": value for name, value in self.best_weights.items()}
        named |= {f"total/{name}": value for name, value in self.totals.items()}
        # Cloned: a part of a received update would take the whole of it along.
        return named | {f"basis/{name}": value.detach().cpu().clone() for name, value in self.bases.items()}

    def standing(self) -> Standing:
        """Return all else. Only between steps."""
        assert self.between_steps
        scalars: dict[str, Any] = {name: getattr(self, name) for name in SCALARS}
        missing = tuple(sorted(self.missing))
        return Standing(**scalars, steps=self.steps, roster=self.roster, missing=missing)

    def load(self, standing: Standing, tensors: Mapping[str, Tensor]) -> None:
        """Go to where a standing and tensors were taken.

        Raises:
            ValueError: folds, sums, best weights or directions are not those of this run.
            RuntimeError, KeyError: the tensors are not those of this replica.
        """
        folds, totals = self._plan.folds, under("total", tensors)
        shapes = {stage.name: (torch.float64, (folds, stage.size)) for stage in self._plan.stages}
        if standing.fold >= folds or [len(fold) for fold in standing.roster] != [len(self._plan.sites)] * folds:
            raise ValueError(f"fold {standing.fold} or its roster is none of this run's {folds} folds")
        if {name: (total.dtype, tuple(total.shape)) for name, total in totals.items()} != shapes:
            raise ValueError("what preparation has added up is not what this run asks for")
        best, bases = under("best", tensors), under("basis", tensors)
        if best and _shapes(best) != _shapes(self.replica.model.state_dict()):
            raise ValueError("the best weights are not those of this model")
        for name, basis in bases.items():
            self._check_basis(name, basis)
        for name in SCALARS:
            setattr(self, name, getattr(standing, name))
        self.totals = totals
        self._meet(standing.roster)
        self.missing = frozenset(standing.missing)
        self.replica.load_state(under("replica", tensors), standing.steps - standing.before)
        self.best_weights = best
        device = next(self.replica.model.parameters()).device
        self.bases = {name: value.to(device) for name, value in bases.items()}
        self.between_steps = True

    def _check_basis(self, name: str, basis: Tensor) -> None:
        most = {route.name: (route.up, route.matrix[1]) for route in self._plan.routes if route.up is not None}
        rows, columns = most.get(name, (0, 0))
        exact = isinstance(self._spec.method, PowerSgd)
        if basis.ndim != 2 or basis.shape[1] != columns or len(basis) > rows or (exact and len(basis) < rows):
            raise ValueError(f"directions of {name}: got {list(basis.shape)}, expected {rows} of {columns} numbers")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def batch_sizes(samples: int, largest: int) -> list[int]:
    """Return the sizes of an epoch's batches: as few as can be, and as equal, so that none is a straggler of one."""
    return parts(samples, math.ceil(samples / largest))


def parts(samples: int, count: int) -> list[int]:
    """Return the sizes of so many parts, as equal as can be, the larger ones first."""
    return [samples // count + (batch < samples % count) for batch in range(count)]


def under(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name begins with `kind/`, by what follows."""
    return {name.removeprefix(f"{kind}/"): value for name, value in tensors.items() if name.startswith(f"{kind}/")}


def packed_weights(replica: Replica) -> bytes:
    """Return a replica's weights as an update carries them.

    Moments stay everywhere as they are: they come of the updates alone, and whoever chose them would choose the next
    step's weights. So do buffers, which each site has of its own until the epoch ends.
    """
    named = replica.model.named_parameters()
    contiguous = torch.contiguous_format
    return safetensors.torch.save({name: value.detach().cpu().clone(memory_format=contiguous) for name, value in named})
