"""A site's half of a run, for any carrier of bytes: it takes the last answer and returns the next message.

message = site.advance()  # no answer at the beginning
while message is not None:
    message = site.advance(carried(message))
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from rankdad.common.data import SiteData
from rankdad.common.errors import ProtocolError
from rankdad.common.policy import Policy
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.observer import Observer
from rankdad.local.ranks.alone import Alone
from rankdad.local.training import Result, TrainingState, train

R = TypeVar("R")


class Site(Generic[R]):
    """A trainer whose messages are bytes.

    Args:
        training: the trainer; see `site_of`.
        plan: of the run.
        device: of the replica.
        observer: callbacks.
        check: raises a ProtocolError for an update of a wrong round, before anything changes.

    Attributes:
        due: the last message: a contribution, or the question whether a round is complete; None before the beginning
            and after the end.
        result: of a site that has reached the run's end.
        ended: whether it has reached the end or failed, and takes no more answers.
    """

    result: R

    def __init__(
        self,
        training: Generator[Message | Ask, Message | None, R],
        plan: Plan,
        *,
        device: str = "cpu",
        observer: Observer | None = None,
        check: Callable[[Message], object] = lambda update: None,
    ) -> None:
        self.plan, self.observer = plan, observer or Observer()
        self._training, self._device, self._check = training, device, check
        self.due: Message | Ask | None = None
        self.ended = False

    def take(self, answer: bytes | None = None) -> None:
        """Take the answer to the last message: its round's update, or None at the beginning and to some questions.

        Raises:
            ProtocolError: the answer does not fit; nothing has changed.
            RankdadError: the site failed.
        """
        if self.ended or (not isinstance(self.due, Ask) and (answer is None) != (self.due is None)):
            expected = "it has ended" if self.ended else "it has asked nothing yet" if self.due is None else "no update"
            raise ProtocolError(502, f"the site got an unexpected answer: {expected}", code="answer-unexpected")
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
            self.due, self.ended, self.result = None, True, stop.value
        except BaseException:
            self.ended = True
            raise

    def say(self) -> bytes | int | None:
        """Return a contribution, the number of a round that may be complete, or None at the end.

        The answer to a round's number is its update, as from `Aggregator.recorded`, or None if it is not complete or
        not known.
        """
        if self.due is None or isinstance(self.due, Ask):
            return None if self.due is None else self.due.round
        body = pack(self.due, self.plan, up=True)
        self.observer.lap("pack")
        return body

    def advance(self, answer: bytes | None = None) -> bytes | int | None:
        """Take an answer, and return the next message.

        Without an answer, a contribution is repeated; for a round's number, None means that it is not known.
        """
        if answer is not None or not (self.ended or isinstance(self.due, Message)):
            self.take(answer)
        return self.say()

    def _update(self, answer: bytes, round_: int) -> Message:
        try:
            update = unpack(answer, self.plan, up=False, device=self._device)
        except ProtocolError as error:
            raise ProtocolError(
                502,
                f"the aggregator's update of round {round_} cannot be used: {error}",
                code="update-unusable",
            ) from None
        if update.kind is not Kind.FAILURE:
            if update.round != round_:
                text = f"r: got round {update.round}, expected round {round_}"
                raise ProtocolError(502, text, code="round-unexpected", field="r")
            self._check(update)
        return update


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
    """Return a site that trains from the given state; see `train` for the arguments.

    The caller has checked the run against the policy and filtered the data: with `taking_part`, or with `check_run`
    (`common.policy_checks`) and `admitted` (`local.admission`).
    """
    training = train(spec, plan, data, state, policy, observer, ranks=ranks, again=again)
    return Site(training, plan, device=state.run.replica.device, observer=observer, check=checking(state.run))


def checking(run: RunState) -> Callable[[Message], None]:
    """Return a check of updates for the round that is due; updates of later rounds, for questions, pass."""

    def check(update: Message) -> None:
        if update.round == run.round:
            run.check(update, 502)

    return check
