"""A region: an aggregator whose updates come from above. Its children take it for the run's, above it is one site.

A round has two halves here. What the children send is combined, and goes up; the update that comes back is recorded,
followed and handed down byte for byte. A crash between them loses nothing: the same contributions are combined into the
same bytes again.
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
    """What a region contributes to a round, and has no update for yet."""

    ready: Ready
    body: bytes
    residuals: Residuals  # that the region keeps once the update is there
    began: float  # seconds on the clock of `perf_counter`


class Region:
    """One region. The caller brings `outgoing` up, and calls `answer` with what comes back.

    Args:
        aggregator: that the region's children send to; all its updates come from above from now on.
        recorded: asks the aggregator above for the update of a round that is damaged here; None if it has none.
        send: told of every `outgoing`.

    Attributes:
        outgoing: the contribution that waits for its update.
        told: whether the aggregator above knows how the run has ended here.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        recorded: Callable[[int], bytes | None] = lambda round_: None,
        send: Callable[[Outgoing], object] = lambda outgoing: None,
    ) -> None:
        self.aggregator, self._recorded, self._send = aggregator, recorded, send
        self.outgoing: Outgoing | None = None
        self.told = False
        aggregator.source = self

    def make(self, here: Collected) -> None:
        """Combine the contributions to a round: its update comes from above."""
        began = perf_counter()
        self.outgoing = Outgoing(here.ready, *_combined(here), began)
        self._send(self.outgoing)

    def again(self, here: Collected, record: Record) -> Update:
        """Return the update of a round as it was recorded here, or above."""
        body = record.body if record.damage is None else self._recorded(record.round)
        if body is None:
            assert record.damage is not None
            raise record.damage
        _, residuals = _combined(here)
        return Update(unpack(body, here.plan, up=False, device=here.run.replica.device), body, residuals)

    def answer(self, body: bytes) -> Answers:
        """Take the update of the round that `outgoing` is of, and return the children's answers.

        Raises:
            UserError: the disk is full or broken.
            HalfwayError: only another process can go on.
        """
        own, outgoing = self.aggregator, self.outgoing
        if outgoing is None or own.ended:
            return {}
        try:
            message = self._checked(body)
        except ProtocolError as error:
            reason = f"the update of round {own.barrier.round} from above cannot be used: {visible(str(error))}"
            return own.fail(AGGREGATOR, reason, code="update-unusable")
        self.outgoing = None
        if isinstance(message.body, Failure):
            self.told = True
            said = message.body
            return own.fail(said.site, said.reason, code=said.code, field=said.field, told=body)
        update = Update(message, body, outgoing.residuals)
        return own.conclude(outgoing.ready, update, perf_counter() - outgoing.began)

    def failure(self) -> bytes:
        """Return what tells the aggregator above how the run has ended here."""
        own = self.aggregator
        reason = visible(own.outcome[1] or "was stopped")  # its sites' words are for others, and its own hold no data
        body = Failure(site=own.node.name, reason=reason, code="region-stopped")
        return pack_failure(Message(Kind.FAILURE, own.barrier.round, body))

    def _checked(self, body: bytes) -> Message:
        """Return the update in bytes from above, if it is what is due."""
        own = self.aggregator
        message = unpack(body, own.plan, up=False, device=own.device)
        if isinstance(message.body, Failure):
            return message
        own.state.check(message, 502)
        if message.missing:
            raise ProtocolError(
                502,
                "i: leaves somebody out, but with regions every round waits for all",
                code="site-left-out",
                field="i",
            )
        if isinstance(message.body, Step):
            check_weight(own.state, message, ())
        return message


def _combined(here: Collected) -> tuple[bytes, Residuals]:
    """Return what a region contributes to a round, and the residuals that it leaves.

    Raises:
        RunFailedError: the run cannot go on.
    """
    ready = here.ready
    with refusing_the_run():
        body, state = ROUNDS[ready.kind].combine(here)
        message = Message(ready.kind, ready.round, body, ready.exchange)
        return pack(message, here.plan, up=True, region=True), state.residuals
