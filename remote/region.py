"""A region's aggregator: to its children it is the run's, to the aggregator above it is one weighted site.

A round has two halves here. What the children send is combined, and goes up; the update that comes back is recorded,
followed and handed down byte for byte. A crash between them loses nothing: the same contributions are combined into the
same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rankdad.common.errors import ProtocolError, RankdadError, RunFailedError, visible
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.methods import MethodState
from rankdad.common.protocol.codec import pack, pack_failure, unpack
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.rounds.base import Ready
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step, check_weight
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.remote.aggregator import Aggregator, Answers, Update
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import Record
from rankdad.remote.results.progress import AGGREGATOR


@dataclass(frozen=True, eq=False)
class Outgoing:
    """What a region contributes to a round, and has no update for yet.

    Args:
        ready: the contributions that it is made of.
        body: its bytes.
        residuals: what the region keeps once the update is there.
        began: seconds on the clock of `perf_counter` at which it was begun.
    """

    ready: Ready
    body: bytes
    residuals: Residuals
    began: float


class Region(Aggregator):
    """The aggregator of one region. The caller brings `outgoing` up, and calls `answer` with what comes back.

    Args:
        name: of the region.
        spec: the run.
        replica: with the initial weights.
        directory: of the run, here.
        clock: seconds.
        run_id: the run's, as the aggregator above calls it.
        ledger: as in `Aggregator`.

    Attributes:
        outgoing: the contribution that waits for its update.
        told: whether the run was ended from above.
        recorded_above: asks the aggregator above for the update of a round that is damaged here; None if it has none.
    """

    def __init__(
        self,
        name: str,
        spec: RunSpec,
        replica: Replica,
        directory: Path,
        clock: Callable[[], float],
        run_id: str | None = None,
        *,
        ledger: LedgerOptions | None = None,
    ) -> None:
        self.outgoing: Outgoing | None = None
        self.told = False
        self.recorded_above: Callable[[int], bytes | None] = lambda round_: None
        super().__init__(spec, replica, directory, clock, ledger=ledger, name=name, run_id=run_id)

    def answer(self, body: bytes) -> Answers:
        """Take the update of the round that `outgoing` is of, and return the children's answers.

        Raises:
            UserError: the disk is full or broken.
            HalfwayError: only another process can go on.
        """
        outgoing = self.outgoing
        if outgoing is None or self.ended:
            return {}
        try:
            message = self._checked(body)
        except ProtocolError as error:
            reason = f"the update of round {self.barrier.round} from above cannot be used: {visible(str(error))}"
            return self.fail(AGGREGATOR, reason, code="update-unusable")
        self.outgoing = None
        if isinstance(message.body, Failure):
            self.told = True
            said = message.body
            self._outcome = ("failed", f"{said.site}: {said.reason}", said.code, said.field)
            return self._answers(self.barrier.fail(body))
        self._residuals = outgoing.residuals
        return self._conclude(outgoing.ready, Update(message, body), perf_counter() - outgoing.began)

    def failure(self) -> bytes:
        """Return what tells the aggregator above how the run has ended here."""
        round_ = self.barrier.round
        reason = visible(self._outcome[1] or "was stopped")  # its sites' words are for others, and its own hold no data
        body = Failure(site=self.node.name, reason=reason, code="region-stopped")
        return pack_failure(Message(Kind.FAILURE, round_, body))

    def _checked(self, body: bytes) -> Message:
        """Return the update in bytes from above, if it is what is due."""
        message = unpack(body, self.plan, up=False, device=self.device)
        if isinstance(message.body, Failure):
            return message
        self.state.check(message, 502)
        if message.missing:
            raise ProtocolError(
                502,
                "i: leaves somebody out, but with regions every round waits for all",
                code="site-left-out",
                field="i",
            )
        if isinstance(message.body, Step):
            check_weight(self.state, message, ())
        return message

    def _make(self, ready: Ready) -> None:
        """Combine the contributions to a round: its update comes from above."""
        began = perf_counter()
        self.outgoing = Outgoing(ready, *self._combined(ready), began)

    def _make_again(self, ready: Ready, record: Record) -> Update:
        body: bytes | None = record.body
        if record.damage is not None:
            body = self.recorded_above(record.round)
            if body is None:
                raise record.damage
            self.persistence.file.mend(record.round, body)
        assert body is not None
        _, self._residuals = self._combined(ready)
        return Update(unpack(body, self.plan, up=False, device=self.device), body)

    def _combined(self, ready: Ready) -> tuple[bytes, Residuals]:
        """Return what the region contributes to a round, and the residuals that it leaves.

        Raises:
            RunFailedError: the run cannot go on.
        """
        known = MethodState(self._residuals, self.state.bases)
        try:
            body, state = ROUNDS[ready.kind].combine(self._collected(ready, known))
            message = Message(ready.kind, ready.round, body, ready.exchange)
            return pack(message, self.plan, up=True, region=True), state.residuals
        except RankdadError as error:
            raise RunFailedError(AGGREGATOR, str(error), code=error.code, field=error.field) from None
