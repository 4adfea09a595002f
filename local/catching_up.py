"""How a site finds out where the run is: which rounds are complete already, and what has joined a later step."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from rankdad.common.protocol.messages import Ask, Kind, Message

R = TypeVar("R")
Steps = Generator[Message | Ask, Message | None, R]


class CatchingUp:
    """Ask for updates that the site may not have followed yet.

    Args:
        place: of the site in the plan.
        staleness: by how many steps a contribution may be late.

    Attributes:
        behind: whether the run may be further than the site: when it starts, and when an update has left it out.
    """

    def __init__(self, place: int, staleness: int) -> None:
        self._place, self._staleness = place, staleness
        self.behind = self._restarted = True
        self._ahead: dict[int, Message] = {}  # updates that it has asked for and not followed yet

    def note(self, update: Message) -> None:
        """Take note of whom an update leaves out."""
        self.behind = self.behind or self._place in update.missing

    def ask(self, round_: int) -> Steps[Message | None]:
        """Return the update of the next round if it is complete already; ask only if that may be."""
        if not self.behind:
            return None
        known = yield from self._recorded(round_)
        self._ahead.pop(round_, None)
        self.behind = known is not None
        self._restarted = self._restarted and self.behind
        return known

    def joins(self, known: Message) -> Steps[bool | None]:
        """Tell whether what the site sent to a step that left it out has joined a later one; None if it may yet.

        What it has sent since it was started, it knows. What it sent before a crash is in updates, or may come to be.

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
        """Tell whether all exchanges of a step are over, of which the update of one is known."""
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
