"""Failure of a site, or the answer that reports it to others. It may replace any round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankdad.common.protocol.messages import Failure, Kind
from rankdad.common.rounds.base import Due, Round

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState


class FailureRound(Round):
    """A failure, instead of any round."""

    kind, up, down = Kind.FAILURE, Failure, Failure

    def due(self, run: RunState) -> Due | None:
        """Return None: a failure is never due."""
        return None
