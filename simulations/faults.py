"""A relay's file: how slow its links are, and which faults it makes of which requests.

Everything follows from the seed and from the number of a request: connections and requests are counted from 1 in the
order in which they reach the relay, and a response has the number of its request.
"""

from __future__ import annotations

from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.numbers import NonNegativeFloat, PositiveFloat, PositiveInt
from rankdad.common.run.seeds import derive

Direction = Literal["request", "response"]
NUMBERS_KEPT = 1000  # of affected requests, per kind and direction: what is reported stays small
IN_VAIN = "not overtaken"  # a request was held back, and none passed it in time


class Rule(Part):
    """Which messages a fault befalls: those that any of `probability`, `every` and `at` names."""

    direction: Direction = "request"
    """Whether requests or their responses are meant."""
    probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    """With which each message is drawn, by the relay's seed and the message's number."""
    every: PositiveInt | None = None
    """Every so many messages, by their numbers."""
    at: tuple[PositiveInt, ...] = ()
    """Numbers of messages."""
    connections: tuple[PositiveInt, ...] | None = None
    """Numbers of the only connections that are meant; null means all."""
    most: PositiveInt = 100
    """How often at most, so that a run comes to its end."""

    @model_validator(mode="after")
    def _befalls_something(self) -> Rule:
        if not (self.probability or self.every or self.at):
            raise ValueError("befalls no message, expected one of probability, every and at")
        return self

    def names(self, number: int, connection: int, seed: int) -> bool:
        """Tell whether a message is meant."""
        if self.connections is not None and connection not in self.connections:
            return False
        if number in self.at or (self.every is not None and number % self.every == 0):
            return True
        return self.probability > 0 and Random(derive(seed, number)).random() < self.probability


class Drop(Rule):
    """From this message on nothing passes any more; the connection is silent, and closed after a while."""

    kind: Literal["drop"]
    """The rule's name."""
    seconds: NonNegativeFloat = 5.0
    """Of silence."""


class Delay(Rule):
    """The message waits."""

    kind: Literal["delay"]
    """The rule's name."""
    seconds: PositiveFloat
    """For which it waits."""


class Duplicate(Rule):
    """The request is sent a second time, at once, on a connection of its own; nobody hears the answer to that."""

    kind: Literal["duplicate"]
    """The rule's name."""
    direction: Literal["request"] = "request"
    """Only requests can be sent twice."""


class Cut(Rule):
    """The message breaks off, and both ends' connections with it."""

    after: Annotated[int, Field(ge=0)] | None = None
    """Bytes of the message, head included, that pass before; null draws them by the relay's seed."""

    def place(self, size: int, number: int, seed: int) -> int:
        """Return how many of a message's bytes pass: at least one is missing."""
        return (
            min(self.after, size - 1) if self.after is not None else Random(derive(seed, number, "cut")).randrange(size)
        )


class Truncate(Cut):
    """The message breaks off, and both connections are closed in good order."""

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
    """Only requests can be overtaken: each connection has its responses to itself."""
    seconds: PositiveFloat = 2.0
    """For which it is held back at most: the others may be waiting for this very request."""


Fault = Annotated[Drop | Delay | Duplicate | Truncate | Reset | Reorder, Field(discriminator="kind")]


class RelaySpec(Part):
    """A relay between sites and aggregator."""

    seed: int = 0
    """Of everything that is drawn."""
    delay: NonNegativeFloat = 0.0
    """Milliseconds that every byte takes one way."""
    jitter: NonNegativeFloat = 0.0
    """Most milliseconds that are added to the delay, drawn anew for every piece; bytes keep their order."""
    bandwidth: PositiveFloat | None = None
    """Bytes per second of each connection, in each direction; null means no limit."""
    shared_bandwidth: PositiveFloat | None = None
    """Bytes per second of all connections together, in each direction, as of the aggregator's link."""
    faults: tuple[Fault, ...] = ()
    """What goes wrong; of the rules that name a message, the first befalls it."""

    @property
    def longest(self) -> float:
        """Seconds that a single fault costs at most."""
        return max((getattr(fault, "seconds", 0.0) for fault in self.faults), default=0.0)


class Script:
    """Decides what befalls each message, and counts it.

    Args:
        spec: of the relay.
    """

    def __init__(self, spec: RelaySpec) -> None:
        self._spec = spec
        self._left = [rule.most for rule in spec.faults]
        self._counts: dict[str, dict[str, Any]] = {}

    def choose(self, direction: Direction, number: int, connection: int) -> Fault | None:
        """Return what befalls a message."""
        for place, rule in enumerate(self._spec.faults):
            seed = derive(self._spec.seed, "fault", place)
            if rule.direction == direction and self._left[place] and rule.names(number, connection, seed):
                self._left[place] -= 1
                return rule
        return None

    def count(self, kind: str, direction: Direction, number: int) -> None:
        """Take note of what was done to a message."""
        counted = self._counts.setdefault(kind, {"count": 0})
        counted["count"] += 1
        numbers = counted.setdefault(f"{direction}s", [])
        if len(numbers) < NUMBERS_KEPT:
            numbers.append(number)

    @property
    def counts(self) -> dict[str, dict[str, Any]]:
        """By kind: how often, and to the requests or responses of which numbers."""
        return {kind: self._counts[kind] for kind in sorted(self._counts)}
