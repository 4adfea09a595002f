"""Buckets: the parts in which a step's gradients travel, those of the last layers first.

The backward pass comes to the last layers first. Their bucket is complete, and can be sent, while the pass goes on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rankdad.common.gradients.factors import Factor
from rankdad.common.gradients.routes import Payload, Route
from rankdad.common.spec import Dsgd, MethodSpec


@dataclass(frozen=True)
class Piece:
    """What a bucket holds of one parameter: rows of its matrix, or its factor, which is never divided.

    Args:
        place: of its route in the plan.
        start: the first row.
        stop: behind the last row.
    """

    place: int
    start: int
    stop: int


Bucket = tuple[Piece, ...]


def choose_buckets(method: MethodSpec, routes: Sequence[Route]) -> tuple[Bucket, ...]:
    """Divide a step into buckets of about equal bytes; there may be fewer than the method asks for.

    One bucket holds everything in the model's order. A full gradient may be divided between its rows.

    Args:
        method: of the run.
        routes: of every trained parameter, in the model's order.
    """
    count = getattr(method, "buckets", 1)
    if count == 1:
        return (tuple(Piece(place, 0, route.matrix[0]) for place, route in enumerate(routes)),)
    total, before = sum(route.size(route.up, method.wire) for route in routes), 0
    buckets: list[list[Piece]] = [[] for _ in range(count)]
    for place, route in reversed(list(enumerate(routes))):
        size, rows = route.size(route.up, method.wire), route.matrix[0]
        parts = rows if isinstance(method, Dsgd) else 1  # what is reduced is so as a whole

        def bucket_of(part: int, before: int = before, size: int = size, parts: int = parts) -> int:
            """Return the bucket in which the middle of a part lies."""
            return count * (2 * parts * before + (2 * part + 1) * size) // (2 * parts * total)

        firsts = [bisect_left(range(parts), number, key=bucket_of) for number in range(count + 1)]
        for number, bucket in enumerate(buckets):
            first, last = firsts[number] * rows // parts, firsts[number + 1] * rows // parts
            if first < last:
                bucket.append(Piece(place, first, last))
        before += size
    return tuple(tuple(bucket) for bucket in buckets if bucket)


def routes_of(bucket: Bucket, routes: Sequence[Route]) -> tuple[Route, ...]:
    """Return the routes of a bucket's parameters, in its order."""
    return tuple(routes[piece.place] for piece in bucket)


def cut(bucket: Bucket, values: Payload) -> Payload:
    """Return a bucket's rows of whole gradients in its own order."""
    pairs = zip(bucket, values, strict=True)
    return tuple(value if isinstance(value, Factor) else value[piece.start : piece.stop] for piece, value in pairs)
