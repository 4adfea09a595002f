"""Remote calls of sites to an aggregator over an engine's transport.

One thread passes each call, and calls `tick` several times a second. A site that waits for a round gets its reply when
the round is complete.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from rankdad.common.errors import ProtocolError, RankdadError, UserError, one_line, visible
from rankdad.common.protocol.calls import STOPPED, Call, Reply, packed, unpacked
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.remote.aggregator import Aggregator, Answers
from rankdad.remote.results.progress import AGGREGATOR
from rankdad.remote.retries import PausedError, UncommittedRoundError
from rankdad.remote.run_answer import RunAnswer

Replies = dict[str, bytes]  # by site
MAX_MALFORMED = 100  # consecutive malformed messages, after which a site is ignored
_log = logging.getLogger(__name__)


class StoppedRunError(RankdadError):
    """The run stops here and can resume in another process."""

    is_public = True


class Calls:
    """The calls of a run's sites.

    Args:
        aggregator: the run's, with a ledger.

    Attributes:
        open: sites that may still call.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator, self.open = aggregator, set(aggregator.children)
        self._limit = body_limit(aggregator.plan, up=True)
        self._malformed = Counter[str]()
        self._waiting: dict[str, int] = {}  # number of each waiting call, by site

    @property
    def awaited(self) -> set[str]:
        """Sites whose next call has not come."""
        return self.open - self._waiting.keys()

    def take(self, site: str, data: object) -> Replies:
        """Take a call of a site, named by the engine, and return the replies that are due.

        Malformed and refused calls change nothing.

        Raises:
            StoppedRunError: only another process can resume.
        """
        if site not in self.open:  # unknown, or ended
            return {}
        try:
            call = unpacked(Call, data, self._limit)
        except ProtocolError as error:
            self._malformed[site] += 1
            if self._malformed[site] > MAX_MALFORMED:
                return self.lose(site, "sends malformed messages")
            return {site: _refusal(error, 0)}
        self._malformed[site] = 0
        try:
            self._check(site, call)
            return self._handlers[call.what](self, site, call)
        except ProtocolError as error:
            self._waiting.pop(site, None)
            return {site: _refusal(error, call.number)}

    def tick(self) -> Replies:
        """Do what is due: see `Aggregator.tick`.

        Raises:
            StoppedRunError: only another process can resume.
        """
        return self._replies(self._guarded(self.aggregator.tick))

    def lose(self, site: str, reason: str) -> Replies:
        """Handle the loss of a site's process, which does not return in this job.

        Raises:
            StoppedRunError: too few sites remain for a round.
        """
        if site not in self.open:
            return {}
        self.open.discard(site)
        self._waiting.pop(site, None)
        aggregator = self.aggregator
        if aggregator.ended:
            return {}
        if len(self.open) < aggregator.barrier.quorum:
            problem = aggregator.recorder.progress.problems.get(site) or visible(reason)
            raise StoppedRunError(
                f"{site}: {problem}; fix that and submit the same job again, which resumes from here",
                code="site-ended",
                site=site,
            )
        return self._replies(self._guarded(lambda: aggregator.depart(site, reason)))

    def stop(self, error: StoppedRunError) -> Replies:
        """Return the replies with which all waiting sites stop, until the run resumes."""
        refusal = ProtocolError(503, str(error), code=STOPPED)
        return {site: _refusal(refusal, number) for site, number in self._waiting.items()}

    def _check(self, site: str, call: Call) -> None:
        """Check that a call is of the site that the engine names, and of this run."""
        if call.site != site and call.what != "end":
            message = f"site: the engine knows this node as {site}, but it calls itself {visible(call.site, 63)}"
            raise ProtocolError(403, message, code="site-differs", field="site")
        if call.what not in ("run", "give-up", "end") and call.run != self.aggregator.run_id:
            raise ProtocolError(409, "run: is another run", code="request-malformed", field="run")

    def _run(self, site: str, call: Call) -> Replies:
        body = RunAnswer.of(self.aggregator).model_dump_json().encode()
        return {site: packed(Reply(number=call.number, body=body))}

    def _send(self, site: str, call: Call) -> Replies:
        self._waiting[site] = call.number
        self.aggregator.recorder.heard(site, call.computed)
        return self._replies(self._guarded(lambda: self.aggregator.take(site, call.body)))

    def _ask(self, site: str, call: Call) -> Replies:
        update = self.aggregator.recorded(site, call.round)
        if update is None and self.aggregator.barrier.holds(site):
            self._waiting[site] = call.number
            return {}
        return {site: packed(Reply(number=call.number, body=update))}

    def _snapshot(self, site: str, call: Call) -> Replies:
        return {site: packed(Reply(number=call.number, body=self.aggregator.snapshot(site)))}

    def _done(self, site: str, call: Call) -> Replies:
        if not self.aggregator.ended:
            message = "the run has not ended: an aggregator cannot resume from an older copy of its directory"
            raise ProtocolError(409, message, code="run-not-ended")
        retention = self.aggregator.retention
        body = None if retention is None else retention.receipt(site).model_dump_json().encode()
        return {site: packed(Reply(number=call.number, body=body))}

    def _give_up(self, site: str, call: Call) -> Replies:
        answers = self._guarded(lambda: self.aggregator.take(site, call.body))
        reply = packed(Reply(number=call.number))
        self._waiting.pop(site, None)
        return self._replies({other: body for other, body in answers.items() if other != site}) | {site: reply}

    def _end(self, site: str, call: Call) -> Replies:
        return self.lose(site, call.reason or "its process has ended")

    def _replies(self, answers: Answers) -> Replies:
        """Return replies to waiting calls; other sites get their answers when they call."""
        waits = {site: body for site, body in answers.items() if site in self._waiting}
        return {site: packed(Reply(number=self._waiting.pop(site), body=body)) for site, body in waits.items()}

    def _guarded(self, work: Callable[[], Answers]) -> Answers:
        """Call the aggregator. `tick` retries a round that it could not aggregate.

        Raises:
            ProtocolError: the contribution is refused.
            StoppedRunError: only another process can resume.
        """
        try:
            return work()
        except ProtocolError:
            raise
        except PausedError as error:
            _log.error("%s", error)
            raise StoppedRunError(error.public_message, code=error.code) from error
        except UserError as error:
            _log.error("%s", error)
            message = f"the aggregator stops ({error.code}): see its log; the same job, submitted again, resumes"
            raise StoppedRunError(message, code=error.code) from error
        except UncommittedRoundError as error:
            _log.error("internal error", exc_info=error.cause)
            message = "an internal error of the aggregator: see its log; the same job, submitted again, resumes"
            raise StoppedRunError(message, code="aggregator-stopped") from error
        except Exception as error:
            _log.error("internal error", exc_info=error)
            self.aggregator.note_problem(AGGREGATOR, one_line(error))
            if self.aggregator.retries.pending is not None:
                return {}
            message = f"an internal error of the aggregator ({type(error).__name__}): see its log"
            raise ProtocolError(500, message, code="aggregator-failed") from error

    _handlers: ClassVar[dict[str, Callable[[Calls, str, Call], Replies]]] = {
        "run": _run,
        "send": _send,
        "ask": _ask,
        "snapshot": _snapshot,
        "done": _done,
        "give-up": _give_up,
        "end": _end,
    }


def _refusal(error: ProtocolError, number: int) -> bytes:
    return packed(Reply(number=number, status=error.status, error=str(error), code=error.code, field=error.field[:200]))
