"""Failure: a site cannot go on, or the answer that tells the others so. No round is due for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankdad.common.protocol.messages import Failure, Kind
from rankdad.common.rounds.base import Due, Round

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState


class FailureRound(Round):
    """In place of any round."""

    kind, up, down = Kind.FAILURE, Failure, Failure

    def due(self, run: RunState) -> Due | None:
        """Return nothing: it comes when it comes."""
        return None
