"""The course of a run: where it stands, as its updates alone tell it. The same at every site and at the aggregator.

All updates, folded over the initial replica, are the model of any step, without any gradient: so the aggregator's own
replica follows, so a site that comes late catches up, and so `rankdad export` rebuilds a model from the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import safetensors.torch
from pydantic import Field
from torch import Tensor

from common.drift import sketch
from common.errors import ProtocolError
from common.messages import Buffers, Comparison, Control, Count, Decision, Farewell, Message, Pooled, Roster, Step
from common.methods import method_for
from common.plan import Plan
from common.protocol import unpack_buffers
from common.replica import Replica, saved_buffers
from common.routes import Payload, scatter
from common.spec import RunSpec
from common.tasks import LOWER_IS_BETTER

MOST_STEPS = 1_000_000  # of an epoch: everybody lists every site's
SCALARS = ("round", "epoch", "step", "compared", "best_value", "best_epoch", "stale", "stopped")


class Standing(Control):
    """Where a run stands between two steps; with the course's tensors, all that is needed to go on.

    `steps` are those of the whole run, all else is named as in `Course`.
    """

    round: Count
    epoch: Count
    step: Count
    steps: Count
    compared: Count
    roster: Annotated[tuple[Count, ...], Field(max_length=1000)]
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
        roster: training samples of every site, in the plan's order; empty before hello.
        epoch: of the next step.
        step: of the next step, within its epoch.
        missing: places of the sites that the last step left out.
        bases: directions of the last step's update, by parameter: what the next reduction starts from.
        compared: how many steps had been done when the weights were compared last.
        validation: pooled metrics of the last epoch.
        test: pooled metrics of the best epoch's weights.
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
        self.round = self.epoch = self.step = self.compared = self.best_epoch = self.stale = 0
        self.stopped = self.between_steps = False
        self.roster: tuple[int, ...] = ()
        self.missing: frozenset[int] = frozenset()
        self.bases: Mapping[str, Tensor] = {}
        self.validation: Pooled | None = None
        self.test: Pooled | None = None
        self.best_value: float | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.farewell: Farewell | None = None

    @property
    def trains(self) -> bool:
        """Whether there are epochs left to train."""
        return self.epoch < self._spec.training.epochs and not self.stopped

    @property
    def comparison_due(self) -> bool:
        """Whether the next round compares the sites' weights."""
        every, step = self._spec.federation.compare_every, self.replica.step
        return bool(every and step and step % every == 0 and self.compared != step)

    def share(self, site: int, samples: int) -> float:
        """Return the part that a site's samples have in the next step, if the sites of the last one take part."""
        if not samples:
            return 0.0
        taking_part = [i for i in range(len(self._sizes)) if i == site or i not in self.missing]
        return samples / sum(self._sizes[i][self.step] for i in taking_part if self.step < len(self._sizes[i]))

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

    def follow(self, update: Message) -> None:
        """Apply the update of the next round."""
        body = update.body
        if isinstance(body, Roster):
            self._begin(tuple(body.train))
        elif isinstance(body, Step):
            self._updates.append(body.payload)
            if len(self._updates) == len(self._plan.exchanges):
                self._finish_step(update.missing)
        elif isinstance(body, Comparison):
            self.compared = self.replica.step
            if body.replica:
                _take_over(self.replica, body.replica)
        elif isinstance(body, Buffers):
            self.replica.load(unpack_buffers(body.values, self._plan))
        elif isinstance(body, Pooled):
            if body.split == "validation":
                self.validation = body
            else:
                self.test = body
        elif isinstance(body, Decision):
            self._finish_epoch(body)
        elif isinstance(body, Farewell):
            self.farewell = body
        self.round += 1
        over = isinstance(body, Roster | Comparison | Decision) or (isinstance(body, Step) and not self._updates)
        self.between_steps = over and self.trains

    def _begin(self, roster: tuple[int, ...]) -> None:
        if len(roster) != len(self._plan.sites) or not all(roster):
            raise ProtocolError(502, f"train: got {len(roster)} sites' samples, expected {len(self._plan.sites)}")
        if max(roster) > MOST_STEPS * self._spec.training.step_size:
            raise ProtocolError(502, f"train: got {max(roster)} samples, more than {MOST_STEPS} steps an epoch")
        self.roster = roster
        self._sizes = [batch_sizes(samples, self._spec.training.step_size) for samples in roster]
        self.replica.steps_per_epoch = max(map(len, self._sizes))

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
        self.stopped = decision.stop
        self.epoch, self.step = self.epoch + 1, 0

    def _value(self) -> float | None:
        return None if self.validation is None else getattr(self.validation, self._spec.monitor)

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
        # Cloned: a part of a received update would take the whole of it along.
        return named | {f"basis/{name}": value.detach().cpu().clone() for name, value in self.bases.items()}

    def standing(self) -> Standing:
        """Return all else. Only between steps."""
        assert self.between_steps
        scalars: dict[str, Any] = {name: getattr(self, name) for name in SCALARS}
        steps, missing = self.replica.step, tuple(sorted(self.missing))
        return Standing(**scalars, steps=steps, roster=self.roster, missing=missing)

    def load(self, standing: Standing, tensors: Mapping[str, Tensor]) -> None:
        """Go to where a standing and tensors were taken.

        Raises:
            RuntimeError, KeyError: the tensors are not those of this replica.
        """
        for name in SCALARS:
            setattr(self, name, getattr(standing, name))
        self._begin(standing.roster)
        self.missing = frozenset(standing.missing)
        self.replica.load_state(under("replica", tensors), standing.steps)
        self.best_weights = under("best", tensors)
        device = next(self.replica.model.parameters()).device
        self.bases = {name: value.to(device) for name, value in under("basis", tensors).items()}
        self.between_steps = True


def batch_sizes(samples: int, largest: int) -> list[int]:
    """Return the sizes of an epoch's batches: as few as can be, and as equal, so that none is a straggler of one."""
    count = math.ceil(samples / largest)
    return [samples // count + (batch < samples % count) for batch in range(count)]


def under(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name begins with `kind/`, by what follows."""
    return {name.removeprefix(f"{kind}/"): value for name, value in tensors.items() if name.startswith(f"{kind}/")}


def packed_state(replica: Replica) -> bytes:
    """Return a replica's state as an update carries it."""
    return safetensors.torch.save(replica.state())


def _take_over(replica: Replica, data: bytes) -> None:
    own = {f"weights/{name}": value.clone() for name, value in saved_buffers(replica.model).items()}  # of this epoch
    try:
        replica.load_state(safetensors.torch.load(data) | own, replica.step)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise ProtocolError(502, f"d.replica: is no replica's state: {error}") from None
