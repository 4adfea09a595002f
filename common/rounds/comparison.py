"""Compares the sites' weights by sketches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from torch import Tensor

from rankdad.common.protocol.arrays import pack_sums
from rankdad.common.protocol.messages import Body, Control, Kind, Measure, Message, packed
from rankdad.common.rounds.base import Collected, Contributor, Cost, Due, Ready, Record, Round
from rankdad.common.run.replica import pack_parameters, unpack_parameters
from rankdad.common.run.weight_sketch import distance, unpack_sketch

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState

SKETCH = packed(pack_sums, lambda data, *_: unpack_sketch(data))
PARAMETERS = packed(pack_parameters, lambda data, *_: unpack_parameters(data))


class Sketch(Control):
    """A sketch of a site's weights, from `common.run.weight_sketch`."""

    weights: Annotated[Tensor, *SKETCH]


class Comparison(Control):
    """The distance of the sites' weights, relative to their size; beyond the limit, the weights for all."""

    drift: Measure
    replica: Annotated[dict[str, Tensor], *PARAMETERS]


class ComparisonRound(Round):
    """A comparison after a number of steps, if the spec asks for it."""

    kind, up, down = Kind.COMPARISON, Sketch, Comparison

    def due(self, run: RunState) -> Due | None:
        """Return this round before the step that it precedes."""
        return run.next(self.kind) if run.comparison_due and run.has_steps else None

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Sketch:
        """Return the sketch of a site's weights."""
        return Sketch(weights=site.run.replica.sketch())

    def pooled(self, here: Collected) -> Comparison:
        """Return the distance; beyond the limit, with the weights for all."""
        apart = drift(here.run, [sent.weights for sent in here.ready.bodies(Sketch)])
        replica = here.run.replica.parameters() if apart > here.spec.federation.drift else {}
        return Comparison(drift=apart, replica=replica)

    def combined(self, here: Collected) -> Sketch:
        """Return the sketch with the largest distance from the region's own."""
        return Sketch(weights=furthest(here.run, [sent.weights for sent in here.ready.bodies(Sketch)]))

    def apply(self, run: RunState, update: Message) -> None:
        """Take over the weights, if there are any."""
        body = update.body
        assert isinstance(body, Comparison)
        if body.replica:
            run.replica.check_parameters(body.replica)
            run.replica.load(body.replica)
        run.note(compared=run.replica.step)

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record the distance."""
        assert isinstance(update, Comparison)
        record.progress.note_drift(update.drift)
        if update.replica:
            record.progress.warn("weights-made-equal-after-a-comparison", [site for site, _ in record.sent(ready)])


def drift(run: RunState, sketches: Sequence[Tensor]) -> float:
    """Return the largest distance of a site's weights from the aggregator's, relative to their size."""
    reference = run.replica.sketch()
    return max(distance(reference, sketch) for sketch in sketches)


def furthest(run: RunState, sketches: Sequence[Tensor]) -> Tensor:
    """Return the first sketch with the largest distance from the region's replica."""
    reference = run.replica.sketch()
    return max(sketches, key=lambda sketch: distance(reference, sketch))
