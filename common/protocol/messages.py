"""Messages: what sites and aggregator say to each other. Their bytes are `common.protocol`'s business."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo
from torch import Tensor

from rankdad.common import user_code
from rankdad.common.errors import CODE, REASON_CHARACTERS, RankdadError, public_reason, visible
from rankdad.common.lowrank.routes import Payload
from rankdad.common.metrics import Tally, pack_tally, tally_bytes, unpack_monitoring, unpack_tally
from rankdad.common.privacy import heads
from rankdad.common.privacy.heads import Heads
from rankdad.common.protocol.arrays import (
    pack_buffers,
    pack_counts,
    pack_sums,
    unpack_buffers,
    unpack_counts,
    unpack_sums,
)
from rankdad.common.rounds.paired import pack_scores, unpack_scores, unpack_squares
from rankdad.common.run.projections import Projections
from rankdad.common.run.replica import pack_parameters, unpack_parameters
from rankdad.common.run.weight_sketch import unpack_sketch
from rankdad.common.user_code import CodeOrigin

if TYPE_CHECKING:
    from rankdad.common.protocol.plan import Plan

Count = Annotated[int, Field(ge=0, lt=2**53)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Figure = Annotated[float, Field(allow_inf_nan=False)]
Reason = Annotated[str, Field(max_length=REASON_CHARACTERS), AfterValidator(visible)]
Name = Annotated[str, Field(max_length=63), AfterValidator(visible)]
Code = Annotated[str, Field(max_length=63, pattern=CODE)]
Place = Annotated[str, Field(max_length=REASON_CHARACTERS), AfterValidator(visible)]
DataWarning = Literal[
    "one-class",
    "fewer-samples-than-folds",
    "missing-classes",
    "sets-too-small-to-evaluate",
    "exact-solver-not-allowed",
    "rare-values",
    "rows-left-out",
]


def packed(
    pack: Callable[[Any], bytes], unpack: Callable[[bytes, Plan, Mapping[str, Any]], object]
) -> tuple[BeforeValidator, PlainSerializer]:
    """Return how a field travels as bytes: a message that is read has the plan as its context, one that is made none.

    Args:
        pack: of the field's value.
        unpack: of the bytes, the plan and the fields before it; raises a ValueError that says what is wrong.
    """

    def read(value: object, info: ValidationInfo) -> object:
        if info.context is None:
            return value
        if not isinstance(value, bytes):
            raise ValueError("Input should be a valid bytes")
        return unpack(value, info.context, info.data)

    return BeforeValidator(read), PlainSerializer(pack)


def _tallies(data: bytes, plan: Plan) -> tuple[Tally, ...]:
    """Return the tallies of the plan's references."""
    size, count = tally_bytes(plan.task, plan.grouped), len(plan.references)
    if len(data) != size * count:
        raise ValueError(f"got {len(data)} bytes, expected {count} tallies of {size}")
    return tuple(unpack_tally(plan.task, data[at : at + size], plan.grouped) for at in range(0, len(data), size))


def _numbers(data: bytes, most: int) -> tuple[int, ...]:
    """Return at most so many whole numbers."""
    return unpack_counts(data, 1, min(len(data) // 4, most))[0]


Counts = tuple[tuple[int, ...], ...]
Numbers = tuple[int, ...]
Functions = tuple[CodeOrigin, ...]
NUMBERS = packed(lambda numbers: pack_counts([numbers]), lambda data, plan, _: _numbers(data, plan.folds))
SAMPLES = packed(pack_counts, lambda data, plan, _: unpack_counts(data, plan.folds, 3))
ROSTER = packed(pack_counts, lambda data, plan, _: unpack_counts(data, plan.folds, len(plan.sites)))
SUMS = packed(
    pack_sums, lambda data, plan, known: unpack_sums(data, plan.folds, plan.stage_size(known.get("stage", "")))
)
BUFFERS = packed(pack_buffers, lambda data, plan, _: unpack_buffers(data, plan.buffers))
TALLY = packed(
    pack_tally,
    lambda data, plan, known: (
        unpack_tally(plan.task, data, plan.grouped)
        if known.get("split") == "test"
        else unpack_monitoring(plan.task, data)
    ),
)
BASELINE = packed(
    lambda tally: pack_tally(tally) if tally else b"",
    lambda data, plan, known: unpack_tally(plan.task, data) if data or known.get("split") == "test" else None,
)
REFERENCES = packed(
    lambda tallies: b"".join(map(pack_tally, tallies)),
    lambda data, plan, known: _tallies(data, plan) if known.get("split") == "test" or data else (),
)
SCORES = packed(pack_scores, lambda data, plan, known: unpack_scores(plan, data) if data else None)
SQUARES = packed(pack_sums, lambda data, plan, _: unpack_squares(plan, data))
SKETCH = packed(pack_sums, lambda data, *_: unpack_sketch(data))
FUNCTIONS = packed(user_code.pack, lambda data, *_: user_code.unpack(data))
HEADS = packed(heads.pack, lambda data, *_: heads.unpack(data))
PARAMETERS = packed(pack_parameters, lambda data, *_: unpack_parameters(data))


class Kind(IntEnum):
    """What a round exchanges."""

    HELLO = 1
    STEP = 2
    BUFFERS = 3
    EVALUATION = 4
    DECISION = 5
    GOODBYE = 6
    FAILURE = 7
    COMPARISON = 8
    SUMS = 9
    PAIRED = 10


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """A step's payload, in either direction.

    Args:
        weight: denominator of the mean loss: a site's own, or all sites' together.
        loss: mean loss over that weight.
        norm: norm of the site's gradient, or of the update.
        payload: factors and matrices in the plan's order.
        projections: of the gradients that begin in this exchange, if the optimizer asks for them.
    """

    weight: float
    loss: float
    norm: float
    payload: Payload
    projections: tuple[Projections, ...] = ()


class Control(BaseModel):
    """The body of a message that is no step. Its numbers are decoded and checked when it is read, and never again."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class Hello(Control):
    """A site introduces itself: what must be equal everywhere, and how many samples it has.

    `samples` are [folds, 3]: to train, to validate, to test. `dropped` rows of its data were left out. `retain` tells
    whether the site's policy lets the aggregator keep what the site sends beyond the run's end. `log` tells how far the
    site's log of what has left it has come, where it has one that lasts. Of repeated folds `alike` has for each that is
    tested the first one that holds out the same samples. `functions` tells of what
    packages the functions of the users' own are.
    """

    version: Name
    spec_sha256: Digest
    plan_sha256: Digest
    weights_sha256: Digest
    samples: Annotated[Counts, *SAMPLES]
    dropped: Count
    warnings: Annotated[list[DataWarning], Field(max_length=10)]
    retain: bool = False
    log: Annotated[Heads | None, *HEADS] = None
    alike: Annotated[Numbers, *NUMBERS] = ()
    functions: Annotated[Functions, *FUNCTIONS] = ()


class RegionHello(Control):
    """A region introduces its sites: what must be equal everywhere, and the samples of each, as in `Hello`.

    `dropped` rows are by site, `warnings` are the sites by what is odd about their data. `retain` holds for all sites.
    """

    version: Name
    spec_sha256: Digest
    plan_sha256: Digest
    weights_sha256: Digest
    samples: dict[Name, Annotated[Counts, *SAMPLES]]
    dropped: dict[Name, Count]
    warnings: dict[DataWarning, list[Name]]
    retain: bool = False
    alike: dict[Name, Annotated[Numbers, *NUMBERS]] = {}
    functions: dict[Name, Annotated[Functions, *FUNCTIONS]] = {}


class Roster(Control):
    """The answer to hello: training samples of every site, [folds, sites] in the plan's order.

    `exact` tells whether the model is solved exactly: every site's policy allows it. `equal` repeats of folds are not
    run: at every site they are as one before.
    """

    train: Annotated[Counts, *ROSTER]
    exact: bool = False
    equal: Annotated[Numbers, *NUMBERS] = ()


class Sums(Control):
    """What preparation needs of the training samples: float64 [folds, …], a site's own or all sites' added up."""

    stage: Name
    values: Annotated[Tensor, *SUMS]


class Buffers(Control):
    """A model's buffers such as BatchNorm's statistics, in either direction, with the training samples behind them."""

    samples: Count
    values: Annotated[dict[str, Tensor], *BUFFERS]


class Evaluation(Control):
    """A site's tally of a test, and those of guesses from its own labels and of the plan's references; or its sums of
    the validation samples: see `rankdad.common.metrics.monitoring`.

    A reference that the site does not have is of no samples.
    """

    split: Literal["validation", "test"]
    fold: Count
    epoch: Count
    tally: Annotated[Tally, *TALLY]
    baseline: Annotated[Tally | None, *BASELINE]
    references: Annotated[tuple[Tally, ...], *REFERENCES] = ()


class PooledMetrics(Control):
    """The answer to an evaluation: metrics over all sites, by name; null where there was nothing to measure.

    `absent` counts the classes that have no AUC; `auc_error` bounds what the histograms make of it. Of a test that a
    paired comparison follows, `scores` are all sites' histograms: see `rankdad.common.rounds.paired`.
    """

    split: Literal["validation", "test"]
    fold: Count
    epoch: Count
    samples: Count
    values: Annotated[dict[Name, Figure | None], Field(max_length=20)]
    auc_error: Measure | None
    absent: Count
    scores: Annotated[Tensor | None, *SCORES] = None


class Squares(Control):
    """What a site's test samples add up to where models are compared: see `rankdad.common.metrics.paired`."""

    fold: Count
    samples: Count
    values: Annotated[Tensor, *SQUARES]


class Compared(Control):
    """The answer to it: the comparison of a fold's models is done."""

    fold: Count


class Decision(Control):
    """End of an epoch, in either direction: whether its model is the best so far, whether to stop."""

    epoch: Count
    best: bool
    stop: bool


class Sketch(Control):
    """A site's weights in a few numbers, as `common.run.weight_sketch` makes them."""

    weights: Annotated[Tensor, *SKETCH]


class Comparison(Control):
    """How far the sites' weights are apart, relative to their size; past the limit, the weights that all take over."""

    drift: Measure
    replica: Annotated[dict[str, Tensor], *PARAMETERS]


class Goodbye(Control):
    """A site has ended with these weights."""

    weights_sha256: Digest
    sketch: Annotated[Tensor, *SKETCH]


class RegionGoodbye(Control):
    """A region has ended: its own digest and those of all below it, and the sketch that is furthest from its own."""

    weights_sha256: dict[Name, Digest]
    sketch: Annotated[Tensor, *SKETCH]


class Farewell(Control):
    """The answer to goodbye: the digest of every site and region that was there, and how far they are apart."""

    weights_sha256: Annotated[dict[Name, Digest], Field(max_length=1000)]
    drift: Measure


class Failure(Control):
    """A site cannot go on, or the answer that tells the others so.

    One that has not begun may only have to mend something and come again: then it is not `final`.
    """

    site: Name
    reason: Reason
    code: Code = "error"
    field: Place = ""
    final: bool = True


Body = Step | Control
UP: dict[Kind, type[Control]] = {
    Kind.HELLO: Hello,
    Kind.BUFFERS: Buffers,
    Kind.EVALUATION: Evaluation,
    Kind.DECISION: Decision,
    Kind.GOODBYE: Goodbye,
    Kind.FAILURE: Failure,
    Kind.COMPARISON: Sketch,
    Kind.SUMS: Sums,
    Kind.PAIRED: Squares,
}
REGION_UP: dict[Kind, type[Control]] = {**UP, Kind.HELLO: RegionHello, Kind.GOODBYE: RegionGoodbye}
DOWN: dict[Kind, type[Control]] = {
    **UP,
    Kind.HELLO: Roster,
    Kind.EVALUATION: PooledMetrics,
    Kind.GOODBYE: Farewell,
    Kind.COMPARISON: Comparison,
    Kind.PAIRED: Compared,
}


@dataclass(frozen=True, eq=False, slots=True)
class Message:
    """A contribution (up) or an update (down).

    Args:
        kind: of the round.
        round: its number, from 0 without gaps over the whole run.
        body: what it carries.
        exchange: within one optimizer step.
        missing: places in the plan of the sites that an update leaves out; a contribution's is empty.
        late: what a step's update includes of earlier steps: how many steps ago each was, and its site's place in the
            plan; in ascending order.
    """

    kind: Kind
    round: int
    body: Body
    exchange: int = 0
    missing: frozenset[int] = frozenset()
    late: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A trainer's question whether a round is complete already: answered with its update, or with None.

    Args:
        round: its number.
    """

    round: int


def failure_message(site: str, round_: int, error: BaseException, *, final: bool = True) -> Message:
    """Return the message by which a site says that it cannot go on, or only that it has to mend something first."""
    reason, code, field = public_reason(error), "unexpected-error", ""
    if isinstance(error, RankdadError):
        code, field = error.public_code, error.public_field
    elif isinstance(error, KeyboardInterrupt):
        reason, code = "a person stopped it", "stopped"
    body = Failure(site=site, reason=visible(reason), code=code, field=visible(field), final=final)
    return Message(Kind.FAILURE, round_, body)
