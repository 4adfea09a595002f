"""A region: an aggregator to its children, and a site to the aggregator above.

It combines the children's contributions into one for the aggregator above, then records, applies and passes on the
update byte for byte. After a crash in between, the same contributions give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from rankdad.common.errors import ProtocolError, visible
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.protocol.codec import pack, pack_failure, unpack
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.rounds.base import Collected, Ready
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step, check_weight
from rankdad.remote.aggregator import Aggregator, Answers
from rankdad.remote.records import Record
from rankdad.remote.results.progress import AGGREGATOR
from rankdad.remote.updates import Update, refusing_the_run


class Outgoing(NamedTuple):
    """A region's contribution that waits for its update."""

    ready: Ready
    body: bytes
    residuals: Residuals  # the region's after the update
    began: float  # seconds on the clock of `perf_counter`


class Region:
    """One region. The caller sends `outgoing` up and calls `answer` with the update.

    Args:
        aggregator: the children's; from now on, its updates come from above.
        recorded: fetches the update of a damaged round from above; None if it has none.
        send: called with every `outgoing`.

    Attributes:
        outgoing: the contribution that waits for its update.
        is_reported: whether the aggregator above knows how the run ended here.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        recorded: Callable[[int], bytes | None] = lambda round_: None,
        send: Callable[[Outgoing], object] = lambda outgoing: None,
    ) -> None:
        self.aggregator, self._recorded, self._send = aggregator, recorded, send
        self.outgoing: Outgoing | None = None
        self.is_reported = False
        aggregator.source = self

    def make(self, here: Collected) -> None:
        """Combine the contributions to a round and send the result up."""
        began = perf_counter()
        self.outgoing = Outgoing(here.ready, *_combined(here), began)
        self._send(self.outgoing)

    def replay(self, here: Collected, record: Record) -> Update:
        """Return the update of a round as recorded here or above."""
        body = record.body if record.damage is None else self._recorded(record.round)
        if body is None:
            assert record.damage is not None
            raise record.damage
        _, residuals = _combined(here)
        return Update(unpack(body, here.plan, up=False, device=here.run.replica.device), body, residuals)

    def answer(self, body: bytes) -> Answers:
        """Take the update to `outgoing` and return the children's answers.

        Raises:
            UserError: the disk is full or broken.
            UncommittedRoundError: only another process can resume.
        """
        own, outgoing = self.aggregator, self.outgoing
        if outgoing is None or own.ended:
            return {}
        try:
            message = self._checked(body)
        except ProtocolError as error:
            reason = f"the update of round {own.barrier.round} from above is invalid: {visible(str(error))}"
            return own.fail(AGGREGATOR, reason, code="update-unusable")
        self.outgoing = None
        if isinstance(message.body, Failure):
            self.is_reported = True
            failure = message.body
            return own.fail(failure.site, failure.reason, code=failure.code, field=failure.field, packed=body)
        update = Update(message, body, outgoing.residuals)
        return own.conclude(outgoing.ready, update, perf_counter() - outgoing.began)

    def failure(self) -> bytes:
        """Return the message that reports how the run ended here."""
        own = self.aggregator
        reason = visible(own.outcome[1] or "was stopped")  # contains no data
        body = Failure(site=own.node.name, reason=reason, code="region-stopped")
        return pack_failure(Message(Kind.FAILURE, own.barrier.round, body))

    def _checked(self, body: bytes) -> Message:
        """Decode an update from above and check that it is due."""
        own = self.aggregator
        message = unpack(body, own.plan, up=False, device=own.device)
        if isinstance(message.body, Failure):
            return message
        own.state.check(message, 502)
        if message.missing:
            problem = "i: omits a member, but with regions every round waits for all"
            raise ProtocolError(502, problem, code="site-left-out", field="i")
        if isinstance(message.body, Step):
            check_weight(own.state, message, ())
        return message


def _combined(here: Collected) -> tuple[bytes, Residuals]:
    """Combine a round's contributions; return the region's message and residuals.

    Raises:
        RunFailedError: the contributions cannot be combined.
    """
    ready = here.ready
    with refusing_the_run():
        body, state = ROUNDS[ready.kind].combine(here)
        message = Message(ready.kind, ready.round, body, ready.exchange)
        return pack(message, here.plan, up=True, region=True), state.residuals
