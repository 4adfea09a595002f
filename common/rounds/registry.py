"""All kinds of rounds by number, in the order in which they are due."""

from __future__ import annotations

import logging
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
from rankdad.common.spec.recording import further_rounds

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
_log = logging.getLogger(__name__)


def _rounds() -> Mapping[int, Round]:
    """Return all kinds of rounds by number."""
    theirs, unusable = further_rounds()
    for why in unusable.values():
        _log.warning("%s", why)
    prepared: dict[int, Round] = {one.kind: one for one in PREPARED}
    return prepared | theirs | {one.kind: one for one in TRAINED}


ROUNDS = _rounds()


def due_of(run: RunState) -> Due | None:
    """Return a run's next round; None at its end."""
    if run.farewell is not None:
        return None
    return next(due for one in ROUNDS.values() if (due := one.due(run)) is not None)
