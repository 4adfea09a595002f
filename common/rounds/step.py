"""A step: one exchange of gradients. A method may have several exchanges per step.

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
from rankdad.common.projections import Projections, least_norm, pooled_projections
from rankdad.common.protocol.messages import Body, Kind, Message
from rankdad.common.rounds.base import Collected, Cost, Due, Ready, Record, Round, bodies
from rankdad.common.rounds.checks import MAX_SIZE, Checks
from rankdad.common.seeds import derive
from rankdad.common.staleness import damped

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState

SLACK = 1.1  # tolerance for rounded projections: half of a quarter of an octave
TINY = 1e-30  # tolerance for subnormal numbers of the wire


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """A step's payload, up or down.

    Args:
        weight: denominator of the mean loss, of a site or of all sites.
        loss: mean loss over that weight.
        norm: of the site's gradient, or of the update.
        payload: factors and matrices in the plan's order.
        projections: of the gradients that begin in this exchange, if the optimizer needs them.
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
        """Return this round while the epoch has steps."""
        return run.next(self.kind) if run.has_steps else None

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check the weight and the size of a gradient."""
        step, places = message.body, checks.node.places[site]
        assert isinstance(step, Step)
        if not ago and checks.state.excluded.intersection(places):  # excluded from all later exchanges of the step
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
        """Return the update of one exchange, with late contributions last and at a lower weight.

        Raises:
            NonFiniteError: the sum of the sites' gradients is too large.
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
        """Return a region's part, like that of one weighted site, with the root mean square of its members' norms."""
        node, run, steps = here.node, here.run, here.ready.bodies(Step)
        contributions = [Contribution(step.weight, step.payload) for step in steps]
        total, parts = sum(step.weight for step in steps), shares(contributions)
        seed = derive(here.plan.seed, "region", node.name, run.rng_key)
        share = run.share(node.sites[0], total)
        payload, state = run.method.combine(here.ready.exchange, contributions, share, here.state, seed)
        loss = sum(part * step.loss for part, step in zip(parts, steps, strict=True))
        size = math.hypot(*(math.sqrt(part) * step.norm for part, step in zip(parts, steps, strict=True)))
        projections = pooled_projections([step.projections for step in steps], parts)
        # Rounding of the members' wire is followed by another rounding.
        return Step(total, loss, max(size, least_norm(projections)), payload, projections), state

    def apply(self, run: RunState, update: Message) -> None:
        """Apply one exchange; after the last one, the step."""
        assert isinstance(update.body, Step)
        run.exchange(update, update.body.payload, update.body.projections)

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record the step."""
        record.note_step(ready, update, cost)


def check_weight(run: RunState, update: Message, missing: Collection[int]) -> None:
    """Check that an update's weight is the number of samples of the included sites.

    Sites divide by this weight. With a wrong one, error feedback would send withheld residuals.

    Args:
        run: its state.
        update: of a step.
        missing: indices of the sites that an exchange of this step has left out.

    Raises:
        ProtocolError: the weight differs.
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
    """Check that numbers are small enough to be summed; `whole` is for regions, whose layout is that of updates."""
    plan, method, payload = checks.plan, checks.state.method, step.payload
    names = [slot.name for slot in plan.layout(exchange, up=not whole).slots]
    if checks.spec.method.needs_weights:  # gradients are computed from payloads and weights
        payload, names = method.gradients([payload]), [route.name for route in plan.routes]
    largest = min(MAX_SIZE, _largest(plan.wire))
    for name, value in zip(names, payload, strict=True):
        if isinstance(value, Factor):
            # An upper bound of the product and of its partial sums; infinite on overflow.
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
    """Return the largest number on a wire; formats of few bits have a float32 scale."""
    return torch.finfo(torch.float32 if wire in BITS else getattr(torch, wire)).max


def _size(array: Tensor) -> float:
    return float(torch.linalg.vector_norm(array))
