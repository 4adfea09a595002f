"""Messages between sites and aggregator. Bodies of each kind of round are in `common.rounds`."""

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
    """Return the annotation of a field that is sent as bytes; messages are read with the plan as context.

    Args:
        pack: encodes the field's value.
        unpack: decodes bytes, given the plan and the earlier fields; raises a ValueError with the reason.
    """

    def read(value: object, info: ValidationInfo) -> object:
        if info.context is None:
            return value
        if not isinstance(value, bytes):
            raise ValueError("Input should be a valid bytes")
        return unpack(value, info.context, info.data)

    return BeforeValidator(read), PlainSerializer(pack)


class Kind(int):
    """A kind of round: a number on the wire, and a name.

    Args:
        number: below 64 for ours, from there on for other packages'.
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
    """The body of a message other than a step. Its numbers are decoded and checked when it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class Failure(Control):
    """A site cannot continue, or the answer that reports this to others.

    A site that has not begun may be corrected and return: then the failure is not `final`.
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
        body: contents.
        exchange: within one optimizer step.
        missing: indices in the plan of the sites that an update leaves out; empty for contributions.
        late: contributions to earlier steps in a step's update: age in steps and index of the site, ascending.
    """

    kind: Kind
    round: int
    body: Body
    exchange: int = 0
    missing: frozenset[int] = frozenset()
    late: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A trainer's question whether a round is complete; the answer is its update, or None.

    Args:
        round: its number.
    """

    round: int


def failure_message(site: str, round_: int, error: BaseException, *, final: bool = True) -> Message:
    """Return a site's failure message; not final if the site may be corrected and return."""
    reason, code, field = public_reason(error), "unexpected-error", ""
    if isinstance(error, RankdadError):
        code, field = error.public_code, error.public_field
    elif isinstance(error, KeyboardInterrupt):
        reason, code = "a person stopped it", "stopped"
    body = Failure(site=site, reason=visible(reason), code=code, field=visible(field), final=final)
    return Message(Kind.FAILURE, round_, body)
