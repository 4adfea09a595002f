"""The base of all kinds of rounds. One file per kind has all its code for site, aggregator, region, replay and record.

A site makes a contribution, the aggregator checks each and combines all into one update, and all apply it. A region's
aggregator combines its sites' contributions into one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

from rankdad.common.errors import ProtocolError
from rankdad.common.methods import MethodState
from rankdad.common.metrics.paired import Rows
from rankdad.common.metrics.sums import Tally
from rankdad.common.protocol.messages import Body, Control, Kind, Message
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import Node
from rankdad.common.staleness import LateContribution

if TYPE_CHECKING:
    from rankdad.common.protocol.plan import Plan
    from rankdad.common.rounds.checks import Checks
    from rankdad.common.run.state import RunState

B = TypeVar("B", bound="Body")


@dataclass(frozen=True, slots=True)
class Due:
    """The next round.

    Args:
        kind: of the round.
        round: its number.
        exchange: within the optimizer step.
        fold: in training or testing.
        epoch: of the weights concerned.
        stage: of preparation; None in other rounds.
        split: to evaluate; None in other rounds.
    """

    kind: Kind
    round: int
    exchange: int
    fold: int
    epoch: int
    stage: str | None = None
    split: Literal["validation", "test"] | None = None

    def check(self, message: Message, status: int) -> None:
        """Check that a message belongs to this round.

        Args:
            message: a contribution or an update.
            status: of the refusal.

        Raises:
            ProtocolError: it does not; names the field, and what was expected.
        """
        if message.kind is not self.kind:
            raise ProtocolError(
                status,
                f"k: got {message.kind.name} in round {self.round}, expected {self.kind.name}",
                code="kind-unexpected",
                field="k",
            )
        if message.exchange != self.exchange:
            raise ProtocolError(
                status,
                f"p: got exchange {message.exchange}, expected {self.exchange} of the step",
                code="exchange-unexpected",
                field="p",
            )
        for field in ("stage", "split", "fold", "epoch"):
            expected = getattr(self, field)
            got = getattr(message.body, field, expected)
            if got != expected:
                raise ProtocolError(
                    status, f"d.{field}: got {got}, expected {expected}", code="fields-differ", field=f"d.{field}"
                )


@dataclass(frozen=True)
class Ready:
    """All contributions to a round.

    Args:
        kind: of the round.
        round: its number.
        exchange: within one optimizer step.
        places: indices of the contributors among this barrier's members, in order.
        messages: the contributions.
        sizes: of their bodies, in bytes.
        missing: indices of the other members.
        seconds: from the round's start to its end.
        late: contributions to earlier steps that join this one, by age and index.
        arrived: seconds from the round's start to each contribution.
    """

    kind: Kind
    round: int
    exchange: int
    places: tuple[int, ...]
    messages: tuple[Message, ...]
    sizes: tuple[int, ...]
    missing: frozenset[int]
    seconds: float
    late: tuple[LateContribution, ...] = ()
    arrived: tuple[float, ...] = ()

    def bodies(self, kind: type[B]) -> list[B]:
        """Return the bodies of the contributions, all of one type."""
        return bodies(self.messages, kind)


def bodies(messages: Sequence[Message], kind: type[B]) -> list[B]:
    """Return the bodies of messages, all of one type."""
    found: list[B] = [message.body for message in messages if isinstance(message.body, kind)]
    assert len(found) == len(messages), "the barrier accepts one kind per round"
    return found


class Cost(NamedTuple):
    """The cost of a round: bytes of its update, seconds in total, and seconds of the aggregation."""

    size: int
    seconds: float
    aggregation: float


@dataclass(frozen=True, eq=False)
class Collected:
    """The inputs of an update, or of a region's contribution.

    Args:
        spec: of the run.
        plan: of the run.
        node: the aggregator.
        run: its state; sites take over its replica if their weights have drifted apart.
        ready: contributions of one kind, in the plan's order.
        state: of the method here.
    """

    spec: RunSpec
    plan: Plan
    node: Node
    run: RunState
    ready: Ready
    state: MethodState

    @property
    def children(self) -> list[str]:
        """Names of the contributors."""
        return [self.node.children[place] for place in self.ready.places]


class Tests(NamedTuple):
    """Tallies of a test: the model's, the guess's, and those of the reference models."""

    model: Tally
    guess: Tally
    references: tuple[Tally, ...]


class SiteRows(Protocol):
    """The parts of a site's data that rounds may use; see `common.data.SiteData`."""

    @property
    def dropped(self) -> int: ...  # noqa: D102
    @property
    def warnings(self) -> tuple[Any, ...]: ...  # noqa: D102
    @property
    def parts(self) -> Any: ...  # noqa: D102
    @property
    def fewest(self) -> int: ...  # noqa: D102
    @property
    def tells_coefficients(self) -> bool: ...  # noqa: D102
    def alike(self, spec: RunSpec) -> tuple[int, ...]: ...  # noqa: D102
    def summed(self, fold: int) -> Any: ...  # noqa: D102
    def whole(self) -> Any: ...  # noqa: D102
    def described(self) -> Any: ...  # noqa: D102


class Contributor(Protocol):
    """The parts of a site that rounds may use.

    Attributes:
        spec: the run.
        plan: of the run.
        run: its state, with the site's replica.
        index: of the site in the plan.
        data: its samples.
        retain: whether its policy lets the aggregator keep contributions beyond the run's end.
    """

    spec: RunSpec
    plan: Plan
    run: RunState
    index: int
    retain: bool

    @property
    def data(self) -> SiteRows:
        """The site's samples."""

    def samples(self) -> tuple[tuple[int, int, int], ...]:
        """Return the number of training, validation and test samples of each fold."""

    def monitored(self) -> Tally:
        """Return the tally of the model's outputs for the validation samples."""

    def tested(self, fold: int, *, counts: bool) -> Tests:
        """Return the tallies of the tests of the best weights; without references if they do not count."""

    def compared(self) -> tuple[list[Rows | None], Tensor, Tensor | None]:
        """Return each model's rows for the last test's samples, with their labels and groups."""


class Record(Protocol):
    """The parts of an aggregator's record that rounds use; see `remote.recorder.Recorder`."""

    progress: Any

    def sent(self, ready: Ready) -> Any:
        """Yield the sender of each body."""

    def summarise(self) -> None:
        """Write the current summary."""

    def note_hello(self, ready: Ready, update: Any) -> None:
        """Record the sites."""

    def note_sums(self, ready: Ready, update: Any) -> None:
        """Record a preparation stage."""

    def note_step(self, ready: Ready, update: Any, cost: Cost) -> None:
        """Record an exchange of a step."""

    def note_evaluation(self, ready: Ready, update: Any) -> None:
        """Record an epoch's or a test's metrics."""

    def note_comparison(self, sent: Mapping[str, Tensor]) -> None:
        """Record the comparison of a test's models."""


class Round:
    """A kind of round. Its functions are pure, except for changes of the run that they are given.

    Attributes:
        kind: of the round.
        up: type of a site's contribution.
        down: type of the update.
        region_up: type of a region's contribution.
    """

    kind: ClassVar[Kind]
    up: ClassVar[type[Control]]
    down: ClassVar[type[Control]]
    region_up: ClassVar[type[Control] | None] = None

    def form(self, *, up: bool, region: bool) -> type[Control]:
        """Return the type of a body: up from a site or a region, or down."""
        return ((region and self.region_up) or self.up) if up else self.down

    def due(self, run: RunState) -> Due | None:
        """Return this round if it is next, given that no earlier kind is due."""
        raise NotImplementedError

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Body:
        """Return a site's contribution; parts may be omitted if it does not count."""
        raise NotImplementedError

    def agrees(self, run: RunState, message: Message, status: int) -> None:
        """Check that a contribution or an update follows from common knowledge.

        Raises:
            ProtocolError: it does not; with this status.
        """

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check a contribution to the current round, or to a step this many steps ago.

        Raises:
            ProtocolError: 422, naming the field or the parameter, and what was expected.
        """

    def pooled(self, here: Collected) -> Body:
        """Return the update.

        Raises:
            RunFailedError: the run cannot continue.
        """
        raise NotImplementedError

    def combined(self, here: Collected) -> Body:
        """Return a region's contribution, from its members' contributions."""
        raise NotImplementedError

    def aggregate(self, here: Collected) -> tuple[Body, MethodState]:
        """Return the update and the method's new state."""
        return self.pooled(here), here.state

    def combine(self, here: Collected) -> tuple[Body, MethodState]:
        """Return a region's contribution, and the method's state once that is applied."""
        return self.combined(here), here.state

    def apply(self, run: RunState, update: Message) -> None:
        """Apply a checked update to a run.

        Raises:
            ProtocolError: its contents do not fit this run.
        """

    def remember(self, checks: Checks, ready: Ready) -> None:
        """Store what later contributions are checked against."""

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record a completed round at the aggregator."""


class Further(Round):
    """A round of another package, held once, after preparation, in runs that list it (`record.rounds`).

    It defines a `kind` from 64 on, the types of bodies, `contribution`, `check` and `pooled`, and `combined` for runs
    with regions. `Contributor` has the accessible parts of a site: its rows for sums.

    Attributes:
        name: of its entry point.
    """

    name: ClassVar[str]

    def due(self, run: RunState) -> Due | None:
        """Return this round until it has been held."""
        asked = self.name in run.spec.record.rounds and self.name not in run.progress.held
        return run.next(self.kind) if asked else None

    def apply(self, run: RunState, update: Message) -> None:
        """Record that it has been held."""
        run.note(held=(*run.progress.held, self.name))

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Write the result to the summary."""
        assert isinstance(update, Control)
        record.progress.rounds[self.name] = update.model_dump(mode="json")
        record.summarise()
