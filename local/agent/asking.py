"""An agent's answers to owners' questions about drafts, one process at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from rankdad.common.errors import RankdadError
from rankdad.common.logs import LogOptions, log_names, set_up
from rankdad.local.agent.processes import MAX_DELAY, MIN_DELAY, Outcome, Worker, say
from rankdad.local.agent.stance import stance_on
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import RefusedError
from rankdad.local.drivers.service import ServiceClient

LONGEST = 120.0  # seconds after which a question is given up
_log = logging.getLogger(__name__)


class Respond:
    """Answer a question in a process.

    Args:
        config: of the site.
        question: its number.
        logs: log options.
    """

    def __init__(self, config: SiteConfig, question: str, logs: LogOptions) -> None:
        self.config, self.question, self.logs = config, question, logs

    def __call__(self, writing: Connection) -> None:
        """Answer the question, and send the outcome."""
        set_up(self.logs)
        outcome = Outcome(kind="done")
        with log_names(site=self.config.name):
            try:
                with ServiceClient(self.config, patience=0.1) as client:  # the agent retries later
                    question = client.question(self.question)
                    stance = stance_on(self.config, question)
                    client.answer(self.question, stance)
                codes = ", ".join(one.code for one in stance.refusals)
                would = f"would refuse it ({codes})" if codes else "would take part"
                _log.info("%s asks about a draft: this site %s", question.owner or "an owner", would)
            except RefusedError as error:  # the question has expired
                outcome = Outcome(kind="refused", reason=str(error))
            except RankdadError as error:
                outcome = Outcome(kind="again", reason=str(error))
        say(writing, outcome)


class Answering:
    """The open questions to a site.

    Args:
        work: starts a process.
        respond: returns the process's target, given a question's number.
    """

    def __init__(
        self, work: Callable[[Callable[[Connection], None]], Worker], respond: Callable[[str], Respond]
    ) -> None:
        self._work, self._respond = work, respond
        self._open: tuple[str, ...] = ()
        self._done: set[str] = set()
        self._asked = ""
        self._worker: Worker | None = None
        self._began = self._retry_at = 0.0
        self._delay = MIN_DELAY

    @property
    def worker(self) -> Worker | None:
        """Return the current process."""
        return self._worker

    def take(self, questions: Sequence[str]) -> None:
        """Set the open questions."""
        self._open = tuple(questions)
        self._done &= set(questions)

    def advance(self) -> None:
        """Start the next answer if there is one, and kill a process that takes too long."""
        now = time.monotonic()
        if self._worker is not None:
            if now - self._began > LONGEST:
                self._worker.kill()
                self._worker = None
                self._done.add(self._asked)
            return
        left = [one for one in self._open if one not in self._done]
        if left and now >= self._retry_at:
            self._asked, self._began = left[0], now
            self._worker = self._work(self._respond(self._asked))

    def end(self) -> None:
        """Handle the end of the process."""
        assert self._worker is not None
        outcome, self._worker = self._worker.result(), None
        if outcome.kind == "again":
            self._retry_at, self._delay = time.monotonic() + self._delay, min(2 * self._delay, MAX_DELAY)
            return
        self._done.add(self._asked)
        self._delay = MIN_DELAY
        if outcome.kind == "crashed":
            _log.warning("a question was not answered: %s", outcome.reason)
