"""A relay's file: speed of links, and faults by request.

Everything follows from the seed and the number of a request. Connections and requests are counted from 1 in the order
of their arrival at the relay; a response has the number of its request.
"""

from __future__ import annotations

from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.numbers import NonNegativeFloat, PositiveFloat, PositiveInt
from rankdad.common.seeds import derive

Direction = Literal["request", "response"]
NUMBERS_KEPT = 1000  # numbers of affected requests in a report, for each kind and direction
IN_VAIN = "not overtaken"  # a delayed request that no other passed in time


class Rule(Part):
    """Selection of messages for a fault: those named by any of `probability`, `every` and `at`."""

    direction: Direction = "request"
    """Requests or responses."""
    probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    """For each message, drawn by the relay's seed and the message's number."""
    every: PositiveInt | None = None
    """Every n-th message."""
    at: tuple[PositiveInt, ...] = ()
    """Numbers of messages."""
    connections: tuple[PositiveInt, ...] | None = None
    """Numbers of affected connections; null is all."""
    most: PositiveInt = 100
    """Maximum number of faults, so that a run can finish."""

    @model_validator(mode="after")
    def _selects_messages(self) -> Rule:
        if not (self.probability or self.every or self.at):
            raise ValueError("selects no message, expected one of probability, every and at")
        return self

    def names(self, number: int, connection: int, seed: int) -> bool:
        """Return whether the rule selects a message."""
        if self.connections is not None and connection not in self.connections:
            return False
        if number in self.at or (self.every is not None and number % self.every == 0):
            return True
        return self.probability > 0 and Random(derive(seed, number)).random() < self.probability


class Drop(Rule):
    """From this message on nothing passes; the connection is silent and closed after a while."""

    kind: Literal["drop"]
    """The rule's name."""
    seconds: NonNegativeFloat = 5.0
    """Of silence."""


class Delay(Rule):
    """The message waits."""

    kind: Literal["delay"]
    """The rule's name."""
    seconds: PositiveFloat
    """Duration of the delay."""


class Duplicate(Rule):
    """The request is sent a second time, at once, on a separate connection; that response is discarded."""

    kind: Literal["duplicate"]
    """The rule's name."""
    direction: Literal["request"] = "request"
    """Only requests can be duplicated."""


class Cut(Rule):
    """The message and both connections break off."""

    after: Annotated[int, Field(ge=0)] | None = None
    """Bytes of the message that pass, with its head; null draws them by the relay's seed."""

    def place(self, size: int, number: int, seed: int) -> int:
        """Return the number of a message's bytes that pass; at least one is missing."""
        return (
            min(self.after, size - 1) if self.after is not None else Random(derive(seed, number, "cut")).randrange(size)
        )


class Truncate(Cut):
    """The message breaks off, and both connections are closed normally."""

    kind: Literal["truncate"]
    """The rule's name."""


class Reset(Cut):
    """The message breaks off, and both connections are reset (RST)."""

    kind: Literal["reset"]
    """The rule's name."""


class Reorder(Rule):
    """The request is held back until a later one of another connection has passed."""

    kind: Literal["reorder"]
    """The rule's name."""
    direction: Literal["request"] = "request"
    """Only requests can be overtaken."""
    seconds: PositiveFloat = 2.0
    """Maximum delay, as other requests may depend on this one."""


Fault = Annotated[Drop | Delay | Duplicate | Truncate | Reset | Reorder, Field(discriminator="kind")]


class RelaySpec(Part):
    """A relay between sites and aggregator."""

    seed: int = 0
    """Seed of all random choices."""
    delay: NonNegativeFloat = 0.0
    """One-way delay of every byte in milliseconds."""
    jitter: NonNegativeFloat = 0.0
    """Maximum addition to the delay in milliseconds, drawn for every piece; bytes keep their order."""
    bandwidth: PositiveFloat | None = None
    """Bytes per second of each connection and direction; null is unlimited."""
    shared_bandwidth: PositiveFloat | None = None
    """Bytes per second of all connections together, in each direction, like the aggregator's link."""
    faults: tuple[Fault, ...] = ()
    """Faults; the first rule that selects a message applies."""


class Script:
    """Chooses faults and counts them.

    Args:
        spec: the relay's.
    """

    def __init__(self, spec: RelaySpec) -> None:
        self._spec = spec
        self._left = [rule.most for rule in spec.faults]
        self._counts: dict[str, dict[str, Any]] = {}

    def choose(self, direction: Direction, number: int, connection: int) -> Fault | None:
        """Return the fault of a message, or None."""
        for place, rule in enumerate(self._spec.faults):
            seed = derive(self._spec.seed, "fault", place)
            if rule.direction == direction and self._left[place] and rule.names(number, connection, seed):
                self._left[place] -= 1
                return rule
        return None

    def count(self, kind: str, direction: Direction, number: int) -> None:
        """Count a fault."""
        counted = self._counts.setdefault(kind, {"count": 0})
        counted["count"] += 1
        numbers = counted.setdefault(f"{direction}s", [])
        if len(numbers) < NUMBERS_KEPT:
            numbers.append(number)

    @property
    def counts(self) -> dict[str, dict[str, Any]]:
        """Number of faults by kind, with the numbers of affected messages."""
        return {kind: self._counts[kind] for kind in sorted(self._counts)}
