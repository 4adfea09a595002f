"""The exchanges of a step: which arrays each message holds, in which order, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankdad.common.lowrank.routes import Route
from rankdad.common.lowrank.sparse import Entries
from rankdad.common.lowrank.wire import projections_wire, wire_bytes


@dataclass(frozen=True)
class Slot:
    """One entry of a payload: arrays of equally many rows.

    Args:
        name: of the parameter.
        rows: how many at most; how many exactly where they are fixed.
        widths: of the arrays: two are a factor's Δ and A, one is a matrix.
        fixed: whether the number of rows never changes, and so does not travel.
        entries: of the one matrix that travel, where these are not all.
    """

    name: str
    rows: int
    widths: tuple[int, ...]
    fixed: bool = False
    entries: Entries | None = None

    def shapes(self, rows: int) -> list[tuple[int, int]]:
        """Return the shapes of the arrays of numbers that travel."""
        return [(rows, width) for width in self.widths] if self.entries is None else [(1, self.entries.count)]

    def size(self, wire: str, rows: int | None = None) -> int:
        """Return the size on the wire, in bytes, of this many rows; without an argument, of all."""
        numbers = sum(wire_bytes(wire, *shape) for shape in self.shapes(self.rows if rows is None else rows))
        return numbers + (0 if self.entries is None else self.entries.place_bytes)


@dataclass(frozen=True)
class MessageLayout:
    """What one message carries.

    Args:
        slots: in order.
        aligned: whether all slots have equally many rows.
        projections: behind them, of one row each: random projections of gradients, on a wire of their own.
    """

    slots: tuple[Slot, ...]
    aligned: bool = False
    projections: tuple[Slot, ...] = ()

    @property
    def variable(self) -> int:
        """How many slots say how many rows they have."""
        return sum(not slot.fixed for slot in self.slots)

    def payload_bytes(self, wire: str) -> int:
        """Return the largest size of the payload in bytes."""
        projections = sum(slot.size(projections_wire(wire)) for slot in self.projections)
        return projections + sum(slot.size(wire) for slot in self.slots)


@dataclass(frozen=True)
class Exchange:
    """One exchange of a step: what a site sends, and what comes back."""

    up: MessageLayout
    down: MessageLayout


def with_projections(exchanges: tuple[Exchange, ...], routes: Sequence[Route]) -> tuple[Exchange, ...]:
    """Return a step's exchanges, of which the first has a pair of random projections of every matrix behind it."""
    first, *others = exchanges
    projected = tuple(Slot(r.name, 1, r.projected, fixed=True) for r in routes if r.projected is not None)
    both = Exchange(replace(first.up, projections=projected), replace(first.down, projections=projected))
    return (both, *others)


def one_exchange(routes: Sequence[Route]) -> tuple[Exchange, ...]:
    """Return the exchange of what all routes send, as factors or dense."""
    up, down = tuple(_slot(r, r.up) for r in routes), tuple(_slot(r, r.down) for r in routes)
    return (Exchange(MessageLayout(up), MessageLayout(down)),)


def both_ways(slots: Iterable[Slot]) -> Exchange:
    """Return the exchange of the same slots up and down."""
    layout = MessageLayout(tuple(slots))
    return Exchange(layout, layout)


def dense_slot(route: Route) -> Slot:
    """Return the slot of a parameter's whole matrix, or of the entries of it that travel."""
    out, columns = route.matrix
    return Slot(route.name, out, (columns,), fixed=True, entries=route.entries)


def _slot(route: Route, rows: int | None) -> Slot:
    return dense_slot(route) if rows is None else Slot(route.name, rows, route.matrix)
