"""The barrier: one state machine that no socket, clock or thread touches.

Every site contributes to a round once; when all have, the round is aggregated and every site receives the same bytes.
A site that asks again is answered again, so that retries are safe. With a quorum below all, a round is closed without
those who are late: they have departed, and are not waited for until they rejoin at the present round.

    state        event                                        effect
    COLLECTING   first contribution of a site to this round   kept; with the last one: Ready, AGGREGATING
    COLLECTING   the quorum is in, and the grace is over      Ready, AGGREGATING; who is missing departs
    COLLECTING   depart(site)                                 not waited for; if all others are in: Ready, AGGREGATING
    AGGREGATING  complete(update)                             Answer to all; COLLECTING the next round, or ENDED
    any          the same contribution again                  none: it is waited for, or the stored Answer
    any          another contribution to the same round       refused, 409
    any          contribution to the round before this        Answer with the stored update; the site rejoins
    COLLECTING   latecomers.put(…)                            joins the next step's Ready; no quorum counts it
    any          any other round                              refused, 409
    any          fail(update)                                 Answer to all that wait; ENDED
    ENDED        anything after a failure                     Answer with the failure
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.messages import Body, Kind, Message
from rankdad.common.rounds.base import Ready
from rankdad.common.run.state import RunState
from rankdad.common.spec import Federation
from rankdad.common.staleness import Latecomers, LateContribution

OLDER_COPY = "an aggregator that was started with an older copy of its directory cannot go on: take the newest"


class BarrierState(Enum):
    """What the barrier is doing."""

    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    ENDED = "ended"


@dataclass(frozen=True)
class Answer:
    """Send these bytes to these sites."""

    sites: tuple[str, ...]
    body: bytes


Effect = Answer | Ready


class Barrier:
    """Collect one contribution per site and round.

    Args:
        sites: names of those that contribute, in order.
        now: seconds on the caller's clock.
        quorum: how many sites a round needs; all without it.
        grace: seconds for which the others are waited for when the quorum is in.
        full_quorum_rounds: how many rounds need all sites in any case: hello, and those of preparation. Their sums
            would else be of other samples than their counts.
        staleness: by how many steps a contribution may be late.

    Attributes:
        latecomers: what joins the next step.
        stored: the update of the round before this, or the failure that ended the run.
        failed: whether a failure ended the run.
        began: seconds on the caller's clock at which the round was opened.
        departed: sites that are not waited for.
    """

    def __init__(
        self,
        sites: Sequence[str],
        now: float,
        quorum: int | None = None,
        grace: float = 0.0,
        full_quorum_rounds: int = 1,
        staleness: int = 0,
    ) -> None:
        self.round = 0
        self.latecomers = Latecomers(staleness)
        self.state = BarrierState.COLLECTING
        self.departed: set[str] = set()
        self._sites = tuple(sites)
        self._quorum, self._grace, self._full_quorum_rounds = quorum or len(sites), grace, full_quorum_rounds
        self._bodies: dict[str, bytes] = {}
        self._messages: dict[str, Message] = {}
        self._arrived: dict[str, float] = {}
        self.stored: bytes | None = None
        self.failed = False
        self.began = self._quorum_since = now  # the round; when its quorum was in

    @classmethod
    def of(cls, federation: Federation, children: Sequence[str], now: float, round_: int, stages: int) -> Barrier:
        """Return an aggregator's barrier in a run with so many rounds of preparation, at a round."""
        quorum = None if federation.regions else federation.required_sites
        barrier = cls(children, now, quorum, federation.grace, 1 + stages, federation.staleness)
        barrier.round = round_
        return barrier

    def refusal(self, round_: int) -> ProtocolError:
        """Return what is said of a round that is not this one, contribution or question."""
        state = "the run has ended" if self.state is BarrierState.ENDED else f"the run is in round {self.round}"
        if round_ > self.round:
            state += f"; {OLDER_COPY}"
        return ProtocolError(409, f"r: got round {round_}, but {state}", code="round-unexpected", field="r")

    def receive(
        self, site: str, body: bytes, message: Message, now: float, admit: Callable[[], None] = lambda: None
    ) -> list[Effect]:
        """Take a contribution.

        Args:
            site: that sends it.
            body: as it came.
            message: that it holds.
            now: seconds on the caller's clock.
            admit: called for a new contribution to this round before it is kept: checks and records it, or raises.

        Raises:
            ProtocolError: 404 for an unknown site, 409 for a conflict; nothing has changed then.
        """
        if site not in self._sites:
            raise ProtocolError(404, "no such site in this run", code="site-unknown")
        if self.failed:
            assert self.stored is not None
            return [Answer((site,), self.stored)]
        if message.round == self.round - 1 and self.stored is not None:
            self.rejoin(site)
            return [Answer((site,), self.stored)]
        if message.round != self.round or self.state is BarrierState.ENDED:
            raise self.refusal(message.round)
        if site in self._bodies:
            if self._bodies[site] != body:
                raise ProtocolError(
                    409,
                    f"{site} has already sent another contribution to round {self.round}: does a second process take "
                    "part with its name and token? Stop one of the two",
                    code="contribution-repeated",
                )
            return []
        if self.state is BarrierState.AGGREGATING:
            if self.latecomers.staleness:
                raise self._send_again()
            return []  # too late by a moment: it waits for the update as all do
        admit()
        self.put(site, body, message, now)
        return self.tick(now)

    def receive_late(
        self, site: str, body: bytes, message: Message, run: RunState, admit: Callable[[int], None]
    ) -> None:
        """Let a contribution to an earlier step join the next, if it is not too late for that.

        Args:
            site: that sends it.
            body: as it came.
            message: that it holds.
            run: where the run is.
            admit: called with its age before it is kept: checks and records it, or raises.

        Raises:
            ProtocolError: see `Latecomers.age`; 503 where it has to be sent again.
        """
        place = self._sites.index(site)
        if age := self.latecomers.age(site, place, message, body, run):
            if self.state is BarrierState.AGGREGATING:
                raise self._send_again()
            admit(age)
            self.latecomers.put(place, age, message, body)

    def _send_again(self) -> ProtocolError:
        """Return what a site hears whose contribution would be lost, as a round is being aggregated."""
        return ProtocolError(503, f"round {self.round} is being aggregated: send again", code="round-being-aggregated")

    def put(self, site: str, body: bytes, message: Message, now: float) -> None:
        """Keep a contribution to this round, as `receive` does and the ledger says again; the last one stands."""
        self._bodies[site], self._messages[site], self._arrived[site] = body, message, now - self.began
        self.rejoin(site)
        if len(self._bodies) == self.quorum:
            self._quorum_since = now

    def forget(self, site: str) -> None:
        """Drop a site's contribution to this round, and what came late, by which it cannot stand any more."""
        if self.state is BarrierState.COLLECTING:
            self._bodies.pop(site, None)
            self._messages.pop(site, None)
        self.latecomers.forget(self._sites.index(site))

    def rejoin(self, site: str) -> None:
        """Take note that a site is at the present round, and can be waited for."""
        self.departed.discard(site)

    def depart(self, site: str, now: float) -> list[Effect]:
        """Do not wait for a site until it is heard of again."""
        self.departed.add(site)
        return self.tick(now)

    def close(self, now: float) -> list[Effect]:
        """Close the round with what is in."""
        self.state = BarrierState.AGGREGATING
        places = tuple(place for place, name in enumerate(self._sites) if name in self._bodies)
        messages = tuple(self._messages[self._sites[place]] for place in places)
        sizes = tuple(len(self._bodies[self._sites[place]]) for place in places)
        missing = frozenset(range(len(self._sites))) - frozenset(places)
        self.departed |= {self._sites[place] for place in missing}
        first, late = messages[0], tuple[LateContribution, ...]()
        if first.kind is Kind.STEP:
            for place in places:
                self.latecomers.note(place, self.round, self._bodies[self._sites[place]])
            late = self.latecomers.take()
        here = (first.kind, self.round, first.exchange)
        arrived = tuple(self._arrived[self._sites[place]] for place in places)
        return [Ready(*here, places, messages, sizes, missing, now - self.began, late, arrived)]

    def tick(self, now: float) -> list[Effect]:
        """Close the round if all that it waits for are in, or if its quorum is in and its grace is over."""
        if self.state is not BarrierState.COLLECTING or not self.has_quorum:
            return []
        return self.close(now) if not self.missing() or now - self._quorum_since >= self._grace else []

    @property
    def quorum(self) -> int:
        """How many sites this round needs."""
        return len(self._sites) if self.round < self._full_quorum_rounds else self._quorum

    @property
    def has_quorum(self) -> bool:
        """Whether enough sites are in for the round to close."""
        return len(self._bodies) >= self.quorum

    def holds(self, site: str) -> bool:
        """Tell whether a site's contribution to this round is there."""
        return site in self._bodies

    def held(self, site: str) -> tuple[bytes, Body | None]:
        """Return what a site has sent to this round: as it came, and what it holds; nothing before."""
        message = self._messages.get(site)
        return self._bodies.get(site, b""), None if message is None else message.body

    def complete(self, update: bytes, now: float, *, last: bool) -> list[Effect]:
        """Store the round's update and go on to the next round; `last` ends the run."""
        if self.state is not BarrierState.AGGREGATING:
            return []  # the run failed while the update was being made
        self.stored, self._bodies, self._messages, self._arrived = update, {}, {}, {}
        self.round, self.began = self.round + 1, now
        self.state = BarrierState.ENDED if last else BarrierState.COLLECTING
        return [Answer(self._sites, update)]

    def follow(self, update: bytes, now: float, *, last: bool) -> None:
        """Go on to the next round by the update alone: what it was made from is not there any more."""
        self.state = BarrierState.AGGREGATING
        self.complete(update, now, last=last)

    def fail(self, update: bytes) -> list[Effect]:
        """End the run with a failure, which answers every site from now on."""
        if self.state is BarrierState.ENDED:
            return []
        self.stored, self.failed, self.state = update, True, BarrierState.ENDED
        return [Answer(self._sites, update)]

    def missing(self) -> tuple[str, ...]:
        """Return the sites that this round waits for: those that have departed only if its quorum needs them."""
        if self.state is not BarrierState.COLLECTING:
            return ()
        missing = tuple(name for name in self._sites if name not in self._bodies)
        waited_for = tuple(name for name in missing if name not in self.departed)
        return waited_for if len(self._bodies) + len(waited_for) >= self.quorum else missing

    @property
    def without(self) -> tuple[str, ...]:
        """The sites that have departed and that this round can do without."""
        waited_for = self.missing()
        return tuple(name for name in self._sites if name in self.departed and name not in waited_for)
