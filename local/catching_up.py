"""Finds out how far the run is: which rounds are complete, and whether a late contribution has joined a step."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from rankdad.common.protocol.messages import Ask, Kind, Message

R = TypeVar("R")
Steps = Generator[Message | Ask, Message | None, R]


class CatchingUp:
    """Fetch updates that the site may not have applied yet.

    Args:
        place: of the site in the plan.
        staleness: steps by which a contribution may be late.

    Attributes:
        behind: whether the run may be ahead of the site: at the start, and after an update without this site.
    """

    def __init__(self, place: int, staleness: int) -> None:
        self._place, self._staleness = place, staleness
        self.behind = self._restarted = True
        self._ahead: dict[int, Message] = {}  # updates fetched and not applied yet

    def note(self, update: Message) -> None:
        """Note which sites an update leaves out."""
        self.behind = self.behind or self._place in update.missing

    def ask(self, round_: int) -> Steps[Message | None]:
        """Return the next round's update if it is complete; send a request only if it may be."""
        if not self.behind:
            return None
        known = yield from self._recorded(round_)
        self._ahead.pop(round_, None)
        self.behind = known is not None
        self._restarted = self._restarted and self.behind
        return known

    def joins(self, known: Message) -> Steps[bool | None]:
        """Return whether a contribution that a step left out has joined a later step; None if it still may.

        The site knows what it has sent since its start; earlier contributions are found in updates.

        Args:
            known: the step's update.
        """
        age, round_ = 0, known.round
        while self._restarted and age < self._staleness:
            round_ += 1
            later = yield from self._recorded(round_)
            if later is None:
                return None
            age += later.kind is Kind.STEP
            if later.kind is Kind.STEP and (age, self._place) in later.late:
                return True
            if later.kind in (Kind.GOODBYE, Kind.FAILURE) or getattr(later.body, "split", "") == "test":
                break
        return False

    def is_complete(self, known: Message, exchanges: int) -> Steps[bool]:
        """Return whether all exchanges of a step are complete, given one of their updates."""
        for later in range(1, exchanges - known.exchange):
            if (yield from self._recorded(known.round + later)) is None:
                return False
        return True

    def _recorded(self, round_: int) -> Steps[Message | None]:
        if round_ not in self._ahead:
            known = yield Ask(round_)
            if known is None:
                return None
            self._ahead[round_] = known
        return self._ahead[round_]
