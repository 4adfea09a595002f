"""What a kind of round is: one file has all that site, aggregator, region, replay and record do in it.

A site makes a contribution, the aggregator checks each before it counts, makes one update of all, and everybody applies
that. A region's aggregator makes one contribution of those of its sites.
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
    """What the next round exchanges.

    Args:
        kind: of the round.
        round: its number.
        exchange: within the optimizer step.
        fold: that is trained or tested.
        epoch: whose weights the round is about.
        stage: of preparation; None in any other round.
        split: that is evaluated; None in any other round.
    """

    kind: Kind
    round: int
    exchange: int
    fold: int
    epoch: int
    stage: str | None = None
    split: Literal["validation", "test"] | None = None

    def check(self, message: Message, status: int) -> None:
        """Refuse a message of this round that is about something else.

        Args:
            message: a contribution or an update.
            status: of the refusal.

        Raises:
            ProtocolError: names the field, and what was expected.
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
    """A round's contributions, all that it waits for.

    Args:
        kind: of the round.
        round: its number.
        exchange: within one optimizer step.
        places: among those that contribute to this barrier, of those whose contributions are in, in order.
        messages: these contributions.
        sizes: of their bodies in bytes.
        missing: places of the others.
        seconds: from the round's beginning to its end.
        late: contributions to earlier steps that join this one, in order of age and place.
        arrived: seconds from the round's beginning to each contribution.
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
        """Return what the contributions hold, which are all of one kind."""
        return bodies(self.messages, kind)


def bodies(messages: Sequence[Message], kind: type[B]) -> list[B]:
    """Return the bodies of messages that are all of one kind."""
    found: list[B] = [message.body for message in messages if isinstance(message.body, kind)]
    assert len(found) == len(messages), "the barrier lets one kind into a round"
    return found


class Cost(NamedTuple):
    """What a round has taken: bytes of its answer, seconds in all, and those of the aggregation."""

    size: int
    seconds: float
    aggregation: float


@dataclass(frozen=True, eq=False)
class Collected:
    """What an aggregator makes an update of, and a region's its contribution.

    Args:
        spec: of the run.
        plan: of the run.
        node: the aggregator.
        run: where the run is; its replica is what sites take over whose weights have drifted apart.
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
        """Who has contributed."""
        return [self.node.children[place] for place in self.ready.places]


class Tests(NamedTuple):
    """Tallies of a test: the model's, the guess's, and those of the plan's references."""

    model: Tally
    guess: Tally
    references: tuple[Tally, ...]


class SiteRows(Protocol):
    """What a round may ask of a site's data: see `common.data.SiteData`."""

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
    """What a round may ask of a site.

    Attributes:
        spec: the run.
        plan: of the run.
        run: where the run is, with the site's replica.
        index: of the site in the plan.
        data: its samples.
        retain: whether its policy lets the aggregator keep what the site sends beyond the run's end.
    """

    spec: RunSpec
    plan: Plan
    run: RunState
    index: int
    retain: bool

    @property
    def data(self) -> SiteRows:
        """Its samples."""

    def samples(self) -> tuple[tuple[int, int, int], ...]:
        """Return how many samples each fold trains on, validates and tests with."""

    def monitored(self) -> Tally:
        """Return what the model's outputs for the validation samples add up to."""

    def tested(self, fold: int, *, counts: bool) -> Tests:
        """Return what the tests of the best weights add up to; of one that does not count, no references."""

    def compared(self) -> tuple[list[Rows | None], Tensor, Tensor | None]:
        """Return what each model says of the last test's samples, these samples' labels, and their groups."""


class Record(Protocol):
    """What a completed round is written down with, at an aggregator: see `remote.recorder.Recorder`."""

    progress: Any

    def sent(self, ready: Ready) -> Any:
        """Yield who has sent what."""

    def summarise(self) -> None:
        """Write the summary as things stand."""

    def note_hello(self, ready: Ready, update: Any) -> None:
        """Take note of the sites."""

    def note_sums(self, ready: Ready, update: Any) -> None:
        """Take note of a stage of preparation."""

    def note_step(self, ready: Ready, update: Any, cost: Cost) -> None:
        """Take note of an exchange of a step."""

    def note_evaluation(self, ready: Ready, update: Any) -> None:
        """Take note of an epoch's metrics, or of a test's."""

    def note_comparison(self, sent: Mapping[str, Tensor]) -> None:
        """Take note of how the models of a test compare."""


class Round:
    """A kind of round. All its functions are pure but for what they change in the run that they are given.

    Attributes:
        kind: of the round.
        up: what a site contributes.
        down: the update.
        region_up: what a region contributes.
    """

    kind: ClassVar[Kind]
    up: ClassVar[type[Control]]
    down: ClassVar[type[Control]]
    region_up: ClassVar[type[Control] | None] = None

    def form(self, *, up: bool, region: bool) -> type[Control]:
        """Return the model of what travels: up from a site or from a region, or down."""
        return ((region and self.region_up) or self.up) if up else self.down

    def due(self, run: RunState) -> Due | None:
        """Return what is due if this round is next, of those that come before none being so."""
        raise NotImplementedError

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Body:
        """Return what a site contributes; one that does not count any more has no need of all."""
        raise NotImplementedError

    def agrees(self, run: RunState, message: Message, status: int) -> None:
        """Refuse a contribution or an update that does not follow from what everybody knows.

        Raises:
            ProtocolError: of that status.
        """

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check a contribution to the present round, or to a step that was due so many steps ago.

        Raises:
            ProtocolError: 422, naming the field or the parameter, and what was expected.
        """

    def pooled(self, here: Collected) -> Body:
        """Return the update.

        Raises:
            RunFailedError: the run cannot go on.
        """
        raise NotImplementedError

    def combined(self, here: Collected) -> Body:
        """Return what a region contributes, of all its children's contributions."""
        raise NotImplementedError

    def aggregate(self, here: Collected) -> tuple[Body, MethodState]:
        """Return the update and the method's new state."""
        return self.pooled(here), here.state

    def combine(self, here: Collected) -> tuple[Body, MethodState]:
        """Return what a region contributes, and the method's state there once that is applied."""
        return self.combined(here), here.state

    def apply(self, run: RunState, update: Message) -> None:
        """Bring a run beyond an update that has been checked.

        Raises:
            ProtocolError: it holds what this run cannot have.
        """

    def remember(self, checks: Checks, ready: Ready) -> None:
        """Keep what contributions to later rounds are checked by."""

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Write down a completed round at the aggregator."""


class Further(Round):
    """A round of another package: held once, after preparation, in a run that asks for it (`record.rounds`).

    It has a `kind` from 64 on, the models of what travels, `contribution`, `check` and `pooled`, and where runs have
    regions `combined`. What a site may be asked is in `Contributor`: of its rows, those that may leave it in sums.

    Attributes:
        name: of its entry point.
    """

    name: ClassVar[str]

    def due(self, run: RunState) -> Due | None:
        """Return it until it has been held."""
        asked = self.name in run.spec.record.rounds and self.name not in run.progress.held
        return run.next(self.kind) if asked else None

    def apply(self, run: RunState, update: Message) -> None:
        """Take note that it has been held."""
        run.note(held=(*run.progress.held, self.name))

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Write what was found into the summary."""
        assert isinstance(update, Control)
        record.progress.rounds[self.name] = update.model_dump(mode="json")
        record.summarise()
