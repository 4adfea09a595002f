"""Goodbye: digests of all final weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from torch import Tensor

from rankdad.common.protocol.messages import Body, Control, Digest, Kind, Measure, Message, Name
from rankdad.common.rounds.base import Collected, Contributor, Cost, Due, Ready, Record, Round
from rankdad.common.rounds.checks import Checks
from rankdad.common.rounds.comparison import SKETCH, drift, furthest

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState


class Goodbye(Control):
    """The digest of a site's final weights."""

    weights_sha256: Digest
    sketch: Annotated[Tensor, *SKETCH]


class RegionGoodbye(Control):
    """The digests of a region and its members, and the sketch with the largest distance from its own."""

    weights_sha256: dict[Name, Digest]
    sketch: Annotated[Tensor, *SKETCH]


class Farewell(Control):
    """The answer to goodbye: the digests of all sites and regions, and the distance of their weights."""

    weights_sha256: Annotated[dict[Name, Digest], Field(max_length=1000)]
    drift: Measure


class GoodbyeRound(Round):
    """The last round."""

    kind, up, down, region_up = Kind.GOODBYE, Goodbye, Farewell, RegionGoodbye

    def due(self, run: RunState) -> Due | None:
        """Return this round when all folds have been tested."""
        return run.next(self.kind) if run.over else None

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Goodbye:
        """Return the digest of a site's weights."""
        return Goodbye(weights_sha256=site.run.replica.digest(), sketch=site.run.replica.sketch())

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check that a region names its members."""
        if isinstance(message.body, RegionGoodbye):
            checks.names("weights_sha256", site, message.body.weights_sha256)

    def pooled(self, here: Collected) -> Farewell:
        """Return all digests, and the distance of the weights."""
        digests, sketches = ended(here.children, here.ready.messages)
        return Farewell(weights_sha256=digests, drift=drift(here.run, sketches))

    def combined(self, here: Collected) -> RegionGoodbye:
        """Return the digests of the region's members and its own."""
        digests, sketches = ended(here.node.children, here.ready.messages)
        digests[here.node.name] = here.run.replica.digest()
        return RegionGoodbye(weights_sha256=digests, sketch=furthest(here.run, sketches))

    def apply(self, run: RunState, update: Message) -> None:
        """End the run."""
        assert isinstance(update.body, Farewell)
        run.farewell = update.body

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record the digests."""
        assert isinstance(update, Farewell)
        record.progress.note_drift(update.drift)
        record.progress.weights_sha256 = dict(update.weights_sha256)


def ended(children: Sequence[str], messages: Sequence[Message]) -> tuple[dict[str, str], list[Tensor]]:
    """Return the digests of all sites and regions, and each child's sketch."""
    digests: dict[str, str] = {}
    sketches: list[Tensor] = []
    for child, message in zip(children, messages, strict=True):
        body = message.body
        assert isinstance(body, Goodbye | RegionGoodbye)
        sketches.append(body.sketch)
        digests |= {child: body.weights_sha256} if isinstance(body, Goodbye) else body.weights_sha256
    return digests, sketches
