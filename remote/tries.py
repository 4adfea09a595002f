"""What becomes of a round that an error of the aggregator's own has stopped: another try, or a run that is paused."""

from __future__ import annotations

from rankdad.common.errors import RankdadError, one_line
from rankdad.common.rounds.base import Ready

MIN_DELAY, MAX_TRIES = 1.0, 3  # seconds until a round is aggregated again, then twice as many; and how often at all


class HalfwayError(Exception):
    """An error of the aggregator's own after it recorded a round's update. Only another process can go on."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class PausedError(RankdadError):
    """The aggregator has given up a round: nothing goes on before another process tries it.

    Args:
        round_: its number.
        cause: of the last try's failure.
    """

    def __init__(self, round_: int, cause: Exception) -> None:
        why = (
            f"the run is paused: round {round_} could not be aggregated {MAX_TRIES} times, by an error of the "
            "aggregator's own"
        )
        self._told = f"{why} ({type(cause).__name__}): its log says more"
        super().__init__(f"{why}: {one_line(cause)}; the aggregator, started again, goes on with it", code="run-paused")

    @property
    def public_message(self) -> str:
        """What sites may hear of it: not the error's words, which may come from what another site has sent."""
        return self._told


class Tries:
    """How often the present round was tried, and when it is tried again.

    Attributes:
        pending: the round, while it is not aggregated.
        delay: seconds until the next try.
        paused: by that it was given up.
    """

    def __init__(self) -> None:
        self.pending: Ready | None = None
        self.paused: PausedError | None = None
        self.delay, self._again_at, self._count = MIN_DELAY, 0.0, 0

    def is_due(self, now: float) -> bool:
        """Tell whether it is time for the next try."""
        return self.paused is None and now >= self._again_at

    def fail(self, now: float) -> bool:
        """Take note of a failure; return whether that was the last try."""
        self._again_at, self.delay, self._count = now + self.delay, 2 * self.delay, self._count + 1
        return self._count >= MAX_TRIES

    def succeed(self) -> None:
        """Take note that the round is aggregated."""
        self.pending, self.delay, self._count = None, MIN_DELAY, 0
