"""What a site has sent to steps that have left it out, until it has joined a later one or is too old for that.

The residuals follow from updates alone: a late contribution changes them by its part once an update includes it. Until
then the next contributions are made as if it had been included as it was meant, so that nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankdad.common.lowrank.reduction.feedback import Residuals, interpolate_residual, plus
from rankdad.common.protocol.messages import Message
from rankdad.common.rounds.step import Step
from rankdad.common.run.lateness import damped
from rankdad.common.run.state import RunState


@dataclass(frozen=True, eq=False)
class Sent:
    """A contribution to a step that has left it out.

    Args:
        step: its number within the fold.
        weight: of the contribution.
        share: that the site took its part in the step to be.
        change: by what it changes the residuals if it is applied with that share.
    """

    step: int
    weight: float
    share: float
    change: Residuals


def assumed(residuals: Residuals, sent: Sequence[Sent]) -> Residuals:
    """Return the residuals as they are if all that is late joins as it was meant."""
    for late in sent:
        residuals = plus(residuals, late.change, 1.0)
    return residuals


def residuals_after(known: Residuals, before: Residuals, after: Residuals, part: float) -> Residuals:
    """Return the residuals once a step has included a contribution.

    Args:
        known: for certain.
        before: that the contribution was made with.
        after: of the contribution as it was meant.
        part: how much of it is applied; 0 if it is not.
    """
    if before is known:
        return interpolate_residual(known, after, part)
    return plus(known, plus(after, before, -1.0), part) if part else known


def settle(
    residuals: Residuals, sent: Sequence[Sent], update: Message, place: int, run: RunState
) -> tuple[Residuals, tuple[Sent, ...]]:
    """Return the residuals once a step has included what came late for an earlier one, and what may still join.

    Args:
        residuals: known for certain.
        sent: to earlier steps, oldest first.
        update: of this step.
        place: of the site in the plan.
        run: which has not followed the update yet.
    """
    body, step, staleness = update.body, run.replica.step, run.spec.federation.staleness
    assert isinstance(body, Step)
    joined = {step - age: age for age, late_place in update.late if late_place == place}
    for late in sent:
        if late.step in joined:
            applied = damped(late.weight, joined[late.step]) / body.weight
            residuals = plus(residuals, late.change, applied / late.share)
    waiting = tuple(late for late in sent if late.step not in joined and late.step + staleness > step)
    return run.method.compacted(residuals), waiting  # sums would let them grow from step to step
