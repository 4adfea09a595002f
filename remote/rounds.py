"""The barrier: one state machine that no socket, clock or thread touches.

Every site contributes to a round once; when all have, the round is aggregated and every site receives the same bytes.
A site that asks again is answered again, so that retries are safe.

    state        event                                        effect
    COLLECTING   first contribution of a site to this round   kept; with the last one: Ready, AGGREGATING
    COLLECTING   another kind or phase than the round's       refused, 409
    AGGREGATING  complete(update)                             Answer to all; COLLECTING the next round, or ENDED
    any          the same contribution again                  none: it is waited for, or the stored Answer
    any          another contribution to the same round       refused, 409
    any          contribution to the round before this        Answer with the stored update
    any          any other round                              refused, 409
    any          fail(update)                                 Answer to all that wait; ENDED
    ENDED        anything after a failure                     Answer with the failure
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from common.errors import ProtocolError
from common.messages import Kind, Message


class Phase(Enum):
    """What the barrier is doing."""

    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    ENDED = "ended"


@dataclass(frozen=True)
class Answer:
    """Send these bytes to these sites."""

    sites: tuple[str, ...]
    body: bytes


@dataclass(frozen=True)
class Ready:
    """All contributions to a round are in, in the plan's order: aggregate them, then call `complete`.

    Args:
        kind: of the round.
        round: its number.
        phase: exchange within one optimizer step.
        messages: contributions in the plan's order.
        sizes: of their bodies in bytes.
        seconds: from the round's beginning to the last contribution.
    """

    kind: Kind
    round: int
    phase: int
    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    seconds: float


Effect = Answer | Ready


class Barrier:
    """Collect one contribution per site and round.

    Args:
        sites: names in the plan's order.
        now: seconds on the caller's clock.
    """

    def __init__(self, sites: Sequence[str], now: float) -> None:
        self.round = 0
        self.phase = Phase.COLLECTING
        self._sites = tuple(sites)
        self._bodies: dict[str, bytes] = {}
        self._messages: dict[str, Message] = {}
        self._stored: bytes | None = None  # the update of the round before this, or the failure that ended the run
        self._failed = False
        self._began = now

    def receive(self, site: str, body: bytes, message: Message, now: float) -> list[Effect]:
        """Take a checked contribution.

        Raises:
            ProtocolError: 404 for an unknown site, 409 for a conflict; nothing has changed then.
        """
        if site not in self._sites:
            raise ProtocolError(404, "no such site in this run")
        if self._failed:
            assert self._stored is not None
            return [Answer((site,), self._stored)]
        if message.round == self.round - 1 and self._stored is not None:
            return [Answer((site,), self._stored)]
        if message.round != self.round or self.phase is Phase.ENDED:
            state = "the run has ended" if self.phase is Phase.ENDED else f"the run is in round {self.round}"
            raise ProtocolError(409, f"r: got round {message.round}, but {state}")
        if site in self._bodies:
            if self._bodies[site] != body:
                raise ProtocolError(409, f"{site} has already sent another contribution to round {self.round}")
            return []
        for other, first in self._messages.items():
            if (first.kind, first.phase) != (message.kind, message.phase):
                raise ProtocolError(
                    409,
                    f"k: got {message.kind.name} phase {message.phase} in round {self.round}, where {other} sent "
                    f"{first.kind.name} phase {first.phase}",
                )
        self._bodies[site], self._messages[site] = body, message
        if len(self._bodies) < len(self._sites):
            return []
        self.phase = Phase.AGGREGATING
        return [
            Ready(
                message.kind,
                self.round,
                message.phase,
                tuple(self._messages[name] for name in self._sites),
                tuple(len(self._bodies[name]) for name in self._sites),
                now - self._began,
            )
        ]

    @property
    def stored(self) -> bytes | None:
        """The last answer: the update of the round before this, or the failure that ended the run."""
        return self._stored

    @property
    def failed(self) -> bool:
        """Whether a failure ended the run."""
        return self._failed

    def holds(self, site: str) -> bool:
        """Tell whether a site's contribution to this round is there."""
        return site in self._bodies

    def complete(self, update: bytes, now: float, *, last: bool) -> list[Effect]:
        """Store the round's update and go on to the next round; `last` ends the run."""
        if self.phase is not Phase.AGGREGATING:
            return []  # the run failed while the update was being made
        self._stored, self._bodies, self._messages = update, {}, {}
        self.round, self._began = self.round + 1, now
        self.phase = Phase.ENDED if last else Phase.COLLECTING
        return [Answer(self._sites, update)]

    def fail(self, update: bytes) -> list[Effect]:
        """End the run with a failure, which answers every site from now on."""
        if self.phase is Phase.ENDED:
            return []
        self._stored, self._failed, self.phase = update, True, Phase.ENDED
        return [Answer(self._sites, update)]

    def missing(self) -> tuple[str, ...]:
        """Return the sites that this round waits for."""
        if self.phase is not Phase.COLLECTING:
            return ()
        return tuple(name for name in self._sites if name not in self._bodies)

    def waiting(self, now: float) -> float:
        """Return for how many seconds this round has been open."""
        return now - self._began
