"""Contributions that came after their own step: they wait for the next step to close, and join it.

What a site sends again is answered again and counts once. Other bytes for the same round are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.messages import Message
from rankdad.common.rounds.base import LateContribution
from rankdad.common.run.lateness import age_of
from rankdad.common.run.state import RunState


@dataclass
class Latecomers:
    """What is late, and what is known of the last steps' contributions.

    Args:
        staleness: by how many steps a contribution may be late; 0 keeps nothing.
    """

    staleness: int = 0
    _waiting: dict[tuple[int, int], LateContribution] = field(default_factory=dict)  # by age and place
    _known: dict[int, dict[int, int]] = field(default_factory=dict)  # a hash of every body, by round and place

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def age(self, site: str, place: int, message: Message, body: bytes, run: RunState) -> int:
        """Return how many steps ago a contribution was due that may join the next step; 0 if it may not, or has joined.

        Args:
            site: that sends it.
            place: of the site in the plan.
            message: of a step before the round that is open.
            body: as it came.
            run: where the run is.

        Raises:
            ProtocolError: 409 if the site has sent another one to that round, or if that was no step's.
        """
        known = self._known.get(message.round, {}).get(place)
        if known is not None and known != hash(body):
            raise ProtocolError(
                409,
                f"{site} has already sent another contribution to round {message.round}",
                code="contribution-repeated",
            )
        age = age_of(run.progress.left_out, message.round)
        if age is None:
            if run.progress.left_out and message.round > run.progress.left_out[0][0]:
                raise ProtocolError(
                    409,
                    f"r: got a step of {site} in round {message.round}, which was no step's",
                    code="round-unexpected",
                    field="r",
                )
            return 0
        is_out = place in run.progress.left_out[-age][1] and known is None
        return age if is_out and run.trains and run.weight(place, age) else 0

    def put(self, place: int, age: int, message: Message, body: bytes) -> None:
        """Let a contribution wait for the next step to close."""
        self._waiting[age, place] = LateContribution(age, place, message, len(body))
        self.note(place, message.round, body)

    def note(self, place: int, round_: int, body: bytes) -> None:
        """Take note of what a site has sent to a step."""
        if self.staleness:
            self._known.setdefault(round_, {})[place] = hash(body)

    def take(self) -> tuple[LateContribution, ...]:
        """Return what joins the step that closes now, in order of age and place; nothing waits any more."""
        joining = tuple(late for _, late in sorted(self._waiting.items(), key=lambda item: item[0]))
        self._waiting = {}
        while len(self._known) > self.staleness:
            del self._known[min(self._known)]
        return joining

    def forget(self, place: int) -> None:
        """Drop what waits of a site that has lost its state."""
        self._waiting = {key: late for key, late in self._waiting.items() if late.place != place}

    def clear(self) -> None:
        """Drop all that waits: the fold is over."""
        self._waiting = {}
