"""The layout of a step's messages: their arrays, the order of these, and their bytes. Pure functions.

Bytes are untrusted: `MessageLayout.checked` and `MessageLayout.unpack` refuse what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.lowrank.sparse import Entries, decode_places, encode_places, largest, placed
from rankdad.common.lowrank.wire import decode, encode, finite, projections_wire, wire_bytes

MATRIX = -1  # number of rows that marks a matrix instead of a factor
Pair = tuple[Tensor, Tensor]


class LayoutError(ValueError):
    """A number of rows or bytes does not fit a layout."""

    def __init__(self, problem: str, code: str) -> None:
        super().__init__(problem)
        self.code = code


class NotEncodedError(OverflowError):
    """A number cannot be encoded.

    Attributes:
        name: of the parameter.
        finite: whether its numbers are finite, but too large for the wire.
    """

    def __init__(self, name: str, *, finite: bool) -> None:
        super().__init__(f"the gradient of {name} {'is too large for the wire' if finite else 'is not finite'}")
        self.name, self.finite = name, finite


@dataclass(frozen=True)
class Slot:
    """An entry of a payload: one or two arrays with the same number of rows.

    Args:
        name: of the parameter.
        rows: at most, or exactly if they are fixed.
        widths: of the arrays: two for a factor's Δ and A, one for a matrix.
        fixed: whether the number of rows is constant, and so not sent.
        entries: entries of the matrix to send, if not all.
        either: whether a factor's product may replace it.
    """

    name: str
    rows: int
    widths: tuple[int, ...]
    fixed: bool = False
    entries: Entries | None = None
    either: bool = False

    def shapes(self, rows: int) -> list[tuple[int, int]]:
        """Return the shapes of the arrays to send."""
        if self.entries is not None:
            return [(1, self.entries.count)]
        if rows == MATRIX:
            out, columns = self.widths
            return [(out, columns)]
        return [(rows, width) for width in self.widths]

    def count(self, value: Matrix) -> int:
        """Return the number of rows of a value, or MATRIX.

        Raises:
            RuntimeError: it does not fit this slot.
        """
        rows = value.rows if isinstance(value, Factor) else MATRIX if self.either else len(value)
        shapes = [tuple(array.shape) for array in _arrays(value)]
        expected = self.shapes(rows) if self.entries is None else [(self.rows, *self.widths)]
        if shapes != expected or not (rows == self.rows if self.fixed else rows <= self.rows):
            raise RuntimeError(f"{self.name}: got {shapes}, but the plan has {self.rows} rows of {self.widths}")
        return rows

    def size(self, wire: str, rows: int | None = None) -> int:
        """Return the size on the wire in bytes, for this many rows; by default the largest."""
        numbers = sum(wire_bytes(wire, *shape) for shape in self.shapes(self.rows if rows is None else rows))
        return numbers + (0 if self.entries is None else self.entries.place_bytes)


@dataclass(frozen=True)
class MessageLayout:
    """The contents of a message.

    Args:
        slots: in order.
        aligned: whether all slots have the same number of rows.
        projections: after the slots, one row each: random projections of gradients, with a wire of their own.
    """

    slots: tuple[Slot, ...]
    aligned: bool = False
    projections: tuple[Slot, ...] = ()

    @property
    def variable(self) -> int:
        """Number of slots whose number of rows is sent."""
        return sum(not slot.fixed for slot in self.slots)

    def payload_bytes(self, wire: str, rows: Sequence[int] | None = None) -> int:
        """Return the size of the payload in bytes, for these rows of each slot; by default the largest."""
        counts = [slot.rows for slot in self.slots] if rows is None else rows
        projections = sum(slot.size(projections_wire(wire)) for slot in self.projections)
        return projections + sum(slot.size(wire, count) for slot, count in zip(self.slots, counts, strict=True))

    def checked(self, counts: Iterable[int]) -> list[int]:
        """Return the rows of every slot, given those of slots with variable rows.

        Raises:
            LayoutError: a slot has too many, or they are not aligned.
        """
        given = iter(counts)
        rows = [slot.rows if slot.fixed else next(given) for slot in self.slots]
        for slot, count in zip(self.slots, rows, strict=True):
            if count > slot.rows:
                raise LayoutError(f"{count} rows for {slot.name}, expected at most {slot.rows}", "too-many-rows")
            if self.aligned and count != rows[0]:
                problem = f"{count} rows for {slot.name}, expected as many as for the first, {rows[0]}"
                raise LayoutError(problem, "rows-differ")
        return rows

    def pack(self, payload: Payload, wire: str, projections: Sequence[Pair] = ()) -> tuple[list[int], Tensor]:
        """Return the rows of variable slots, and the payload's bytes: numbers, positions, projections.

        Raises:
            NotEncodedError: a number is NaN, infinite, or too large for the wire.
            RuntimeError: the payload is not of this layout.
        """
        if [tuple(map(len, own)) for own in projections] != [slot.widths for slot in self.projections]:
            raise RuntimeError("the projections do not match the plan")
        rows = [slot.count(value) for slot, value in zip(self.slots, payload, strict=True)]
        arrays, places = [list(_arrays(value)) for value in payload], list[Tensor]()
        for slot, own in zip(self.slots, arrays, strict=True):
            if slot.entries is not None:
                if not finite(own[0]):
                    raise NotEncodedError(slot.name, finite=False)
                own[0], chosen = largest(own[0], slot.entries)
                places.append(encode_places(chosen, slot.entries))
        behind = [[part[None] for part in own] for own in projections]
        try:
            numbers = encode([array for own in arrays for array in own], wire)
            projected = encode([part for own in behind for part in own], projections_wire(wire))
        except OverflowError:
            raise self._not_encoded(arrays, behind, wire) from None
        varying = [count for slot, count in zip(self.slots, rows, strict=True) if not slot.fixed]
        return varying, torch.cat([part.to(numbers.device) for part in (numbers, *places, projected)])

    def unpack(
        self, rows: Sequence[int], data: bytes | Tensor, wire: str, device: str | torch.device = "cpu"
    ) -> tuple[Payload, tuple[Pair, ...]]:
        """Return the payload and projections in bytes of the size `payload_bytes`.

        Args:
            rows: of every slot, `checked`.
            data: from `pack`; bytes if there are positions.
            wire: number format.
            device: of the arrays.

        Raises:
            LayoutError: numbers are not finite, or positions are invalid.
        """
        shapes = [slot.shapes(count) for slot, count in zip(self.slots, rows, strict=True)]
        at = sum(wire_bytes(wire, *shape) for own in shapes for shape in own)
        arrays = _decoded(data[:at], list(zip(self.slots, shapes, strict=True)), wire, device)
        payload: list[Matrix] = []
        for slot, own in zip(self.slots, shapes, strict=True):
            values = [next(arrays) for _ in own]
            if slot.entries is not None:
                assert isinstance(data, bytes)
                values, at = [_placed(slot, values[0], data[at:])], at + slot.entries.place_bytes
            payload.append(Factor(*values) if len(values) == 2 else values[0])
        if not self.projections:
            return tuple(payload), ()
        pairs = [(slot, slot.shapes(1)) for slot in self.projections]
        vectors = (array[0] for array in _decoded(data[at:], pairs, projections_wire(wire), device))
        return tuple(payload), tuple(zip(vectors, vectors, strict=True))

    def _not_encoded(
        self, arrays: Sequence[Sequence[Tensor]], projections: Sequence[Sequence[Tensor]], wire: str
    ) -> NotEncodedError:
        """Create the error that names the parameter that cannot be encoded, and why."""
        slots, wires = (*self.slots, *self.projections), (wire, projections_wire(wire))
        for place, own in enumerate((*arrays, *projections)):
            name = slots[place].name
            if not all(map(finite, own)):
                return NotEncodedError(name, finite=False)
            try:
                encode(own, wires[place >= len(arrays)])
            except OverflowError:
                return NotEncodedError(name, finite=True)
        raise AssertionError("called for arrays that cannot be encoded")


@dataclass(frozen=True)
class Exchange:
    """One exchange of a step: the layouts of what a site sends and receives."""

    up: MessageLayout
    down: MessageLayout


def with_projections(exchanges: tuple[Exchange, ...], routes: Sequence[Route]) -> tuple[Exchange, ...]:
    """Add a pair of random projections of every matrix to a step's first exchange."""
    first, *others = exchanges
    projected = tuple(Slot(r.name, 1, r.projected, fixed=True) for r in routes if r.projected is not None)
    both = Exchange(replace(first.up, projections=projected), replace(first.down, projections=projected))
    return (both, *others)


def one_exchange(routes: Sequence[Route]) -> tuple[Exchange, ...]:
    """Return the exchange of all routes, as factors or dense."""
    up, down = tuple(_slot(r, r.up) for r in routes), tuple(_slot(r, r.down) for r in routes)
    return (Exchange(MessageLayout(up), MessageLayout(down)),)


def both_ways(slots: Iterable[Slot]) -> Exchange:
    """Return an exchange with the same slots up and down."""
    layout = MessageLayout(tuple(slots))
    return Exchange(layout, layout)


def dense_slot(route: Route) -> Slot:
    """Return the slot of a parameter's matrix, or of its sent entries."""
    out, columns = route.matrix
    return Slot(route.name, out, (columns,), fixed=True, entries=route.entries)


def _slot(route: Route, rows: int | None) -> Slot:
    return dense_slot(route) if rows is None else Slot(route.name, rows, route.matrix)


def _arrays(value: Matrix) -> tuple[Tensor, ...]:
    return (value.delta, value.activation) if isinstance(value, Factor) else (value,)


def _decoded(
    data: bytes | Tensor,
    slots: Sequence[tuple[Slot, list[tuple[int, int]]]],
    wire: str,
    device: str | torch.device,
) -> Iterator[Tensor]:
    try:
        return iter(decode(data, [shape for _, own in slots for shape in own], wire, device))
    except OverflowError as error:
        name = [slot.name for slot, own in slots for _ in own][error.args[0]]
        problem = f"the values of {name} hold NaN or infinity, expected finite numbers"
        raise LayoutError(problem, "not-finite") from None


def _placed(slot: Slot, values: Tensor, data: bytes) -> Tensor:
    assert slot.entries is not None
    try:
        places = decode_places(data[: slot.entries.place_bytes], slot.entries)
    except ValueError as error:
        raise LayoutError(f"the places of {slot.name}: {error}", "positions-malformed") from None
    return placed(values, places, slot.entries, (slot.rows, slot.widths[0]))
