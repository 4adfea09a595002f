"""A site's half of a run: whatever carries bytes hands in the last answer, and takes what the site says next.

said = site.advance()  # none is there to begin with
while said is not None:
    said = site.advance(carried(said))
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, TypeVar

from rankdad.common.data import SiteData
from rankdad.common.errors import ProtocolError
from rankdad.common.policy import Policy
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.spec import RunSpec
from rankdad.local.observer import Observer
from rankdad.local.ranks.alone import Alone
from rankdad.local.training import Result, TrainingState, train

R = TypeVar("R")


class Site(Generic[R]):
    """A trainer whose messages are bytes.

    Args:
        training: the trainer; `site_of` makes one from spec, policy and data.
        plan: of the run.
        device: of the replica.
        observer: told what happens beside the messages.

    Attributes:
        due: what the site has said last: a contribution, or the question whether a round is complete already; None
            before the beginning and after the end.
        result: of a site that has come to the run's end.
    """

    result: R

    def __init__(
        self,
        training: Generator[Message | Ask, Message | None, R],
        plan: Plan,
        *,
        device: str = "cpu",
        observer: Observer | None = None,
    ) -> None:
        self.plan, self.observer = plan, observer or Observer()
        self._training, self._device = training, device
        self.due: Message | Ask | None = None

    def take(self, answer: bytes | None = None) -> None:
        """Take the answer to what was said last: its round's update; to a question maybe None.

        Raises:
            RankdadError: the site cannot go on.
        """
        update = None
        if answer is not None:
            assert self.due is not None
            update = self._update(answer, self.due.round)
            if update.kind is not Kind.FAILURE:
                self.observer.answered(self.due.round, answer)
        self.observer.lap("pack")
        try:
            self.due = self._training.send(update)
        except StopIteration as stop:
            self.due, self.result = None, stop.value

    def say(self) -> bytes | int | None:
        """Return a contribution, the number of a round of which the site asks whether it is complete, or None: the end.

        The answer to a question is the round's update, or None where it is not complete, or nobody can tell.
        """
        if self.due is None or isinstance(self.due, Ask):
            return None if self.due is None else self.due.round
        body = pack(self.due, self.plan, up=True)
        self.observer.lap("pack")
        return body

    def advance(self, answer: bytes | None = None) -> bytes | int | None:
        """Take an answer, and return what the site says next; without one, it says a contribution once more."""
        if answer is not None or not isinstance(self.due, Message):
            self.take(answer)
        return self.say()

    def _update(self, answer: bytes, round_: int) -> Message:
        try:
            return unpack(answer, self.plan, up=False, device=self._device)
        except ProtocolError as error:
            raise ProtocolError(
                502,
                f"the aggregator's update of round {round_} cannot be used: {error}",
                code="update-unusable",
            ) from None


def site_of(
    spec: RunSpec,
    plan: Plan,
    data: SiteData,
    state: TrainingState,
    policy: Policy,
    observer: Observer | None = None,
    *,
    ranks: Alone | None = None,
    again: bool = False,
) -> Site[Result]:
    """Return a site that trains from wherever its state stands; see `train` for the arguments."""
    training = train(spec, plan, data, state, policy, observer, ranks=ranks, again=again)
    return Site(training, plan, device=state.run.replica.device, observer=observer)
