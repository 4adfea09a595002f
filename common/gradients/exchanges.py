"""The exchanges of a step: which arrays each message holds, in which order, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankdad.common.gradients.routes import Route
from rankdad.common.gradients.sparse import Entries
from rankdad.common.gradients.wire import projections_wire, wire_bytes
from rankdad.common.spec import Edad, MethodSpec, PowerSgd


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


def exchanges(
    method: MethodSpec, routes: Sequence[Route], sites: int, *, projections: bool = False
) -> tuple[Exchange, ...]:
    """Return a step's exchanges.

    Args:
        method: of the run.
        routes: of every trained parameter.
        sites: how many there are.
        projections: whether random projections travel, too.
    """
    first, *others = _exchanges(method, routes, sites)
    if projections:
        projected = tuple(Slot(r.name, 1, r.projected, fixed=True) for r in routes if r.projected is not None)
        first = Exchange(replace(first.up, projections=projected), replace(first.down, projections=projected))
    return (first, *others)


def _exchanges(method: MethodSpec, routes: Sequence[Route], sites: int) -> tuple[Exchange, ...]:
    if isinstance(method, PowerSgd):
        left = (_dense(r) if r.up is None else Slot(r.name, r.up, (r.matrix[0],), fixed=True) for r in routes)
        right = [Slot(r.name, r.up, (r.matrix[1],), fixed=True) for r in routes if r.up is not None]
        return (_both_ways(left), _both_ways(right)) if right else (_both_ways(left),)
    if isinstance(method, Edad):
        activations = [Slot(r.name, r.up or 0, (r.matrix[1] - (r.bias is not None),)) for r in routes]
        up = (*activations, replace(activations[-1], widths=(routes[-1].matrix[0],)))
        down = tuple(replace(slot, rows=slot.rows * sites) for slot in up)
        return (Exchange(MessageLayout(up, aligned=True), MessageLayout(down, aligned=True)),)
    up, down = tuple(_slot(r, r.up) for r in routes), tuple(_slot(r, r.down) for r in routes)
    return (Exchange(MessageLayout(up), MessageLayout(down)),)


def _both_ways(slots: Iterable[Slot]) -> Exchange:
    layout = MessageLayout(tuple(slots))
    return Exchange(layout, layout)


def _slot(route: Route, rows: int | None) -> Slot:
    return _dense(route) if rows is None else Slot(route.name, rows, route.matrix)


def _dense(route: Route) -> Slot:
    out, columns = route.matrix
    return Slot(route.name, out, (columns,), fixed=True, entries=route.entries)
