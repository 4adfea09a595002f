"""All kinds of rounds, by their number, in the order in which a run asks which is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rankdad.common.rounds.base import Due, Round
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
ROUNDS: Mapping[int, Round] = {one.kind: one for one in (*PREPARED, *TRAINED)}


def due_of(run: RunState) -> Due | None:
    """Return what a run's next round exchanges; None when it is over."""
    if run.farewell is not None:
        return None
    return next(due for one in ROUNDS.values() if (due := one.due(run)) is not None)
