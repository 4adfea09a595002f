"""The bytes of messages. Pure functions; bytes from the network are untrusted until `unpack` has returned.

A message is one msgpack map of a small header and raw little-endian numbers in an order that the plan determines.
Nothing on the wire names a class or a function.

    every message       k kind · r round, uint64 · p exchange
    an update that      i included sites, one bit for each in the plan's order; without it, all are
    leaves a site out
    an update with      l included late contributions: one bit for each site, for each number of steps of delay,
    late contributions  from 1
    a step              m weight, loss and gradient norm, float64 · n rows, uint32 for each slot with variable rows ·
                        b numbers in the layout of `common.lowrank.wire`, followed by positions of sparse matrices and
                        by projections
    any other kind      d, a map checked by its model in `common.protocol.messages`

For given rows, the size of a step's body does not depend on the round, unless a site is left out.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgpack
from pydantic import ValidationError

from rankdad.common.errors import REASON_CHARACTERS, NonFiniteError, ProtocolError, RankdadError, visible
from rankdad.common.lowrank.layout import LayoutError, MessageLayout, NotEncodedError
from rankdad.common.projections import Projections
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.common.protocol.messages import Body, Failure, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step

if sys.byteorder != "little":
    raise ImportError("rankdad's wire is little-endian, and so must be the machine")

MAX_LOSS = 1e300  # of one site, so that a thousand sites' total is finite
CONTAINERS = 3  # maps and lists in a message: its own, its body's, and one in that
REGION_CONTAINERS = 16  # in a region's hello, which lists sites by warning
T = TypeVar("T")
_ROUND, _MEASURES = struct.Struct("<Q"), struct.Struct("<3d")


def pack(message: Message, plan: Plan, *, up: bool, region: bool = False) -> bytes:
    """Encode a message.

    Args:
        message: a contribution or an update.
        plan: of the run.
        up: whether it is a contribution.
        region: whether it is a region's, whose steps have the layout of updates.

    Raises:
        NonFiniteError: a step's payload holds NaN or infinity.
    """
    head = _head(message)
    if message.missing:
        head["i"] = _bits(frozenset(range(len(plan.sites))) - message.missing, len(plan.sites))
    if message.late:
        ages = [[place for ago, place in message.late if ago == age + 1] for age in range(plan.staleness)]
        head["l"] = b"".join(_bits(places, len(plan.sites)) for places in ages)
    body = message.body
    if not isinstance(body, Step):
        return bytes(msgpack.packb({**head, "d": body.model_dump()}))
    layout = plan.layout(message.exchange, up=up and not region)
    try:
        rows, numbers = layout.pack(body.payload, plan.wire, body.projections)
    except NotEncodedError as error:
        raise _not_encoded(error, plan.wire) from None
    head |= {
        "m": _MEASURES.pack(body.weight, body.loss, body.norm),
        "n": struct.pack(f"<{len(rows)}I", *rows),
        "b": numbers.cpu().numpy().data,
    }
    return bytes(msgpack.packb(head))


def pack_failure(message: Message) -> bytes:
    """Encode a failure, which does not need a plan."""
    assert isinstance(message.body, Failure)
    return bytes(msgpack.packb({**_head(message), "d": message.body.model_dump()}))


def unpack(data: bytes, plan: Plan, *, up: bool, region: bool = False, device: str = "cpu") -> Message:
    """Decode a message; for `region` see `pack`.

    Raises:
        ProtocolError: the bytes are no message of this plan; names the field and what was expected.
    """
    limit = body_limit(plan, up=up, region=region)
    if len(data) > limit:
        raise ProtocolError(413, f"the body has {len(data)} bytes, expected at most {limit}", code="body-too-large")
    counted = _counting(REGION_CONTAINERS if region else CONTAINERS)
    try:
        document = msgpack.unpackb(
            data,
            max_bin_len=limit,
            max_str_len=REASON_CHARACTERS * 4,
            max_array_len=1000,
            max_map_len=1000,
            max_ext_len=0,
            object_hook=counted,
            list_hook=counted,
        )
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError(
            422,
            f"the body is not msgpack within the limits: {str(error) or type(error).__name__}",
            code="body-malformed",
        ) from None
    if not isinstance(document, dict):
        raise ProtocolError(422, "the body is not a map", code="body-malformed")
    kind = document.get("k")
    if type(kind) is not int or kind not in ROUNDS:  # excludes bool
        raise ProtocolError(
            422,
            f"k: got {visible(repr(kind), 60)}, expected the number of a kind of round",
            code="kind-unknown",
            field="k",
        )
    expected = {"k", "r", "p", "m", "n", "b"} if kind == Kind.STEP else {"k", "r", "p", "d"}
    optional = set() if up else {"i", "l"} if kind == Kind.STEP and plan.staleness else {"i"}
    if set(document) - optional != expected:
        raise ProtocolError(
            422,
            f"the body has the keys {visible(repr(sorted(map(str, document))), 60)}, expected {sorted(expected)}",
            code="body-malformed",
        )
    about = ROUNDS[kind]
    (number,) = _ROUND.unpack(_binary(document, "r", _ROUND.size))
    exchange = _count(document, "p", len(plan.exchanges) if kind == Kind.STEP else 1)
    body: Body
    if kind == Kind.STEP:
        body = _unpack_step(document, plan, plan.layout(exchange, up=up and not region), device)
    else:
        try:
            body = about.form(up=up, region=region).model_validate(document["d"], context=plan)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ProtocolError(
                422,
                f"d.{field}: {first['msg'].removeprefix('Value error, ')}",
                code="body-malformed",
                field=f"d.{field}",
            ) from None
    missing = _missing(document, len(plan.sites)) if "i" in document else frozenset[int]()
    late = _late(document, plan) if "l" in document else ()
    return Message(about.kind, number, body, exchange, missing, late)


def _head(message: Message) -> dict[str, Any]:
    return {"k": int(message.kind), "r": _ROUND.pack(message.round), "p": message.exchange}


def _counting(most: int) -> Callable[[T], T]:
    """Return a hook that limits the number of maps and lists: a byte on the wire may take 64 in memory."""
    left = most

    def count(made: T) -> T:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"more than {most} maps and lists")
        return made

    return count


def _bits(places: Iterable[int], count: int) -> bytes:
    return sum(1 << place for place in places).to_bytes(math.ceil(count / 8), "little")


def _missing(document: dict[str, Any], count: int) -> frozenset[int]:
    present = _places("i", _binary(document, "i", math.ceil(count / 8)), count)
    return frozenset(range(count)).difference(present)


def _late(document: dict[str, Any], plan: Plan) -> tuple[tuple[int, int], ...]:
    count, size = len(plan.sites), math.ceil(len(plan.sites) / 8)
    bits = _binary(document, "l", plan.staleness * size)
    ages = range(1, plan.staleness + 1)
    return tuple((age, place) for age in ages for place in _places("l", bits[(age - 1) * size : age * size], count))


def _places(key: str, data: bytes, count: int) -> list[int]:
    bits = int.from_bytes(data, "little")
    if bits >> count:
        raise ProtocolError(422, f"{key}: names a site beyond the {count} of the plan", code="site-unknown", field=key)
    return [place for place in range(count) if bits >> place & 1]


def _unpack_step(document: dict[str, Any], plan: Plan, layout: MessageLayout, device: str) -> Step:
    weight, loss, norm = _MEASURES.unpack(_binary(document, "m", _MEASURES.size))
    for name, value, most in (("weight", weight, 2.0**53), ("loss", loss, MAX_LOSS), ("norm", norm, 1e300)):
        if not abs(value) <= most or (name != "loss" and value < 0):
            least = "" if name == "loss" else " and at least 0"
            raise ProtocolError(
                422, f"m: got {name} {value}, expected at most {most:g}{least}", code="norm-out-of-range", field="m"
            )
    counts = _binary(document, "n", 4 * layout.variable)
    rows = _fitting("n", lambda: layout.checked(struct.unpack(f"<{layout.variable}I", counts)))
    numbers = _binary(document, "b", layout.payload_bytes(plan.wire, rows))
    payload, projections = _fitting("b", lambda: layout.unpack(rows, numbers, plan.wire, device))
    return Step(weight, loss, norm, payload, tuple(Projections(*pair) for pair in projections))


def _fitting(key: str, read: Callable[[], T]) -> T:
    """Read a key's bytes, and convert layout errors."""
    try:
        return read()
    except LayoutError as error:
        raise ProtocolError(422, f"{key}: {error}", code=error.code, field=key) from None


def _not_encoded(error: NotEncodedError, wire: str) -> RankdadError:
    """Create the error for a parameter whose numbers cannot be encoded."""
    gradient = f"the gradient of {error.name}"
    if not error.finite:
        return NonFiniteError(gradient)
    problem = f"{gradient} is too large for {wire}: choose a wider method.wire"
    return RankdadError(problem, code="gradient-too-large", field="method.wire")


def _count(document: dict[str, Any], key: str, limit: int) -> int:
    value = document[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise ProtocolError(
            422,
            f"{key}: got {visible(repr(value), 60)}, expected a whole number from 0 to {limit - 1}",
            code="number-out-of-range",
            field=key,
        )
    return value


def _binary(document: dict[str, Any], key: str, size: int) -> bytes:
    value = document[key]
    if not isinstance(value, bytes) or len(value) != size:
        got = f"{len(value)} bytes" if isinstance(value, bytes) else visible(repr(value), 60)
        raise ProtocolError(422, f"{key}: got {got}, expected {size} bytes", code="size-differs", field=key)
    return value
