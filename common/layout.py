"""Layouts: which arrays a payload holds, in which order, for every exchange of a step and in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rankdad.common.routes import Route
from rankdad.common.spec import Dsgd, Edad, MethodSpec, PowerSgd
from rankdad.common.wire import wire_bytes


@dataclass(frozen=True)
class Slot:
    """One entry of a payload: arrays of equally many rows.

    Args:
        name: of the parameter.
        rows: how many at most; how many exactly where they are fixed.
        widths: of the arrays: two are a factor's Δ and A, one is a matrix.
        fixed: whether the number of rows never changes, and so does not travel.
    """

    name: str
    rows: int
    widths: tuple[int, ...]
    fixed: bool = False

    def size(self, wire: str, rows: int | None = None) -> int:
        """Return the size of so many rows on the wire in bytes, without an argument of all."""
        rows = self.rows if rows is None else rows
        return sum(wire_bytes(wire, rows, width) for width in self.widths)


@dataclass(frozen=True)
class Layout:
    """What one message carries.

    Args:
        slots: in order.
        aligned: whether all slots have equally many rows.
    """

    slots: tuple[Slot, ...]
    aligned: bool = False

    @property
    def variable(self) -> int:
        """How many slots say how many rows they have."""
        return sum(not slot.fixed for slot in self.slots)

    def payload_bytes(self, wire: str) -> int:
        """Return the largest size of the payload in bytes."""
        return sum(slot.size(wire) for slot in self.slots)


@dataclass(frozen=True)
class Exchange:
    """One exchange of a step: what a site sends, and what comes back."""

    up: Layout
    down: Layout


def exchanges(method: MethodSpec, routes: Sequence[Route], sites: int) -> tuple[Exchange, ...]:
    """Return a step's exchanges.

    Args:
        method: of the run.
        routes: of every trained parameter.
        sites: how many there are.
    """
    if isinstance(method, Dsgd) and method.exchanges == "per-tensor":
        alone = (Layout((_dense(route),)) for route in routes)
        return tuple(Exchange(layout, layout) for layout in alone)
    if isinstance(method, PowerSgd):
        left = Layout(tuple(_dense(r) if r.up is None else Slot(r.name, r.up, (r.matrix[0],), True) for r in routes))
        right = Layout(tuple(Slot(r.name, r.up, (r.matrix[1],), True) for r in routes if r.up is not None))
        return (Exchange(left, left), Exchange(right, right)) if right.slots else (Exchange(left, left),)
    if isinstance(method, Edad):
        up = tuple(Slot(r.name, r.up or 0, (r.matrix[1] - (r.bias is not None),)) for r in routes)
        up += (replace(up[-1], widths=(routes[-1].matrix[0],)),)
        down = tuple(replace(slot, rows=slot.rows * sites) for slot in up)
        return (Exchange(Layout(up, aligned=True), Layout(down, aligned=True)),)
    up_, down_ = Layout(tuple(_slot(r, r.up) for r in routes)), Layout(tuple(_slot(r, r.down) for r in routes))
    return (Exchange(up_, down_),)


def _slot(route: Route, rows: int | None) -> Slot:
    return _dense(route) if rows is None else Slot(route.name, rows, route.matrix)


def _dense(route: Route) -> Slot:
    out, columns = route.matrix
    return Slot(route.name, out, (columns,), fixed=True)
