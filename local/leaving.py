"""Leaving a run when a signal asks for it: the step in hand is finished and written down, to go on from there."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

from rankdad.common.errors import RankdadError

PATIENCE = 5.0  # seconds for the step in hand, which may wait for other sites


class LeavingError(RankdadError):
    """A signal asked the site to leave; started again, it goes on.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


class Leaving:
    """Handlers of SIGINT and SIGTERM, in force within a `with`.

    The first signal waits for `between_steps`, though not for long; a second one, or one before the first step, stops
    the site at once.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._trains = False

    def __enter__(self) -> Leaving:
        self._previous = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._at_once)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return bool(self._asked)

    def between_steps(self) -> None:
        """Leave, if a signal has asked for it.

        Raises:
            LeavingError: it has.
        """
        self._trains = True
        if self._asked:
            raise LeavingError(self._asked)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked or not self._trains:
            self._asked = self._asked or number
            raise LeavingError(self._asked)
        self._asked = number
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)

    def _at_once(self, number: int, frame: FrameType | None) -> None:
        raise LeavingError(self._asked)
