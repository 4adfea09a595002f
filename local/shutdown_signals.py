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

MAX_STEP_SECONDS = 4.0  # seconds for the step in hand, which may wait for other sites
MAX_SECONDS = 5.0  # seconds after which a site ends that is still computing: `docker stop` kills it after 10
MAX_SECONDS_BEFORE = 1.0  # likewise, before the first step: there is nothing to save


class ShutdownError(RankdadError):
    """A signal stopped the site; started again, it goes on.

    Args:
        number: of the signal.
    """

    is_public = True

    def __init__(self, number: int) -> None:
        self.exit_code = INTERRUPTED + number
        super().__init__(f"stopped by {signal.Signals(number).name}", code="stopped")


class ShutdownSignals:
    """Notice SIGINT and SIGTERM within a `with`.

    The first signal sets a flag, and raises nothing: whatever runs at that moment would take an error for its own. The
    site looks at the flag between steps, and while it waits. If it does not look in time, the process ends as if it
    were killed, which loses nothing that its last checkpoint holds. A second signal ends it at once.

    Args:
        look: called as often as the site looks while it waits: what it raises ends the waiting, too.
    """

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._number = 0
        self._came = 0.0  # in seconds of `time.monotonic`
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

    def while_waiting(self) -> None:
        """Stop here if a signal has come, and the step in hand has had its time since.

        Raises:
            ShutdownError: so it is.
        """
        self._look()
        if self._number and (not self._training or time.monotonic() - self._came >= MAX_STEP_SECONDS):
            raise ShutdownError(self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number or os.getpid() != self._process:  # in a process that was forked to read ahead, nobody looks
            self._number = self._number or number
            self._end_now()
        self._number, self._came = number, time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS if self._training else MAX_SECONDS_BEFORE)

    def _end_now(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # such as a stream that is being written to
            end_with(ShutdownError(self._number))
        os._exit(INTERRUPTED + self._number)
