"""Retries of a round after an internal error, and the pause after the last one."""

from __future__ import annotations

from rankdad.common.errors import RankdadError, one_line
from rankdad.common.rounds.base import Ready

MIN_DELAY, MAX_TRIES = 1.0, 3  # seconds before the first retry, then doubled; number of attempts


class UncommittedRoundError(Exception):
    """An internal error after a round's update was recorded, before it was applied."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class PausedError(RankdadError):
    """Aggregation of a round failed repeatedly; another process has to resume the run.

    Args:
        round_: the round.
        cause: the last error.
    """

    def __init__(self, round_: int, cause: Exception) -> None:
        why = (
            f"the run is paused: aggregation of round {round_} failed {MAX_TRIES} times by an internal error of the "
            "aggregator"
        )
        self._public = f"{why} ({type(cause).__name__}): see its log"
        super().__init__(f"{why}: {one_line(cause)}; restart the aggregator to resume", code="run-paused")

    @property
    def public_message(self) -> str:
        """The message for sites, without the error's text, which may quote another site's contribution."""
        return self._public


class Retries:
    """Attempts at the present round.

    Attributes:
        pending: the round that is not aggregated yet.
        delay: seconds until the next attempt.
        paused: the error after the last attempt.
    """

    def __init__(self) -> None:
        self.pending: Ready | None = None
        self.paused: PausedError | None = None
        self.delay, self._again_at, self._count = MIN_DELAY, 0.0, 0

    def is_due(self, now: float) -> bool:
        """Return whether the next attempt is due."""
        return self.paused is None and now >= self._again_at

    def fail(self, now: float) -> bool:
        """Record a failure; return whether it was the last attempt."""
        self._again_at, self.delay, self._count = now + self.delay, 2 * self.delay, self._count + 1
        return self._count >= MAX_TRIES

    def succeed(self) -> None:
        """Record that the round is aggregated."""
        self.pending, self.delay, self._count = None, MIN_DELAY, 0
