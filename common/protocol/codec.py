"""The bytes of messages. Pure functions; bytes from the network are hostile until `unpack` has returned.

A message is one msgpack map of a small header and raw little-endian numbers in an order that the plan fixes. Nothing on
the wire names a class or a function.

    every message       k kind · r round, uint64 · p exchange
    an update that      i the sites that are in it, one bit for each in the plan's order; without it, all are
    leaves a site out
    an update that      l late contributions that are in it: one bit for each site, for each number of steps that one
    includes late ones  may be late by, from 1
    a step              m weight, loss and gradient norm, float64 · n rows, uint32 for each slot where they vary ·
                        b numbers as `common.lowrank.wire` lays them out, behind them the places of sparse
                        matrices, then the projections
    any other kind      d, a map checked by its model in `common.protocol.messages`

A step's body has one size for given rows, whatever the round, as long as no site is left out.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgpack
import torch
from pydantic import ValidationError
from torch import Tensor

from rankdad.common.errors import REASON_CHARACTERS, NonFiniteError, ProtocolError, RankdadError, visible
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.layout import MessageLayout, Slot
from rankdad.common.lowrank.routes import Payload
from rankdad.common.lowrank.sparse import decode_places, encode_places, largest, placed
from rankdad.common.lowrank.wire import decode, encode, finite, projections_wire, wire_bytes
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.common.protocol.messages import Body, Failure, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step
from rankdad.common.run.projections import Projections

if sys.byteorder != "little":
    raise ImportError("rankdad's wire is little-endian, and so must be the machine")

MAX_LOSS = 1e300  # of one site, in sums or a step: a thousand sites' add up to a finite number
CONTAINERS = 3  # maps and lists in any message: its own, its body's, and one in that
REGION_CONTAINERS = 16  # in a region's: in its hello the sites by what is odd about their data
T = TypeVar("T")
_ROUND, _MEASURES = struct.Struct("<Q"), struct.Struct("<3d")


def pack(message: Message, plan: Plan, *, up: bool, region: bool = False) -> bytes:
    """Return a message's bytes.

    Args:
        message: a contribution or an update.
        plan: of the run.
        up: whether it is a contribution.
        region: whether it is a region's: its steps are laid out as updates are.

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
    arrays, places = _arrays(body.payload, layout)
    if [tuple(map(len, own)) for own in body.projections] != [slot.widths for slot in layout.projections]:
        raise RuntimeError("the projections are not those of the plan")
    try:
        numbers = encode([array for slot in arrays for array in slot], plan.wire)
        projections = encode([part[None] for own in body.projections for part in own], projections_wire(plan.wire))
    except OverflowError:
        raise _not_encoded(layout, arrays, body.projections, plan.wire) from None
    rows = [len(slot_arrays[0]) for slot, slot_arrays in zip(layout.slots, arrays, strict=True) if not slot.fixed]
    head |= {
        "m": _MEASURES.pack(body.weight, body.loss, body.norm),
        "n": struct.pack(f"<{len(rows)}I", *rows),
        "b": torch.cat([numbers, *places, projections]).numpy().data,
    }
    return bytes(msgpack.packb(head))


def pack_failure(message: Message) -> bytes:
    """Return the bytes of a failure, which need no plan: there may be none yet."""
    assert isinstance(message.body, Failure)
    return bytes(msgpack.packb({**_head(message), "d": message.body.model_dump()}))


def unpack(data: bytes, plan: Plan, *, up: bool, region: bool = False, device: str = "cpu") -> Message:
    """Return the message that the bytes hold; for `region` see `pack`.

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
        raise ProtocolError(422, f"the body is not msgpack within the limits: {error}", code="body-malformed") from None
    if not isinstance(document, dict):
        raise ProtocolError(422, "the body is not a map", code="body-malformed")
    kind = document.get("k")
    if type(kind) is not int or kind not in ROUNDS:  # True is no kind
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
    """Return a hook for every finished map and list: a byte of theirs on the wire takes 64 of memory."""
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


def _arrays(payload: Payload, layout: MessageLayout) -> tuple[list[tuple[Tensor, ...]], list[Tensor]]:
    """Return a payload's arrays by slot, and the bytes of sparse matrices' places."""
    arrays: list[tuple[Tensor, ...]] = []
    places: list[Tensor] = []
    for slot, value in zip(layout.slots, payload, strict=True):
        pair = (value.delta, value.activation) if isinstance(value, Factor) else (value,)
        rows = len(pair[0])
        fits = rows == slot.rows if slot.fixed else rows <= slot.rows
        if not fits or tuple(array.shape[1] for array in pair) != slot.widths:
            got = " and ".join(str(list(array.shape)) for array in pair)
            raise RuntimeError(f"{slot.name}: got {got}, but the plan has {slot.rows} rows of {slot.widths}")
        if slot.entries is not None:
            if not finite(pair[0]):
                raise NonFiniteError(f"the gradient of {slot.name}")
            values, chosen = largest(pair[0], slot.entries)
            pair = (values,)
            places.append(encode_places(chosen, slot.entries))
        arrays.append(pair)
    return arrays, places


def _unpack_step(document: dict[str, Any], plan: Plan, layout: MessageLayout, device: str) -> Step:
    weight, loss, norm = _MEASURES.unpack(_binary(document, "m", _MEASURES.size))
    for name, value, most in (("weight", weight, 2.0**53), ("loss", loss, MAX_LOSS), ("norm", norm, 1e300)):
        if not abs(value) <= most or (name != "loss" and value < 0):
            least = "" if name == "loss" else " and at least 0"
            raise ProtocolError(
                422, f"m: got {name} {value}, expected at most {most:g}{least}", code="norm-out-of-range", field="m"
            )
    filled = _filled(layout, _binary(document, "n", 4 * layout.variable))
    at = sum(wire_bytes(plan.wire, *shape) for slot, rows in filled for shape in slot.shapes(rows))
    places_at, at = at, sum(slot.size(plan.wire, rows) for slot, rows in filled)
    size = at + sum(slot.size(projections_wire(plan.wire)) for slot in layout.projections)
    numbers = _binary(document, "b", size)
    arrays = iter(_decoded(numbers[:places_at], filled, plan.wire, device))
    payload: list[Matrix] = []
    for slot, _ in filled:
        if slot.entries is not None:
            end = places_at + slot.entries.place_bytes
            payload.append(_unpack_sparse(next(arrays), numbers[places_at:end], slot))
            places_at = end
            continue
        pair = [next(arrays) for _ in slot.widths]
        payload.append(Factor(*pair) if len(pair) == 2 else pair[0])
    projections = (
        _unpack_projections(numbers[at:], layout, projections_wire(plan.wire), device) if layout.projections else ()
    )
    return Step(weight, loss, norm, tuple(payload), projections)


def _unpack_sparse(values: Tensor, places: bytes, slot: Slot) -> Tensor:
    assert slot.entries is not None
    try:
        return placed(values, decode_places(places, slot.entries), slot.entries, (slot.rows, slot.widths[0]))
    except ValueError as error:
        raise ProtocolError(
            422, f"b: the places of {slot.name}: {error}", code="positions-malformed", field="b"
        ) from None


def _decoded(numbers: bytes, filled: list[tuple[Slot, int]], wire: str, device: str) -> list[Tensor]:
    shapes = [shape for slot, rows in filled for shape in slot.shapes(rows)]
    try:
        return decode(numbers, shapes, wire, device)
    except OverflowError as error:
        name = [slot.name for slot, _ in filled for _ in slot.widths][error.args[0]]
        raise ProtocolError(
            422, f"b: the values of {name} hold NaN or infinity, expected finite numbers", code="not-finite", field="b"
        ) from None


def _unpack_projections(numbers: bytes, layout: MessageLayout, wire: str, device: str) -> tuple[Projections, ...]:
    arrays = iter(_decoded(numbers, [(slot, 1) for slot in layout.projections], wire, device))
    return tuple(Projections(rows[0], columns[0]) for rows, columns in zip(arrays, arrays, strict=True))


def _filled(layout: MessageLayout, counts: bytes) -> list[tuple[Slot, int]]:
    """Return every slot with the number of its rows, checked."""
    given = iter(struct.unpack(f"<{layout.variable}I", counts))
    filled = [(slot, slot.rows if slot.fixed else next(given)) for slot in layout.slots]
    for slot, rows in filled:
        if rows > slot.rows:
            raise ProtocolError(
                422, f"n: {rows} rows for {slot.name}, expected at most {slot.rows}", code="too-many-rows", field="n"
            )
        if layout.aligned and rows != filled[0][1]:
            raise ProtocolError(
                422,
                f"n: {rows} rows for {slot.name}, expected as many as for the first, {filled[0][1]}",
                code="rows-differ",
                field="n",
            )
    return filled


def _not_encoded(
    layout: MessageLayout, arrays: list[tuple[Tensor, ...]], projections: tuple[Projections, ...], wire: str
) -> RankdadError:
    """Say which parameter's numbers cannot travel, and why."""
    pairs = [(slot, pair, wire) for slot, pair in zip(layout.slots, arrays, strict=True)]
    for slot, own in zip(layout.projections, projections, strict=True):
        pairs.append((slot, tuple(part[None] for part in own), projections_wire(wire)))
    for slot, pair, own_wire in pairs:
        if not all(finite(array) for array in pair):
            return NonFiniteError(f"the gradient of {slot.name}")
        try:
            encode(pair, own_wire)
        except OverflowError:
            return RankdadError(
                f"the gradient of {slot.name} is too large for {wire}: choose a wider method.wire",
                code="gradient-too-large",
                field="method.wire",
            )
    raise AssertionError("called for arrays of which one cannot be encoded")


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
