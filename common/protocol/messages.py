"""Messages: what sites and aggregator say to each other. What each kind of round carries is in `common.rounds`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationInfo

from rankdad.common.errors import CODE, REASON_CHARACTERS, RankdadError, public_reason, visible

if TYPE_CHECKING:
    from rankdad.common.protocol.plan import Plan
    from rankdad.common.rounds.step import Step

Body: TypeAlias = "Step | Control"
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


class Kind(int):
    """What a round exchanges: a number on the wire, and a name.

    Args:
        number: below 64 one of ours, from there on another package's.
        name: in capitals.
    """

    HELLO: ClassVar[Kind]
    STEP: ClassVar[Kind]
    BUFFERS: ClassVar[Kind]
    EVALUATION: ClassVar[Kind]
    DECISION: ClassVar[Kind]
    GOODBYE: ClassVar[Kind]
    FAILURE: ClassVar[Kind]
    COMPARISON: ClassVar[Kind]
    SUMS: ClassVar[Kind]
    PAIRED: ClassVar[Kind]
    name: str

    def __new__(cls, number: int, name: str) -> Kind:
        """Return a kind."""
        made = super().__new__(cls, number)
        made.name = name
        return made

    def __repr__(self) -> str:
        """Return the name."""
        return f"Kind.{self.name}"


Kind.HELLO = Kind(1, "HELLO")
Kind.STEP = Kind(2, "STEP")
Kind.BUFFERS = Kind(3, "BUFFERS")
Kind.EVALUATION = Kind(4, "EVALUATION")
Kind.DECISION = Kind(5, "DECISION")
Kind.GOODBYE = Kind(6, "GOODBYE")
Kind.FAILURE = Kind(7, "FAILURE")
Kind.COMPARISON = Kind(8, "COMPARISON")
Kind.SUMS = Kind(9, "SUMS")
Kind.PAIRED = Kind(10, "PAIRED")


class Control(BaseModel):
    """The body of a message that is no step. Its numbers are decoded and checked when it is read, and never again."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class Failure(Control):
    """A site cannot go on, or the answer that tells the others so.

    One that has not begun may only have to mend something and come again: then it is not `final`.
    """

    site: Name
    reason: Reason
    code: Code = "error"
    field: Place = ""
    final: bool = True


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
