"""A site's half of a run: whatever carries bytes hands in the last answer, and takes what the site says next.

said = site.advance()  # none is there to begin with
while said is not None:
    said = site.advance(carried(said))
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
        training: the trainer; `site_of` makes one from spec, policy and data.
        plan: of the run.
        device: of the replica.
        observer: told what happens beside the messages.
        check: raises a ProtocolError of an update that is not of the round that is due; nothing has changed then.

    Attributes:
        due: what the site has said last: a contribution, or the question whether a round is complete already; None
            before the beginning and after the end.
        result: of a site that has come to the run's end.
        ended: whether it takes no more answers: it has come to the end, or could not go on.
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
        """Take the answer to what was said last: its round's update; to a question maybe None; at the beginning None.

        Raises:
            ProtocolError: it is no answer to that: nothing has changed.
            RankdadError: the site cannot go on.
        """
        if self.ended or (not isinstance(self.due, Ask) and (answer is None) != (self.due is None)):
            expected = "no answer any more" if self.ended else "no answer yet" if self.due is None else "an update"
            raise ProtocolError(
                502, f"the site got another answer than it waits for: {expected}", code="answer-unexpected"
            )
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
        """Return a contribution, the number of a round of which the site asks whether it is complete, or None: the end.

        The answer to a question is the round's update, as `Aggregator.recorded` has it, or None where it is not
        complete, or nobody can tell.
        """
        if self.due is None or isinstance(self.due, Ask):
            return None if self.due is None else self.due.round
        body = pack(self.due, self.plan, up=True)
        self.observer.lap("pack")
        return body

    def advance(self, answer: bytes | None = None) -> bytes | int | None:
        """Take an answer, and return what the site says next.

        Without one it says its contribution once more; to a question none means that nobody knows.
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
                said = f"r: got round {update.round}, expected round {round_}"
                raise ProtocolError(502, said, code="round-unexpected", field="r")
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
    """Return a site that trains from wherever its state stands; see `train` for the arguments.

    Whether the policy allows the run is asked before, and what it admits of the data: by `taking_part`, or by
    `check_run` (`common.policy_checks`) and `admitted` (`local.admission`).
    """
    training = train(spec, plan, data, state, policy, observer, ranks=ranks, again=again)
    return Site(training, plan, device=state.run.replica.device, observer=observer, check=checking(state.run))


def checking(run: RunState) -> Callable[[Message], None]:
    """Return what checks an update of the round that is due in a run; later ones, which a site asks for, it passes."""

    def check(update: Message) -> None:
        if update.round == run.round:
            run.check(update, 502)

    return check
