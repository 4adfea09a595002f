"""The barrier: a state machine without sockets, clocks or threads.

Each site contributes once to a round. Then the round is aggregated, and all sites receive the same bytes. Retries are
safe, as repeated requests get the same answer. With a partial quorum, a round closes without late sites: they have
departed until they rejoin at the present round.

    state        event                                        effect
    COLLECTING   first contribution of a site to this round   stored; with the last one: Ready, AGGREGATING
    COLLECTING   the quorum is in, and the grace is over      Ready, AGGREGATING; missing sites depart
    COLLECTING   depart(site)                                 if all others are in: Ready, AGGREGATING
    AGGREGATING  complete(update)                             Answer to all; COLLECTING the next round, or ENDED
    any          the same contribution again                  none, or the stored Answer
    any          another contribution to the same round       refused, 409
    any          contribution to the round before this        Answer with the stored update; the site rejoins
    COLLECTING   stale.put(…)                                 joins the next step's Ready, outside the quorum
    any          any other round                              refused, 409
    any          fail(update)                                 Answer to all; ENDED
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

OLDER_COPY = "an aggregator cannot resume from an older or damaged copy of its directory: use the newest"


class BarrierState(Enum):
    """The barrier's state."""

    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    ENDED = "ended"


@dataclass(frozen=True)
class Answer:
    """Bytes for some sites."""

    sites: tuple[str, ...]
    body: bytes


Effect = Answer | Ready


class Barrier:
    """Collect one contribution per site and round.

    Args:
        sites: names of the contributors, in order.
        now: seconds on the caller's clock.
        quorum: number of sites that a round needs; all by default.
        grace: seconds to wait for other sites after the quorum is in.
        full_quorum_rounds: number of first rounds that need all sites: hello and preparation, whose sums and counts
            must be of the same samples.
        staleness: largest lateness of a contribution in steps.

    Attributes:
        stale: late contributions that join the next step.
        stored: the update of the previous round, or the failure that ended the run.
        failed: whether a failure ended the run.
        began: opening time of the round on the caller's clock, in seconds.
        departed: sites that the round does not wait for.
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
        self.stale = Latecomers(staleness)
        self.state = BarrierState.COLLECTING
        self.departed: set[str] = set()
        self._sites = tuple(sites)
        self._quorum, self._grace, self._full_quorum_rounds = quorum or len(sites), grace, full_quorum_rounds
        self._bodies: dict[str, bytes] = {}
        self._messages: dict[str, Message] = {}
        self._arrived: dict[str, float] = {}
        self.stored: bytes | None = None
        self.failed = False
        self.began = self._quorum_since = now

    @classmethod
    def of(cls, federation: Federation, children: Sequence[str], now: float, round_: int, stages: int) -> Barrier:
        """Create the barrier of a run with `stages` rounds of preparation, at a given round."""
        quorum = None if federation.regions else federation.required_sites
        barrier = cls(children, now, quorum, federation.grace, 1 + stages, federation.staleness)
        barrier.round = round_
        return barrier

    def refusal(self, round_: int) -> ProtocolError:
        """Return the error for a contribution or question about another round."""
        state = "the run has ended" if self.state is BarrierState.ENDED else f"the run is in round {self.round}"
        if round_ > self.round:
            state += f"; {OLDER_COPY}"
        return ProtocolError(409, f"r: got round {round_}, but {state}", code="round-unexpected", field="r")

    def receive(
        self, site: str, body: bytes, message: Message, now: float, admit: Callable[[], None] = lambda: None
    ) -> list[Effect]:
        """Take a contribution.

        Args:
            site: the sender.
            body: the received bytes.
            message: the decoded body.
            now: seconds on the caller's clock.
            admit: checks and records a new contribution to this round before it is stored, or raises.

        Raises:
            ProtocolError: 404 for an unknown site, 409 for a conflict; nothing has changed.
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
                    f"{site} has already sent another contribution to round {self.round}: does a second process use "
                    "its name and token? Stop one of the two",
                    code="contribution-repeated",
                )
            return []
        if self.state is BarrierState.AGGREGATING:
            if self.stale.staleness:
                raise self._send_again()
            return []  # just too late: it waits for the update like the others
        admit()
        self.put(site, body, message, now)
        return self.tick(now)

    def receive_late(
        self, site: str, body: bytes, message: Message, run: RunState, admit: Callable[[int], None]
    ) -> None:
        """Let a contribution to an earlier step join the next step, if it is not too late.

        Args:
            site: the sender.
            body: the received bytes.
            message: the decoded body.
            run: the run's state.
            admit: checks and records a contribution of the given age before it is stored, or raises.

        Raises:
            ProtocolError: see `Latecomers.age`; 503 if the site must send it again.
        """
        place = self._sites.index(site)
        if age := self.stale.age(site, place, message, body, run):
            if self.state is BarrierState.AGGREGATING:
                raise self._send_again()
            admit(age)
            self.stale.put(place, age, message, body)

    def _send_again(self) -> ProtocolError:
        """Return the error for a contribution that arrives while a round is being aggregated."""
        return ProtocolError(503, f"round {self.round} is being aggregated: send again", code="round-being-aggregated")

    def put(self, site: str, body: bytes, message: Message, now: float) -> None:
        """Store a contribution to this round; the last one counts."""
        self._bodies[site], self._messages[site], self._arrived[site] = body, message, now - self.began
        self.rejoin(site)
        if len(self._bodies) == self.quorum:
            self._quorum_since = now

    def forget(self, site: str) -> None:
        """Drop a site's contribution to this round, and its late one."""
        if self.state is BarrierState.COLLECTING:
            self._bodies.pop(site, None)
            self._messages.pop(site, None)
        self.stale.forget(self._sites.index(site))

    def rejoin(self, site: str) -> None:
        """Mark a site as being at the present round."""
        self.departed.discard(site)

    def depart(self, site: str, now: float) -> list[Effect]:
        """Stop waiting for a site until it sends something."""
        self.departed.add(site)
        return self.tick(now)

    def close(self, now: float) -> list[Effect]:
        """Close the round with the contributions that are in."""
        self.state = BarrierState.AGGREGATING
        places = tuple(place for place, name in enumerate(self._sites) if name in self._bodies)
        messages = tuple(self._messages[self._sites[place]] for place in places)
        sizes = tuple(len(self._bodies[self._sites[place]]) for place in places)
        missing = frozenset(range(len(self._sites))) - frozenset(places)
        self.departed |= {self._sites[place] for place in missing}
        first, late = messages[0], tuple[LateContribution, ...]()
        if first.kind is Kind.STEP:
            for place in places:
                self.stale.note(place, self.round, self._bodies[self._sites[place]])
            late = self.stale.take()
        here = (first.kind, self.round, first.exchange)
        arrived = tuple(self._arrived[self._sites[place]] for place in places)
        return [Ready(*here, places, messages, sizes, missing, now - self.began, late, arrived)]

    def tick(self, now: float) -> list[Effect]:
        """Close the round if all sites that it waits for are in, or if its quorum is in and its grace is over."""
        if self.state is not BarrierState.COLLECTING or not self.has_quorum:
            return []
        return self.close(now) if not self.missing() or now - self._quorum_since >= self._grace else []

    @property
    def quorum(self) -> int:
        """Number of sites that this round needs."""
        return len(self._sites) if self.round < self._full_quorum_rounds else self._quorum

    @property
    def has_quorum(self) -> bool:
        """Whether enough sites are in to close the round."""
        return len(self._bodies) >= self.quorum

    def holds(self, site: str) -> bool:
        """Return whether a site's contribution to this round is in."""
        return site in self._bodies

    def held(self, site: str) -> tuple[bytes, Body | None]:
        """Return the bytes and body that a site sent to this round; empty and None before."""
        message = self._messages.get(site)
        return self._bodies.get(site, b""), None if message is None else message.body

    def complete(self, update: bytes, now: float, *, last: bool) -> list[Effect]:
        """Store the round's update and open the next round; `last` ends the run."""
        if self.state is not BarrierState.AGGREGATING:
            return []  # the run failed while the update was being made
        self.stored, self._bodies, self._messages, self._arrived = update, {}, {}, {}
        self.round, self.began = self.round + 1, now
        self.state = BarrierState.ENDED if last else BarrierState.COLLECTING
        return [Answer(self._sites, update)]

    def follow(self, update: bytes, now: float, *, last: bool) -> None:
        """Advance to the next round by a stored update, without its contributions."""
        self.state = BarrierState.AGGREGATING
        self.complete(update, now, last=last)

    def fail(self, update: bytes) -> list[Effect]:
        """End the run with a failure, the answer to every site from now on."""
        if self.state is BarrierState.ENDED:
            return []
        self.stored, self.failed, self.state = update, True, BarrierState.ENDED
        return [Answer(self._sites, update)]

    def missing(self) -> tuple[str, ...]:
        """Return the sites that this round waits for; departed ones only if the quorum needs them."""
        if self.state is not BarrierState.COLLECTING:
            return ()
        missing = tuple(name for name in self._sites if name not in self._bodies)
        waited_for = tuple(name for name in missing if name not in self.departed)
        return waited_for if len(self._bodies) + len(waited_for) >= self.quorum else missing

    @property
    def without(self) -> tuple[str, ...]:
        """Departed sites that this round does not need."""
        waited_for = self.missing()
        return tuple(name for name in self._sites if name in self.departed and name not in waited_for)
