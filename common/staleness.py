"""Staleness: a contribution that is late for its step joins a later one, with a weight reduced by its age.

Age is the number of steps between the intended step and the one that it joins. This module has the conditions for runs,
the common rules, the aggregator's store of late contributions, and the site's record of them.
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
"""A step's round, and the indices of the sites whose contributions to it are still missing, ascending."""
Late = tuple[int, int]
"""Age and site's index of a contribution that joins a step."""


def check_federation(federation: Federation) -> None:
    """Check that contributions can be late in a run with staleness.

    Raises:
        ValueError: they cannot, or epochs have different numbers of steps.
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
    """Check that late contributions can join a later step of a method; None for an invalid method.

    Raises:
        ValueError: they cannot.
    """
    if method is None or not federation.staleness:
        return
    reason = ""
    if not method.joins_later:
        reason = f"a late contribution of {method.name} has no place in a later step: expected rank-dad or dsgd"
    elif getattr(method, "local_steps", None) is not None and getattr(method, "moments", None) == "kept":
        reason = "method.moments is kept, so it is unknown which steps a late site's moments include: "
        reason += "expected reset"
    if reason:
        raise ValueError(f"staleness: got {federation.staleness}, but {reason}, or staleness 0")


def damped(weight: float, age: int) -> float:
    """Return the weight of a contribution that is late by `age` steps.

    Source: arXiv 1903.03934 (polynomial staleness, exponent 1).
    """
    return weight / (1 + age)


def age_of(left_out: Sequence[LeftOut], round_: int) -> int | None:
    """Return the age in steps of a round's step; None if it is not among the last steps."""
    rounds = [known for known, _ in left_out]
    return len(rounds) - rounds.index(round_) if round_ in rounds else None


def check_late(left_out: Sequence[LeftOut], late: Collection[Late], names: Sequence[str]) -> None:
    """Check that late contributions in an update are from sites that the earlier steps left out.

    Raises:
        ProtocolError: they are not.
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
    """Return which contributions may still join after a step.

    Args:
        left_out: before the step, of its fold; the last step last.
        round_: of the step.
        missing: indices of the sites that it leaves out.
        late: contributions that join it.
        staleness: number of steps to remember.
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
        age: steps between its own step and the one that it joins.
        place: index of its site in the plan.
        message: decoded.
        size: of its body in bytes.
    """

    age: int
    place: int
    message: Message
    size: int


@dataclass
class Latecomers:
    """The aggregator's late contributions, and hashes of the last steps' contributions.

    A repeated contribution is answered again and counts once. Other bytes for the same round are refused.

    Args:
        staleness: steps by which a contribution may be late; 0 stores nothing.
    """

    staleness: int = 0
    _waiting: dict[tuple[int, int], LateContribution] = field(default_factory=dict)  # by age and index
    _known: dict[int, dict[int, int]] = field(default_factory=dict)  # hashes of bodies, by round and index

    def __len__(self) -> int:
        """Return the number of waiting contributions."""
        return len(self._waiting)

    def age(self, site: str, place: int, message: Message, body: bytes, run: RunState) -> int:
        """Return the age of a contribution that may join the next step; 0 if it may not, or has joined.

        Args:
            site: sender.
            place: index of the site in the plan.
            message: to a step before the current round.
            body: its bytes.
            run: its state.

        Raises:
            ProtocolError: 409 if the site has sent another one to that round, or the round was no step.
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
        """Store a contribution for the next step."""
        self._waiting[age, place] = LateContribution(age, place, message, len(body))
        self.note(place, message.round, body)

    def note(self, place: int, round_: int, body: bytes) -> None:
        """Record the hash of a site's contribution to a step."""
        if self.staleness:
            self._known.setdefault(round_, {})[place] = hash(body)

    def take(self) -> tuple[LateContribution, ...]:
        """Remove and return the contributions that join the current step, by age and index."""
        joining = tuple(late for _, late in sorted(self._waiting.items(), key=lambda item: item[0]))
        self._waiting = {}
        while len(self._known) > self.staleness:
            del self._known[min(self._known)]
        return joining

    def forget(self, place: int) -> None:
        """Drop the waiting contributions of a site that has lost its state."""
        self._waiting = {key: late for key, late in self._waiting.items() if late.place != place}

    def clear(self) -> None:
        """Drop all waiting contributions at the end of a fold."""
        self._waiting = {}


@dataclass(frozen=True, eq=False)
class Sent:
    """A site's contribution to a step that has left it out, until it has joined a later one or is too old.

    Residuals follow from updates alone: a late contribution changes them when an update includes it. Until then,
    contributions are computed as if it had been included, so that nothing is sent twice.

    Args:
        step: its number within the fold.
        weight: of the contribution.
        share: expected share of the step.
        change: of the residuals, if it is applied with that share.
    """

    step: int
    weight: float
    share: float
    change: Residuals


def assumed(residuals: Residuals, sent: Sequence[Sent]) -> Residuals:
    """Return the residuals, assuming that all late contributions join as expected."""
    for late in sent:
        residuals = plus(residuals, late.change, 1.0)
    return residuals


def residuals_after(known: Residuals, before: Residuals, after: Residuals, part: float) -> Residuals:
    """Return the residuals after a step that may include a contribution.

    Args:
        known: current residuals.
        before: residuals that the contribution was computed with.
        after: residuals if it is applied completely.
        part: fraction that is applied.
    """
    if before is known:
        return interpolate_residual(known, after, part)
    return plus(known, plus(after, before, -1.0), part) if part else known


def settle(
    residuals: Residuals, sent: Sequence[Sent], joins: Collection[Late], weight: float, place: int, run: RunState
) -> tuple[Residuals, tuple[Sent, ...]]:
    """Return the residuals after a step that may include late contributions, and those that may still join.

    Args:
        residuals: current ones.
        sent: to earlier steps, oldest first.
        joins: the step's late contributions.
        weight: total weight of the step.
        place: index of the site in the plan.
        run: before it applies the update.
    """
    step, staleness = run.replica.step, run.spec.federation.staleness
    joined = {step - age: age for age, late_place in joins if late_place == place}
    for late in sent:
        if late.step in joined:
            applied = damped(late.weight, joined[late.step]) / weight
            residuals = plus(residuals, late.change, applied / late.share)
    waiting = tuple(late for late in sent if late.step not in joined and late.step + staleness > step)
    return run.method.compacted(residuals), waiting  # sums would let residuals grow from step to step
