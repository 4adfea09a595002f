"""Hostile messages: a valid one, broken in one or two places. The same seed makes the same ones.

A message is broken as a document (fields dropped, added, of another type, taken from other messages), as what stands in
its fields (numbers inside raw bytes too), or as bytes. So most get past all checks but one, and some past all.
"""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

WHOLE = (0, 1, 2, 3, 7, 15, 999, 2**31 - 1, 2**32 - 1, 2**53, 2**60, 2**63 - 1, 2**64 - 1, -1, -(2**63))
REAL = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 0.5, 5e-324, 1e12, 3e18, 3e38, 1e299, 1e300, 1e308)
TEXTS = (
    "",
    "\0\n\r",
    "[/x] [red]",
    "\x1b[2J\x9b\u202e",
    "\udcff\udcfe",  # written as bytes that are no UTF-8
    "../../x",
    "A" * 64,
    "0" * 64,
    "x" * 501,
    "y" * 10_000,
    "labels",
    "squares",
    "validation",
    "test",
)
FORMATS = ("<d", "<d", "<I", "<I", "<f", "<e", "<H", "<B")  # of numbers inside raw bytes
Document = dict[str, Any]


def mutant(rng: random.Random, valid: bytes, others: Sequence[bytes]) -> bytes:
    """Return a message broken in one or two places.

    Args:
        rng: what is drawn from.
        valid: a message.
        others: valid messages of its run, of all kinds.
    """
    if rng.random() < 0.12:
        return rng.choice(BYTES)(rng, valid)
    document: Document = msgpack.unpackb(valid)
    for _ in range(rng.choice((1, 1, 1, 2))):
        rng.choices((_change_value, _change_fields, _exchange), (8, 3, 2))[0](rng, document, others)
    return packed(rng, document)


def packed(rng: random.Random, document: Document) -> bytes:
    """Return a document's bytes, now and then with a key that stands there twice."""
    pairs = [(key, value) for key, value in document.items() if key != "d"]
    parts = [_pack(key) + _pack(value) for key, value in pairs]
    if "d" in document:
        parts.append(_pack("d") + _pack(document["d"]))
    if parts and rng.random() < 0.03:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(parts))
    return bytes([0x80 + len(parts)]) + b"".join(parts)


def _pack(value: Any) -> bytes:
    made: bytes = msgpack.packb(value, unicode_errors="surrogateescape")
    return made


def _change_value(rng: random.Random, document: Document, others: Sequence[bytes]) -> None:
    """Replace what stands in one field by something of the same type."""
    inside = isinstance(document.get("d"), dict) and document["d"] and rng.random() < 0.8
    fields: Document = document["d"] if inside else document
    keys = [key for key in fields if key != "d"]
    if not keys:
        return
    key = rng.choice(keys)
    value = fields[key]
    if isinstance(value, bool):
        fields[key] = not value
    elif isinstance(value, int):
        fields[key] = rng.choice((value + 1, value - 1, rng.choice(WHOLE))) if abs(value) < 2**62 else rng.choice(WHOLE)
    elif isinstance(value, float):
        fields[key] = rng.choice(REAL)
    elif isinstance(value, str):
        fields[key] = rng.choice((*TEXTS, value[:-1], value[::-1], value + value, value.upper()))
    elif isinstance(value, bytes):
        fields[key] = numbers(rng, value)
    elif isinstance(value, list):
        fields[key] = rng.choice(([*value, "one-class"], ["one-class"] * 11, value * 2000, [*value, 1], [value]))


def _change_fields(rng: random.Random, document: Document, others: Sequence[bytes]) -> None:
    """Drop, add, rename or swap fields, or put something of another type into one."""
    inside = isinstance(document.get("d"), dict) and rng.random() < 0.6
    fields: Document = document["d"] if inside else document
    keys = list(fields) or ["d"]
    key, other = rng.choice(keys), rng.choice(keys)
    change = rng.randrange(5)
    if change == 0:
        fields.pop(key, None)
    elif change == 1:
        fields[rng.choice(("x", "i", "d", "m", "b", "site", "a" * 300))] = rng.choice(
            (anything(rng), bytes([rng.randrange(8)]))
        )
    elif change == 2:
        fields[key], fields[other] = fields.get(other), fields.get(key)
    elif change == 3:
        fields[key] = anything(rng)
    else:
        for name, value in fields.items():  # all counts 0, and nothing that they count
            if isinstance(value, bytes) and name not in ("r", "m"):
                fields[name] = bytes(len(value)) if name == "n" else b""


def _exchange(rng: random.Random, document: Document, others: Sequence[bytes]) -> None:
    """Take kind, phase or body from another message, or mean another round."""
    other = copy.deepcopy(msgpack.unpackb(rng.choice(others)))
    change = rng.randrange(4)
    if change == 0:
        document["k"] = rng.choice((*range(11), True, other["k"]))
    elif change == 1:
        document |= {key: value for key, value in other.items() if key != "r"}
        for key in set(document) - set(other):
            del document[key]
    elif change == 2:
        (round_,) = struct.unpack("<Q", other["r"])
        rounds = (round_, round_ + 1, max(0, round_ - 1), 0, 2**32, 2**63, 2**64 - 1)
        document["r"] = struct.pack("<Q", rng.choice(rounds))
    else:
        document["p"] = rng.choice((other["p"], 1, 2, -1, True, 2**40, None, "0"))


def numbers(rng: random.Random, data: bytes) -> bytes:
    """Return raw numbers of some format with one or all changed, or more or fewer of them."""
    form = rng.choice(FORMATS)
    size = struct.calcsize(form)
    count, start = len(data) // size, len(data) % size  # counted from the end, where the last are
    change = rng.randrange(8)
    if change == 0 or not count:
        return rng.choice((data[:-1], data[: -size or None], data + b"\0", data + data, b"", rng.randbytes(len(data))))
    if change == 1:
        return data[:start] + _special(rng, form) * count
    made = bytearray(data)
    filled = [place for place in range(count) if any(data[start + place * size : start + (place + 1) * size])]
    place = rng.choice(filled) if filled and rng.random() < 0.7 else rng.randrange(count)
    other = rng.choice((max(0, place - 1), min(count - 1, place + 1), rng.choice(filled or [place])))
    at, there = (slice(start + one * size, start + (one + 1) * size) for one in (place, other))
    if change in (2, 3):
        made[at] = _special(rng, form)
    elif change == 4:
        made[at], made[there] = data[there], data[at]
    elif change == 5:  # one more here, one fewer there
        for where, step in ((at, 1), (there, -1)):
            value = int.from_bytes(made[where], "little") + step
            made[where] = (value % (1 << 8 * size)).to_bytes(size, "little")
    elif change == 6 and form[1] in "df":
        scaled = struct.unpack(form, data[at])[0] * rng.choice((-1.0, 2.0, 0.5, 1.001, 1e6))
        made[at] = struct.pack(form, max(-3e38, min(3e38, scaled)))
    else:
        for bit in rng.sample(range(8 * len(data)), min(8 * len(data), rng.randrange(1, 9))):
            made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


def _special(rng: random.Random, form: str) -> bytes:
    """Return a number at the edge of what its format holds, or beyond what it can mean."""
    size = struct.calcsize(form)
    if form[1] not in "efd":
        return (rng.choice(WHOLE) % (1 << 8 * size)).to_bytes(size, "little")
    most = {"e": 65504.0, "f": 3.4e38, "d": 1e309}[form[1]]
    return struct.pack(form, rng.choice([value for value in REAL if not most < abs(value) < float("inf")]))


def anything(rng: random.Random, depth: int = 0) -> Any:
    """Return some document that msgpack can hold."""
    kind = rng.randrange(9 if depth < 4 else 7)
    if kind >= 7:
        inner = [anything(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 5)))]
        return {rng.choice("krpmnbdix"): one for one in inner} if kind == 7 else inner
    return (
        rng.choice((None, True, False)),
        rng.choice(WHOLE),
        rng.choice(REAL),
        rng.randbytes(rng.choice((0, 1, 8, 24, 512, 5000))),
        rng.choice(TEXTS),
        msgpack.ExtType(rng.randrange(128), rng.randbytes(rng.randrange(20))),
        msgpack.Timestamp(1, 1),
    )[kind]


def _cut(rng: random.Random, whole: bytes) -> bytes:
    return whole[: rng.randrange(len(whole))]


def _flipped(rng: random.Random, whole: bytes) -> bytes:
    made = bytearray(whole)
    for bit in rng.sample(range(8 * len(made)), rng.randrange(1, 9)):
        made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


def _framed(rng: random.Random, whole: bytes) -> bytes:
    """Lie about lengths, nest deeply, repeat, or say nothing at all."""
    at = rng.randrange(1, len(whole))
    return rng.choice(
        (
            whole + rng.randbytes(1 + rng.randrange(50)),
            whole + whole,
            whole[at:] + whole[:at],
            rng.choice((b"\xc6", b"\xdf", b"\xdd", b"\xdb", b"\xc9")) + b"\xff\xff\xff\xff" + whole,
            whole + bytes(1 << rng.randrange(10, 20)),
            b"\x91" * rng.randrange(1, 60_000),
            b"\x81\xa1k" * rng.randrange(1, 20_000),
            b"\xdd\x00\x00\x03\x00" + b"\x80" * 768,
            rng.randbytes(rng.randrange(1, 3000)),
            _pack(anything(rng)),
            b"",
        )
    )


BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (_cut, _flipped, _framed)
