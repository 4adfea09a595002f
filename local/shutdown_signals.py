"""SIGINT and SIGTERM at a site: it finishes its step, writes a checkpoint and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType

from rankdad.common.errors import INTERRUPTED, RankdadError
from rankdad.common.logs import end_with

MAX_STEP_SECONDS = 4.0  # seconds for the current step, which may wait for other sites
MAX_SECONDS = 5.0  # seconds after which a computing site ends; `docker stop` kills it after 10
MAX_SECONDS_BEFORE = 1.0  # seconds, before the first step: there is nothing to save


class ShutdownError(RankdadError):
    """A signal stopped the site; it continues when it is started again.

    Args:
        number: of the signal.
    """

    is_public = True

    def __init__(self, number: int) -> None:
        self.exit_code = INTERRUPTED + number
        super().__init__(f"stopped by {signal.Signals(number).name}", code="stopped")


class ShutdownSignals:
    """Receive SIGINT and SIGTERM within a `with`.

    The first signal sets a flag and raises nothing, because running code would take an exception for its own error. The
    site checks the flag between steps and while it waits. If it does not check in time, the process ends as if killed,
    which loses nothing since its last checkpoint. A second signal ends it at once.

    Args:
        look: also called while the site waits; an exception from it ends the wait.
        leave: called before the process ends as if killed.
        seconds: after which a computing site ends.
    """

    def __init__(
        self,
        look: Callable[[], None] = lambda: None,
        leave: Callable[[], None] = lambda: None,
        seconds: float = MAX_SECONDS,
    ) -> None:
        self._look, self._leave, self._seconds = look, leave, seconds
        self._number = 0
        self._came = 0.0  # `time.monotonic`, in seconds
        self._training = False

    def __enter__(self) -> ShutdownSignals:
        self._process = os.getpid()
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._end_now)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def between_steps(self) -> int:
        """Return the signal that has arrived, which stops the site before its next step; 0 if none has."""
        self._training = True
        return self._number

    def while_waiting(self) -> None:
        """Stop if a signal has arrived, and the time for the current step has passed since.

        Raises:
            ShutdownError: stopped.
        """
        self._look()
        if self._number and (not self._training or time.monotonic() - self._came >= MAX_STEP_SECONDS):
            raise ShutdownError(self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number or os.getpid() != self._process:  # forked workers do not check the flag
            self._number = self._number or number
            self._end_now()
        self._number, self._came = number, time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, self._seconds if self._training else MAX_SECONDS_BEFORE)

    def _end_now(self, *_: object) -> None:
        if os.getpid() == self._process:
            with contextlib.suppress(Exception):  # a stream may be in use
                end_with(ShutdownError(self._number))
            with contextlib.suppress(Exception):
                self._leave()
        os._exit(INTERRUPTED + self._number)
