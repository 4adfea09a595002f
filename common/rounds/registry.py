"""All kinds of rounds by number, in the order in which they are due."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from rankdad.common.errors import UserError, one_line
from rankdad.common.protocol.messages import Kind
from rankdad.common.rounds.base import Due, Further, Round
from rankdad.common.rounds.buffers import BuffersRound
from rankdad.common.rounds.comparison import ComparisonRound
from rankdad.common.rounds.decision import DecisionRound
from rankdad.common.rounds.evaluation import EvaluationRound
from rankdad.common.rounds.failure import FailureRound
from rankdad.common.rounds.goodbye import GoodbyeRound
from rankdad.common.rounds.hello import HelloRound
from rankdad.common.rounds.paired import PairedRound
from rankdad.common.rounds.step import StepRound
from rankdad.common.rounds.sums import SumsRound
from rankdad.common.spec.recording import GROUP

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState

PREPARED = (HelloRound(), SumsRound())
TRAINED = (
    DecisionRound(),
    GoodbyeRound(),
    PairedRound(),
    ComparisonRound(),
    StepRound(),
    BuffersRound(),
    EvaluationRound(),
    FailureRound(),
)
FIRST = 64  # first number for other packages' kinds


def _rounds() -> Mapping[int, Round]:
    """Return all kinds of rounds by number.

    Raises:
        UserError: another package's kind cannot be used, or its number is taken.
    """
    found: dict[int, Round] = {one.kind: one for one in PREPARED}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):  # the same order everywhere
        try:
            one: Further = point.load()()
            kind, _ = Kind(one.kind, one.kind.name), (one.up, one.down, one.due)
        except Exception as error:
            problem = f"{point.value}, an entry point of {GROUP}, cannot be used: {one_line(error)}"
            raise UserError(problem, code="round-unusable", field=point.name) from None
        if kind < FIRST or kind in found or getattr(one, "name", None) != point.name:
            problem = f"{point.value}, an entry point of {GROUP}: its name is another, or its number ({kind})"
            raise UserError(f"{problem} not from {FIRST} on and its own", code="round-number-taken", field=point.name)
        found[kind] = one
    return found | {one.kind: one for one in TRAINED}


ROUNDS = _rounds()


def due_of(run: RunState) -> Due | None:
    """Return a run's next round; None at its end."""
    if run.farewell is not None:
        return None
    return next(due for one in ROUNDS.values() if (due := one.due(run)) is not None)
