"""A step: one exchange of what gradients are made of. A method may have several exchanges a step.

Source: arXiv 2102.09631, Algorithm 1 (the aggregator's part). A site's part is the trainer's, exchange by exchange.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankdad.common.errors import NonFiniteError, ProtocolError
from rankdad.common.lowrank.factors import MAX_NORM, Factor, norm
from rankdad.common.lowrank.routes import Payload
from rankdad.common.lowrank.wire import BITS
from rankdad.common.methods import Contribution, MethodState
from rankdad.common.methods.base import shares
from rankdad.common.protocol.messages import Body, Kind, Message
from rankdad.common.rounds.base import Collected, Cost, Due, Ready, Record, Round, bodies
from rankdad.common.rounds.checks import MAX_SIZE, Checks
from rankdad.common.run.projections import Projections, least_norm, pooled_projections
from rankdad.common.run.seeds import derive
from rankdad.common.staleness import damped

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState

SLACK = 1.1  # of projections that the wire has rounded: half of a quarter of an octave
TINY = 1e-30  # of those that are no normal numbers of the wire, which rounds them to few digits


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """A step's payload, in either direction.

    Args:
        weight: denominator of the mean loss: a site's own, or all sites' together.
        loss: mean loss over that weight.
        norm: norm of the site's gradient, or of the update.
        payload: factors and matrices in the plan's order.
        projections: of the gradients that begin in this exchange, if the optimizer asks for them.
    """

    weight: float
    loss: float
    norm: float
    payload: Payload
    projections: tuple[Projections, ...] = ()


class StepRound(Round):
    """An exchange of an optimizer step."""

    kind = Kind.STEP

    def due(self, run: RunState) -> Due | None:
        """Return it as long as the epoch has steps."""
        return run.next(self.kind) if run.has_steps else None

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check a gradient's weight and size."""
        step, places = message.body, checks.node.places[site]
        assert isinstance(step, Step)
        if not ago and checks.state.excluded.intersection(places):  # left out of an exchange, it is in no later one
            if step.weight:
                raise ProtocolError(
                    422,
                    f"m: the weight: got {step.weight:g}, expected 0: the step has left this site out",
                    code="weight-differs",
                    field="m",
                )
        else:
            expected = sum(checks.state.weight(place, ago) for place in places)
            checks.count("m: the weight", step.weight, expected, field="m")
        _check_sizes(checks, message.exchange, step, whole=site in checks.node.regions)

    def aggregate(self, here: Collected) -> tuple[Step, MethodState]:
        """Return the update of one exchange; what is late comes behind the others, and weighs less.

        Raises:
            NonFiniteError: what the sites' gradients add up to is too large.
        """
        plan, ready, run = here.plan, here.ready, here.run
        seed = derive(plan.seed, "aggregator", run.rng_key)
        steps = bodies([*ready.messages, *(late.message for late in ready.late)], Step)
        ages = [*(0 for _ in ready.messages), *(late.age for late in ready.late)]
        contributions = [
            Contribution(damped(step.weight, age), step.payload) for step, age in zip(steps, ages, strict=True)
        ]
        payload, state = run.method.aggregate(ready.exchange, contributions, here.state, seed)
        sizes = [norm(value) for value in payload]
        for slot, size in zip(plan.layout(ready.exchange, up=False).slots, sizes, strict=True):
            if not size < MAX_NORM:
                raise NonFiniteError(f"the pooled gradient of {slot.name}")
        total = math.fsum(contribution.weight for contribution in contributions)
        loss = sum(part * step.loss for part, step in zip(shares(contributions), steps, strict=True))
        projections = pooled_projections([step.projections for step in steps], shares(contributions))
        return Step(total, loss, math.hypot(*sizes), payload, projections), state

    def combine(self, here: Collected) -> tuple[Step, MethodState]:
        """Return a region's part: one weighted site's, whose norm is the root mean square of its members'."""
        node, run, steps = here.node, here.run, here.ready.bodies(Step)
        contributions = [Contribution(step.weight, step.payload) for step in steps]
        total, parts = sum(step.weight for step in steps), shares(contributions)
        seed = derive(here.plan.seed, "region", node.name, run.rng_key)
        share = run.share(node.sites[0], total)
        payload, state = run.method.combine(here.ready.exchange, contributions, share, here.state, seed)
        loss = sum(part * step.loss for part, step in zip(parts, steps, strict=True))
        size = math.hypot(*(math.sqrt(part) * step.norm for part, step in zip(parts, steps, strict=True)))
        projections = pooled_projections([step.projections for step in steps], parts)
        # What the members' wire has rounded up is rounded once more.
        return Step(total, loss, max(size, least_norm(projections)), payload, projections), state

    def apply(self, run: RunState, update: Message) -> None:
        """Take one exchange; after the last one, the step."""
        assert isinstance(update.body, Step)
        run.exchange(update, update.body.payload, update.body.projections)

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Write down the step."""
        record.note_step(ready, update, cost)


def check_weight(run: RunState, update: Message, missing: Collection[int]) -> None:
    """Check that an update's weight is the number of samples of the sites that it includes.

    Sites divide by this weight. With another one, error feedback would send what a reduction keeps back.

    Args:
        run: where the run is.
        update: of a step.
        missing: places of the sites that an exchange of this step has left out.

    Raises:
        ProtocolError: it is weighted otherwise.
    """
    assert isinstance(update.body, Step)
    due = run.weight_without(missing) + run.late_weight(update.late)
    if not math.isclose(update.body.weight, due, rel_tol=1e-12):
        raise ProtocolError(
            502,
            f"m: the weight of the step: got {update.body.weight:g}, expected {due:g}",
            code="weight-differs",
            field="m",
        )


def _check_sizes(checks: Checks, exchange: int, step: Step, *, whole: bool) -> None:
    """Check that nothing that is sent is too large to be added up; `whole` is a region's, laid out as an update is."""
    plan, method, payload = checks.plan, checks.state.method, step.payload
    names = [slot.name for slot in plan.layout(exchange, up=not whole).slots]
    if checks.spec.method.needs_weights:  # whose gradients are made of what is sent
        payload, names = method.gradients([payload]), [route.name for route in plan.routes]
    largest = min(MAX_SIZE, _largest(plan.wire))
    for name, value in zip(names, payload, strict=True):
        if isinstance(value, Factor):
            # No less than the size of the product or of any sum on the way to it; infinite where a square is.
            size, most = _size(value.delta) * _size(value.activation), largest
        else:
            size, most = _size(value), MAX_SIZE
        if not size < most:
            raise ProtocolError(
                422,
                f"b: the gradient of {name} has a size of {size:.1e}, expected less than {most:.1e}: lower the "
                "learning rate or clip",
                code="gradient-too-large",
                field="b",
            )
    size, most = least_norm(step.projections), min(SLACK * step.norm + TINY, MAX_SIZE)
    if not size <= most:
        raise ProtocolError(
            422,
            f"b: projections of norm {size:.3g}, expected at most {most:.3g}: m: {step.norm:.3g}",
            code="norm-out-of-range",
            field="b",
        )


def _largest(wire: str) -> float:
    """Return the largest number on a wire; codes of few bits have a scale in float32."""
    return torch.finfo(torch.float32 if wire in BITS else getattr(torch, wire)).max


def _size(array: Tensor) -> float:
    return float(torch.linalg.vector_norm(array))
