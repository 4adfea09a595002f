"""Contributions to a step in buckets that come before their round is due."""

from __future__ import annotations

from dataclasses import dataclass

from rankdad.common.protocol.message_sizes import body_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.remote.progress import Status


@dataclass(frozen=True, eq=False)
class Early:
    """A contribution that waits for its round.

    Args:
        site: that has sent it.
        round: of which it is.
        body: as it came; nobody has looked at it.
        computed: seconds that the site says it has computed for the step so far.
    """

    site: str
    round: int
    body: bytes
    computed: float | None


class EarlyContributions:
    """Keeps what sites send early: to the step that is under way alone, so no more than one message would have.

    Nothing of it is recorded before its round is due. Who is lost with it, as after a crash, sends it again.

    Args:
        plan: of the run.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kept: dict[tuple[str, int], Early] = {}
        self._taken: set[Early] = set()  # which the aggregator is looking at

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, status: Status, site: str, round_: int, body: bytes, computed: float | None) -> bool:
        """Keep a contribution, if it is to the step under way and no larger than it can be."""
        to_come = status.round + status.ahead - round_
        if not 0 <= to_come <= status.ahead or (site, round_) in self._kept:
            return False
        exchange = len(self._plan.exchanges) - 1 - to_come
        if len(body) > body_bytes(self._plan, exchange, up=True):
            return False
        self._kept[site, round_] = Early(site, round_, body, computed)
        return True

    def holds(self, site: str, round_: int) -> bool:
        """Tell whether a site's contribution to a round is there."""
        return (site, round_) in self._kept

    def due(self, round_: int) -> list[Early]:
        """Return what is to be taken in a round, each once; what is of a round before is dropped."""
        for early in [early for early in self._kept.values() if early.round < round_]:
            self.drop(early)
        found = [early for early in self._kept.values() if early.round == round_ and early not in self._taken]
        self._taken |= set(found)
        return found

    def drop(self, early: Early) -> None:
        """Drop a contribution that has been taken, or comes too late."""
        self._taken.discard(early)
        if self._kept.get((early.site, early.round)) is early:
            del self._kept[early.site, early.round]

    def forget(self, site: str) -> None:
        """Drop all that a site has sent."""
        for early in [early for early in self._kept.values() if early.site == site]:
            self.drop(early)
