"""Routes: how each parameter's gradient is sent, and the order of a payload's entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.sparse import Entries
from rankdad.common.lowrank.wire import wire_bytes

Payload = tuple[Matrix, ...]
Index = slice | Tensor  # of rows
ALL = slice(None)


@dataclass(frozen=True)
class Route:
    """The route of one parameter's gradient.

    Args:
        name: of the parameter.
        shape: of the parameter.
        bias: name of the bias that is the last column of the weight's matrix, if any.
        captured: whether the gradient is captured as a factor; otherwise its matrix is formed first.
        up: largest number of rows of a site's factor; None for the matrix (dense).
        down: the same for the aggregator.
        residual: leading rows of the residual to keep; None for all of it, as a matrix.
        entries: entries of the matrix to send in both directions, if not all.
        linear: whether it is a linear layer's or embedding's weight: each row of its gradient belongs to one unit or
            token; "in-out" if each column does.
    """

    name: str
    shape: tuple[int, ...]
    bias: str | None = None
    captured: bool = False
    up: int | None = None
    down: int | None = None
    residual: int | None = None
    entries: Entries | None = None
    linear: bool | Literal["in-out"] = False

    @property
    def dense(self) -> bool:
        """Whether a site sends the whole gradient."""
        return self.up is None and self.entries is None

    @property
    def matrix(self) -> tuple[int, int]:
        """Shape [out, columns] of the gradient as a matrix, including the bias's column; a vector is one row."""
        out = self.shape[0] if len(self.shape) > 1 else 1
        return out, math.prod(self.shape) // max(out, 1) + (self.bias is not None)

    @property
    def units(self) -> int:
        """Number of units, or of directions, that the matrix can tell apart."""
        return self.matrix[self.linear == "in-out"] if self.linear else min(self.matrix)

    @property
    def shorter(self) -> int:
        """Largest number of rows of a factor with fewer numbers than the matrix."""
        out, columns = self.matrix
        return (out * columns - 1) // (out + columns)

    def limit(self, rows: int) -> int | None:
        """Return how many rows of the matrix a policy allows that allows `rows` of a layer; None if all of it."""
        return None if self.units <= 2 * rows else min(rows, self.shorter)

    @property
    def projected(self) -> tuple[int, int] | None:
        """Shape of the parameter alone as a matrix, if its second moment can be factored; None for a vector."""
        out, columns = self.matrix
        shape = out, columns - (self.bias is not None)
        return shape if min(shape) > 1 else None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters: the weight, and a bias in its matrix."""
        return (self.name,) if self.bias is None else (self.name, self.bias)

    def size(self, rows: int | None, wire: str) -> int:
        """Return the size on the wire in bytes, for a factor of this many rows, or for the matrix."""
        out, columns = self.matrix
        if rows is None:
            return wire_bytes(wire, out, columns) if self.entries is None else self.entries.payload_bytes(wire)
        return wire_bytes(wire, rows, out) + wire_bytes(wire, rows, columns)


def gather(
    routes: tuple[Route, ...], factors: Mapping[str, Factor], dense: Mapping[str, Tensor], like: Tensor
) -> Payload:
    """Order a model's gradients by route, with biases as columns.

    Args:
        routes: of the plan.
        factors: by weight name.
        dense: by parameter name.
        like: a tensor with the dtype and device for missing gradients.

    Returns:
        For each route a factor if one was captured, otherwise the matrix [out, columns]. A parameter that was not used
        in this step has a zero matrix, or a factor without rows.
    """
    values: list[Matrix] = []
    for route in routes:
        out, columns = route.matrix
        if route.name in factors:
            factor = factors[route.name]
            values.append(factor.with_ones() if route.bias else factor)
        elif route.name in dense:
            matrix = dense[route.name].reshape(out, -1)
            if route.bias:
                bias = dense[route.bias] if route.bias in dense else matrix.new_zeros(out)
                matrix = torch.cat([matrix, bias[:, None]], dim=1)
            values.append(matrix)
        elif route.up is None:
            values.append(like.new_zeros(out, columns))
        else:
            values.append(Factor(like.new_zeros(0, out), like.new_zeros(0, columns)))
    return tuple(values)


def scatter(
    routes: tuple[Route, ...],
    payload: Payload,
    kept: Callable[[str], tuple[Index, slice]] = lambda name: (ALL, ALL),
) -> dict[str, Tensor]:
    """Return the gradient of each parameter in its own shape: the reverse of `gather`.

    Args:
        routes: of the plan.
        payload: in their order.
        kept: returns the rows and columns to compute of a parameter, given its name; columns only of matrices.
    """
    gradients: dict[str, Tensor] = {}
    for route, value in zip(routes, payload, strict=True):
        shape = route.shape
        rows, columns = kept(route.name) if shape else (ALL, ALL)
        if isinstance(value, Factor):
            matrix = Factor(value.delta[:, rows], _columns(value.activation, columns, route)).gradient()
        else:
            matrix = _columns(value[rows] if len(shape) > 1 else value[:, rows], columns, route)
        if route.bias is not None:
            gradients[route.bias] = matrix[:, -1]
            matrix = matrix[:, :-1]
        if len(shape) != 2:
            matrix = matrix.reshape(len(matrix), *shape[1:]) if len(shape) > 1 else matrix.reshape(matrix.shape[1:])
        gradients[route.name] = matrix if shape else matrix.reshape(())
    return gradients


def _columns(matrix: Tensor, columns: slice, route: Route) -> Tensor:
    """Return some columns, and that of a bias."""
    if columns == ALL:
        return matrix
    return matrix[:, columns] if route.bias is None else torch.cat([matrix[:, :-1][:, columns], matrix[:, -1:]], dim=1)


def routed(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return a model's routes in order, without those of biases in a weight's matrix."""
    found = list(routes)
    with_weights = {route.bias for route in found}
    return tuple(route for route in found if route.name not in with_weights)


def smaller(route: Route, dense: Route, wire: str) -> Route:
    """Return the route with fewer bytes up."""
    return route if route.size(route.up, wire) < route.size(None, wire) else dense
