"""An aggregator whose sites' calls an engine carries: it takes calls, and says which sites are answered, and with what.

One thread calls it, with every call that comes and several times a second. A site that waits for a round has no reply
until the round is complete.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from rankdad.common.errors import ProtocolError, RankdadError, UserError, one_line, visible
from rankdad.common.protocol.calls import Call, Reply, packed, unpacked
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.remote.aggregator import Aggregator, Answers
from rankdad.remote.results.progress import AGGREGATOR
from rankdad.remote.run_answer import RunAnswer
from rankdad.remote.tries import HalfwayError, PausedError

Replies = dict[str, bytes]  # by site
MAX_MALFORMED = 100  # messages of a site in a row that are no calls, after which it is not answered any more
_log = logging.getLogger(__name__)


class StoppedRunError(RankdadError):
    """The run stops here, and goes on in another process."""

    is_public = True


class Calls:
    """The calls of a run's sites.

    Args:
        aggregator: of the run; it keeps a ledger.

    Attributes:
        open: sites that still have something to say.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator, self.open = aggregator, set(aggregator.children)
        self._limit = body_limit(aggregator.plan, up=True)
        self._malformed = Counter[str]()
        self._waiting: dict[str, int] = {}  # number of the call of each site that waits for a round

    def take(self, site: str, data: object) -> Replies:
        """Take a call of a site, as the engine names it, and return the replies that are due.

        Bytes that are no call, and calls that the aggregator refuses, change nothing.

        Raises:
            StoppedRunError: only another process can go on.
        """
        if site not in self.open:  # of another run, or ended
            return {}
        try:
            call = unpacked(Call, data, self._limit)
        except ProtocolError as error:
            self._malformed[site] += 1
            if self._malformed[site] > MAX_MALFORMED:
                return self.lose(site, "sends what is no call")
            return {site: _refusal(error, 0)}
        self._malformed[site] = 0
        try:
            self._check(site, call)
            return self._handlers[call.what](self, site, call)
        except ProtocolError as error:
            self._waiting.pop(site, None)
            return {site: _refusal(error, call.number)}

    def tick(self) -> Replies:
        """Do what is due by now: see `Aggregator.tick`.

        Raises:
            StoppedRunError: only another process can go on.
        """
        return self._replies(self._guarded(self.aggregator.tick))

    def lose(self, site: str, reason: str) -> Replies:
        """Take note that the engine has lost a site's process, which does not come back in this one.

        Raises:
            StoppedRunError: too few are left for a round.
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
                f"{site}: {problem}; once that is mended, the same job, submitted again, goes on where this one stood",
                code="site-ended",
                site=site,
            )
        return self._replies(self._guarded(lambda: aggregator.depart(site, reason)))

    def _check(self, site: str, call: Call) -> None:
        """Check that a call is of the site that the engine names, and of this run."""
        if call.site != site and call.what != "end":
            said = f"site: the engine knows this node as {site}, and it calls itself {visible(call.site, 63)}"
            raise ProtocolError(403, said, code="site-differs", field="site")
        if call.what not in ("run", "give-up", "end") and call.run != self.aggregator.run_id:
            raise ProtocolError(409, "run: is of another run than this one", code="request-malformed", field="run")

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
            said = "the run has not ended: an aggregator with an older copy of its directory cannot go on"
            raise ProtocolError(409, said, code="run-not-ended")
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
        """Return the replies to calls that wait; what others would be answered they hear when they call."""
        waits = {site: body for site, body in answers.items() if site in self._waiting}
        return {site: packed(Reply(number=self._waiting.pop(site), body=body)) for site, body in waits.items()}

    def _guarded(self, work: Callable[[], Answers]) -> Answers:
        """Call the aggregator; a round that it could not aggregate is tried again by `tick`.

        Raises:
            ProtocolError: what a site has sent is refused.
            StoppedRunError: only another process can go on.
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
            said = f"the aggregator stops ({error.code}): its log says more, and the same job, submitted again, goes on"
            raise StoppedRunError(said, code=error.code) from error
        except HalfwayError as error:
            _log.error("an error of the aggregator's own", exc_info=error.cause)
            said = "an error of the aggregator's own: its log says more, and the same job, submitted again, goes on"
            raise StoppedRunError(said, code="aggregator-stopped") from error
        except Exception as error:
            _log.error("an error of the aggregator's own", exc_info=error)
            self.aggregator.note_problem(AGGREGATOR, one_line(error))
            if self.aggregator.tries.pending is not None:
                return {}
            said = f"an error of the aggregator's own ({type(error).__name__}): its log says more"
            raise ProtocolError(500, said, code="aggregator-failed") from error

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
    field, code = error.field[:200], error.code[:200]
    return packed(Reply(number=number, status=error.status, error=str(error), code=code, field=field))
