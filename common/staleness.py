"""Staleness: a contribution that comes after its own step joins a later one, by its age with less weight.

Age is the number of steps between the step that a contribution was made for and the one that it joins. Here are which
runs may have any, the rules that everybody follows, what the aggregator keeps of late ones, and what their site does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankdad.common.errors import ProtocolError
from rankdad.common.lowrank.reduction.feedback import Residuals, interpolate_residual, plus

if TYPE_CHECKING:
    from rankdad.common.methods import MethodOptions
    from rankdad.common.protocol.messages import Message
    from rankdad.common.run.state import RunState
    from rankdad.common.spec import Federation

MAX_STALENESS = 64
LeftOut = tuple[int, tuple[int, ...]]
"""A step's round, and the places of the sites whose contributions to it have not taken part yet, in ascending order."""
Late = tuple[int, int]
"""Age and site's place of a contribution that joins a step."""


def check_federation(federation: Federation) -> None:
    """Check that somebody may be late in a run that lets late contributions join.

    Raises:
        ValueError: nobody may, or epochs differ in their steps.
    """
    if federation.staleness and federation.required_sites == len(federation.sites):
        raise ValueError(
            f"staleness: got {federation.staleness}, but the quorum is {federation.quorum}, and no contribution comes "
            "late: expected 0, or a quorum of fewer than all sites"
        )
    if federation.staleness and any(own.epochs is not None for own in federation.overrides.values()):
        raise ValueError(
            f"staleness: got {federation.staleness}, but overrides end a site's training early, and epochs then differ "
            "in their steps: expected 0, or no epochs in overrides"
        )


def check_method(federation: Federation, method: MethodOptions | None) -> None:
    """Check that what is late can join a later step of a method; None of one that is refused anyway.

    Raises:
        ValueError: it cannot.
    """
    if method is None or not federation.staleness:
        return
    reason = ""
    if not method.joins_later:
        reason = f"a late contribution of {method.name} has no place in a later step: expected rank-dad or dsgd"
    elif getattr(method, "local_steps", None) is not None and getattr(method, "moments", None) == "kept":
        reason = "method.moments is kept, and nobody could say after which steps a late site's moments are: "
        reason += "expected reset"
    if reason:
        raise ValueError(f"staleness: got {federation.staleness}, but {reason}, or staleness 0")


def damped(weight: float, age: int) -> float:
    """Return the weight with which a contribution counts that is late by `age` steps.

    Source: arXiv 1903.03934 (polynomial staleness, exponent 1).
    """
    return weight / (1 + age)


def age_of(left_out: Sequence[LeftOut], round_: int) -> int | None:
    """Return how many steps ago a round's step was; None if the round was none of the last steps."""
    rounds = [known for known, _ in left_out]
    return len(rounds) - rounds.index(round_) if round_ in rounds else None


def check_late(left_out: Sequence[LeftOut], late: Collection[Late], names: Sequence[str]) -> None:
    """Check that what an update includes of earlier steps is of sites that these have left out.

    Raises:
        ProtocolError: it is not.
    """
    for age, place in late:
        if age > len(left_out) or place not in left_out[-age][1]:
            raise ProtocolError(
                502,
                f"l: {names[place]} took part in the step {age} before, or has joined since",
                code="lateness-impossible",
                field="l",
            )


def after_step(
    left_out: Sequence[LeftOut], round_: int, missing: Collection[int], late: Collection[Late], staleness: int
) -> tuple[LeftOut, ...]:
    """Return whose contributions may still join once a step is over.

    Args:
        left_out: before the step, of its fold; the last step last.
        round_: of the step.
        missing: places of the sites that it leaves out.
        late: what joins it.
        staleness: how many steps are kept.
    """
    if not staleness:
        return ()
    ages = range(len(left_out), 0, -1)
    kept = [
        (known, tuple(place for place in places if (age, place) not in late))
        for age, (known, places) in zip(ages, left_out, strict=True)
    ]
    return (*kept, (round_, tuple(sorted(missing))))[-staleness:]


@dataclass(frozen=True)
class LateContribution:
    """A contribution to an earlier step.

    Args:
        age: how many steps before the one that it joins.
        place: of its site in the plan.
        message: that it holds.
        size: of its body in bytes.
    """

    age: int
    place: int
    message: Message
    size: int


@dataclass
class Latecomers:
    """What is late at the aggregator, and what is known of the last steps' contributions.

    What a site sends again is answered again and counts once. Other bytes for the same round are refused.

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


@dataclass(frozen=True, eq=False)
class Sent:
    """A site's contribution to a step that has left it out, until it has joined a later one or is too old for that.

    The residuals follow from updates alone: a late contribution changes them by its part once an update includes it.
    Until then the next contributions are made as if it had been included as it was meant: nothing is sent twice.

    Args:
        step: its number within the fold.
        weight: of the contribution.
        share: that the site took its part in the step to be.
        change: by what it changes the residuals if it is applied with that share.
    """

    step: int
    weight: float
    share: float
    change: Residuals


def assumed(residuals: Residuals, sent: Sequence[Sent]) -> Residuals:
    """Return the residuals as they are if all that is late joins as it was meant."""
    for late in sent:
        residuals = plus(residuals, late.change, 1.0)
    return residuals


def residuals_after(known: Residuals, before: Residuals, after: Residuals, part: float) -> Residuals:
    """Return the residuals once a step has included a contribution.

    Args:
        known: for certain.
        before: that the contribution was made with.
        after: of the contribution as it was meant.
        part: how much of it is applied; 0 if it is not.
    """
    if before is known:
        return interpolate_residual(known, after, part)
    return plus(known, plus(after, before, -1.0), part) if part else known


def settle(
    residuals: Residuals, sent: Sequence[Sent], joins: Collection[Late], weight: float, place: int, run: RunState
) -> tuple[Residuals, tuple[Sent, ...]]:
    """Return the residuals once a step has included what came late for an earlier one, and what may still join.

    Args:
        residuals: known for certain.
        sent: to earlier steps, oldest first.
        joins: what the step includes.
        weight: of all that it includes.
        place: of the site in the plan.
        run: which has not followed the update yet.
    """
    step, staleness = run.replica.step, run.spec.federation.staleness
    joined = {step - age: age for age, late_place in joins if late_place == place}
    for late in sent:
        if late.step in joined:
            applied = damped(late.weight, joined[late.step]) / weight
            residuals = plus(residuals, late.change, applied / late.share)
    waiting = tuple(late for late in sent if late.step not in joined and late.step + staleness > step)
    return run.method.compacted(residuals), waiting  # sums would let them grow from step to step
