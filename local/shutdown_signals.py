"""SIGINT and SIGTERM at a site: it finishes its step, writes a checkpoint and ends."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

from rankdad.common.errors import RankdadError

MAX_STEP_SECONDS = 5.0  # seconds for the step in hand, which may wait for other sites


class ShutdownError(RankdadError):
    """A signal stopped the site; started again, it goes on.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}", code="stopped")


class ShutdownSignals:
    """Handle SIGINT and SIGTERM within a `with`.

    The first signal takes effect at the next `between_steps`, or after `MAX_STEP_SECONDS`. A second one, or one before
    the first step, takes effect at once.
    """

    def __init__(self) -> None:
        self._number = 0
        self._training = False

    def __enter__(self) -> ShutdownSignals:
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._stop_now)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def received(self) -> bool:
        """Whether a signal has come."""
        return bool(self._number)

    def between_steps(self) -> None:
        """Stop here if a signal has come.

        Raises:
            ShutdownError: one has.
        """
        self._training = True
        if self._number:
            raise ShutdownError(self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number or not self._training:
            self._number = self._number or number
            raise ShutdownError(self._number)
        self._number = number
        signal.setitimer(signal.ITIMER_REAL, MAX_STEP_SECONDS)

    def _stop_now(self, number: int, frame: FrameType | None) -> None:
        raise ShutdownError(self._number)
