"""The bytes of messages. Pure functions; bytes from the network are hostile until `unpack` has returned.

A message is one msgpack map of a small header and raw little-endian numbers in an order that the plan fixes. Nothing on
the wire names a class or a function.

    every message       k kind · r round · p phase
    a step              w weight · l loss · g gradient norm · n rows, uint32 per factor · b numbers of the wire's dtype
    any other kind      d, a map checked by its model in `common.messages`
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Mapping
from typing import Any, cast

import msgpack
import torch
from pydantic import ValidationError
from torch import Tensor

from common.errors import REASON_CHARACTERS, NonFiniteError, ProtocolError
from common.factors import Factor
from common.messages import DOWN, UP, Body, Buffers, Evaluation, Kind, Message, Step
from common.metrics import BINS
from common.plan import Payload, Plan, Route

HEADER_BYTES = 64  # what a step's body may add to rows and numbers
if sys.byteorder != "little":
    raise ImportError("rankdad's wire is little-endian, and so must be the machine")

CONTROL_BYTES = 1 << 16  # a hello, decision, goodbye or failure


def pack(message: Message, plan: Plan, *, up: bool) -> bytes:
    """Return a message's bytes.

    Raises:
        NonFiniteError: a step's payload holds NaN or infinity.
    """
    head: dict[str, Any] = {"k": int(message.kind), "r": message.round, "p": message.phase}
    body = message.body
    if not isinstance(body, Step):
        return _packb({**head, "d": body.model_dump()})
    buffer, rows = _flatten(body.payload, plan, up=up)
    head |= {"w": body.weight, "l": body.loss, "g": body.norm, "n": rows, "b": buffer}
    return _packb(head)


def unpack(data: bytes, plan: Plan, *, up: bool, device: str = "cpu") -> Message:
    """Return the message that the bytes hold.

    Raises:
        ProtocolError: the bytes are no message of this plan; names the field and what was expected.
    """
    limit = body_limit(plan, up=up)
    if len(data) > limit:
        raise ProtocolError(413, f"the body has {len(data)} bytes, expected at most {limit}")
    try:
        document = msgpack.unpackb(
            data,
            max_bin_len=limit,
            max_str_len=REASON_CHARACTERS * 4,
            max_array_len=1000,
            max_map_len=1000,
            max_ext_len=0,
        )
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError(422, f"the body is not msgpack within the limits: {error}") from None
    if not isinstance(document, dict):
        raise ProtocolError(422, "the body is not a map")
    kind = document.get("k")
    if not isinstance(kind, int) or kind not in Kind.__members__.values():
        raise ProtocolError(422, f"k: got {_shown(kind)}, expected a kind from 1 to {max(Kind)}")
    expected = {"k", "r", "p", "w", "l", "g", "n", "b"} if kind == Kind.STEP else {"k", "r", "p", "d"}
    if set(document) != expected:
        raise ProtocolError(
            422, f"the body has the keys {_shown(sorted(map(str, document)))}, expected {sorted(expected)}"
        )
    round_, phase = _count(document, "r", 2**53), _count(document, "p", 2)
    body: Body
    if kind == Kind.STEP:
        body = _unpack_step(document, plan, up=up, device=device)
    else:
        try:
            body = cast(Body, (UP if up else DOWN)[Kind(kind)].model_validate(document["d"]))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ProtocolError(422, f"d.{field}: {first['msg']}") from None
        if isinstance(body, Evaluation):  # decoded again where they are used: once an epoch
            unpack_scores(body.scores, plan.classes)
        elif isinstance(body, Buffers):
            unpack_buffers(body.values, plan)
    return Message(Kind(kind), round_, body, phase)


def body_limit(plan: Plan, *, up: bool) -> int:
    """Return the largest size of a message's body, in bytes, for this plan."""
    return max(step_bytes(plan, up=up), CONTROL_BYTES + plan.classes * 2 * BINS * 4 + plan.buffer_bytes)


def step_bytes(plan: Plan, *, up: bool) -> int:
    """Return the size of a step's body with all factors at their largest rank, in bytes: never exceeded."""
    factors = sum((route.up if up else route.down) is not None for route in plan.routes)
    return HEADER_BYTES + 4 * factors + plan.payload_bytes(up=up)


def _packb(document: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(document)
    return packed


def _flatten(payload: Payload, plan: Plan, *, up: bool) -> tuple[memoryview, bytes]:
    """Return a payload's numbers and its factors' rows, in the plan's order."""
    numbers: list[Tensor] = []
    rows: list[int] = []
    for route, value in zip(plan.routes, payload, strict=True):
        limit = route.up if up else route.down
        if isinstance(value, Factor):
            if limit is None or value.rows > limit:
                raise RuntimeError(f"{route.name}: {value.rows} rows, but the plan allows {limit}")
            rows.append(value.rows)
            numbers += [value.delta.reshape(-1), value.activation.reshape(-1)]
        else:
            numbers.append(value.reshape(-1))
    wire: torch.dtype = getattr(torch, plan.wire)
    flat = torch.cat(numbers).detach().to("cpu", wire)
    if not _finite(flat.float() if wire.itemsize < 4 else flat):
        raise NonFiniteError(f"the gradient of {_first_bad(plan.routes, payload)}")
    return flat.view(torch.uint8).numpy().data, struct.pack(f"<{len(rows)}I", *rows)


def _unpack_step(document: dict[str, Any], plan: Plan, *, up: bool, device: str) -> Step:
    weight, loss, norm = (_number(document, key) for key in ("w", "l", "g"))
    if weight < 0:
        raise ProtocolError(422, f"w: got {weight}, expected at least 0")
    limits = [route.up if up else route.down for route in plan.routes]
    factors = sum(limit is not None for limit in limits)
    counts = iter(struct.unpack(f"<{factors}I", _binary(document, "n", 4 * factors)))
    shapes: list[tuple[Route, int | None]] = []
    for route, limit in zip(plan.routes, limits, strict=True):
        rows = None if limit is None else next(counts)
        if rows is not None and limit is not None and rows > limit:
            raise ProtocolError(422, f"n: {rows} rows for {route.name}, expected at most {limit}")
        shapes.append((route, rows))
    dtype: torch.dtype = getattr(torch, plan.wire)
    floats = sum(route.floats(rows) for route, rows in shapes)
    flat = _numbers(_binary(document, "b", floats * dtype.itemsize), dtype).to(device)
    flat = flat.float() if dtype.itemsize < 4 else flat  # half precision is for the wire alone
    finite = _finite(flat)
    payload: list[Factor | Tensor] = []
    at = 0
    for route, rows in shapes:
        out, columns = route.matrix
        part, at = flat[at : at + route.floats(rows)], at + route.floats(rows)
        if not finite and not _finite(part):
            raise ProtocolError(422, f"b: the values of {route.name} hold NaN or infinity, expected finite numbers")
        if rows is None:
            payload.append(part.view(out, columns))
        else:
            payload.append(Factor(part[: rows * out].view(rows, out), part[rows * out :].view(rows, columns)))
    return Step(weight, loss, norm, tuple(payload))


def pack_scores(scores: Tensor) -> bytes:
    """Return histograms int64 [classes, 2, BINS] as uint32 numbers."""
    return _bytes(scores.to(torch.int32))


def unpack_scores(data: bytes, classes: int) -> Tensor:
    """Return histograms int64 [classes, 2, BINS].

    Raises:
        ProtocolError: the size is wrong or a count is negative.
    """
    if len(data) != classes * 2 * BINS * 4:
        raise ProtocolError(422, f"scores: got {len(data)} bytes, expected {classes * 2 * BINS * 4}")
    scores = _numbers(data, torch.int32).reshape(classes, 2, BINS).long()
    if bool((scores < 0).any()):
        raise ProtocolError(422, "scores: a count is negative")
    return scores


def pack_buffers(buffers: Mapping[str, Tensor], plan: Plan) -> bytes:
    """Return a model's buffers as raw numbers, each in its own dtype, in the plan's order."""
    return b"".join(_bytes(buffers[buffer.name]) for buffer in plan.buffers)


def unpack_buffers(data: bytes, plan: Plan) -> dict[str, Tensor]:
    """Return a model's buffers by name. They may hold infinity, as a mask of attention does.

    Raises:
        ProtocolError: the size is wrong.
    """
    if len(data) != plan.buffer_bytes:
        raise ProtocolError(422, f"buffers: got {len(data)} bytes, expected {plan.buffer_bytes}")
    buffers: dict[str, Tensor] = {}
    at = 0
    for buffer in plan.buffers:
        part, at = data[at : at + buffer.size], at + buffer.size
        buffers[buffer.name] = _numbers(part, getattr(torch, buffer.dtype)).reshape(buffer.shape)
    return buffers


def _finite(numbers: Tensor) -> bool:
    """Tell whether no value is NaN or infinite: each would show in the sum, which is twelve times faster to take."""
    return math.isfinite(numbers.sum()) or bool(torch.isfinite(numbers).all())


def _numbers(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _bytes(numbers: Tensor) -> bytes:
    return numbers.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _first_bad(routes: tuple[Route, ...], payload: Payload) -> str:
    for route, value in zip(routes, payload, strict=True):
        parts = (value.delta, value.activation) if isinstance(value, Factor) else (value,)
        if not all(_finite(part) for part in parts):
            return route.name
    return "a parameter (too large for the wire's precision)"


def _count(document: dict[str, Any], key: str, limit: int) -> int:
    value = document[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise ProtocolError(422, f"{key}: got {_shown(value)}, expected a whole number from 0 to {limit - 1}")
    return value


def _number(document: dict[str, Any], key: str) -> float:
    value = document[key]
    if not isinstance(value, float) or not math.isfinite(value):
        raise ProtocolError(422, f"{key}: got {_shown(value)}, expected a finite number")
    return value


def _binary(document: dict[str, Any], key: str, size: int) -> bytes:
    value = document[key]
    if not isinstance(value, bytes) or len(value) != size:
        got = f"{len(value)} bytes" if isinstance(value, bytes) else _shown(value)
        raise ProtocolError(422, f"{key}: got {got}, expected {size} bytes")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
