"""Late contributions: which of them may join a later step, and with what weight. Pure functions.

Age is the number of steps between the step that a contribution was made for and the one that it joins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rankdad.common.errors import ProtocolError

LeftOut = tuple[int, tuple[int, ...]]
"""A step's round, and the places of the sites whose contributions to it have not taken part yet, in ascending order."""
Late = tuple[int, int]
"""Age and site's place of a contribution that joins a step."""


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
