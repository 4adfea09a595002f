"""An agent's answers to owners' questions about drafts, one process at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from rankdad.common.errors import RankdadError
from rankdad.local.agent.listening import MAX_DELAY, MIN_DELAY
from rankdad.local.agent.processes import Outcome, Worker

LONGEST = 120.0  # seconds after which a question is given up
_log = logging.getLogger(__name__)


class Answering:
    """The open questions to a site.

    Args:
        work: starts the process that answers the question of a number.
    """

    def __init__(self, work: Callable[[str], Worker]) -> None:
        self._work = work
        self._open: tuple[str, ...] = ()
        self._done: set[str] = set()
        self._asked = ""
        self._worker: Worker | None = None
        self._began = self._retry_at = 0.0
        self._delay = MIN_DELAY

    def take(self, questions: Sequence[str]) -> None:
        """Set the open questions."""
        self._open = tuple(questions)
        self._done &= set(questions)

    def advance(self) -> None:
        """Kill a process that takes too long, handle the end of one, and start the next."""
        now = time.monotonic()
        if self._worker is not None:
            if (outcome := self._worker.outcome()) is not None:
                self._end(outcome)
            elif now - self._began > LONGEST:
                self.stop()
                self._done.add(self._asked)
            return
        left = [one for one in self._open if one not in self._done]
        if left and now >= self._retry_at:
            self._asked, self._began = left[0], now
            try:
                self._worker = self._work(self._asked)
            except RankdadError as error:
                _log.warning("a question waits: %s", error)
                self._put_off()

    def stop(self) -> None:
        """Kill the process, if there is one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _end(self, outcome: Outcome) -> None:
        self._worker = None
        if outcome.kind == "again":
            self._put_off()
            return
        self._done.add(self._asked)
        self._delay = MIN_DELAY
        if outcome.kind == "crashed":
            _log.warning("a question was not answered: %s", outcome.reason)

    def _put_off(self) -> None:
        self._retry_at, self._delay = time.monotonic() + self._delay, min(2 * self._delay, MAX_DELAY)
