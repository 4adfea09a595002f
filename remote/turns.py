"""Whose turn it is: what the run asks of every site next follows from its updates alone, and nobody else decides it."""

from __future__ import annotations

from common.course import Course
from common.errors import ProtocolError
from common.messages import Decision, Evaluation, Kind, Message, Sums
from common.plan import Plan


def check_turn(plan: Plan, course: Course, last: Kind | None, message: Message) -> None:
    """Refuse a contribution to the present round that is not what the run asks for.

    The first to come would otherwise decide for all what the round is about, and the first in the plan for which epoch.

    Args:
        plan: of the run.
        course: after the last update.
        last: kind of the last update; None at a checkpoint, which is between two steps.
        message: a contribution to the present round.

    Raises:
        ProtocolError: 409, naming the field.
    """
    if course.round != message.round:
        raise ProtocolError(409, f"r: got round {message.round}, which nobody has been asked for yet")
    due, body = _due(plan, course, last), message.body
    if message.kind != due:
        raise ProtocolError(409, f"k: got {message.kind.name} in round {message.round}, expected {due.name}")
    if isinstance(body, Evaluation):
        expected = ("validation", course.epoch) if course.trains else ("test", course.best_epoch)
        if (body.split, body.epoch) != expected or body.fold != course.fold:
            got, wanted = f"{body.split} of epoch {body.epoch}", f"{expected[0]} of epoch {expected[1]}"
            raise ProtocolError(409, f"d.split: got {got} in fold {body.fold}, expected {wanted} in fold {course.fold}")
    elif isinstance(body, Sums) and body.stage != course.stage:
        raise ProtocolError(409, f"d.stage: got {body.stage}, expected {course.stage}")
    elif isinstance(body, Decision) and body != course.view():
        raise ProtocolError(409, f"d: got {body}, expected {course.view()}: it follows from the pooled metrics")


def _due(plan: Plan, course: Course, last: Kind | None) -> Kind:
    if not course.roster:
        return Kind.HELLO
    if course.stage is not None:
        return Kind.SUMS
    if course.decides:
        return Kind.DECISION
    if course.tested:
        return Kind.GOODBYE
    if last is Kind.BUFFERS or not course.trains:
        return Kind.EVALUATION
    if course.step < course.replica.steps_per_epoch:
        return Kind.COMPARISON if course.comparison_due else Kind.STEP
    return Kind.BUFFERS if plan.buffers else Kind.EVALUATION
