"""Routes: how each parameter's gradient travels, and the order of a payload's entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.sparse import Entries
from rankdad.common.lowrank.wire import wire_bytes

Payload = tuple[Matrix, ...]


@dataclass(frozen=True)
class Route:
    """How one parameter travels.

    Args:
        name: the parameter.
        shape: its own shape.
        bias: the bias that travels with the weight, if any: as the last column of its matrix.
        captured: whether the gradient is captured as a factor; else its matrix is formed first.
        up: rows of the factor that a site sends at most; None sends the matrix itself (dense).
        down: the same for the aggregator.
        residual: leading rows that error feedback keeps of what was not sent; None keeps all of it, as a matrix.
        entries: of the matrix that travel, both ways, where these are not all.
        linear: whether it is a linear layer's weight: each row of its gradient is one unit's.
    """

    name: str
    shape: tuple[int, ...]
    bias: str | None = None
    captured: bool = False
    up: int | None = None
    down: int | None = None
    residual: int | None = None
    entries: Entries | None = None
    linear: bool = False

    @property
    def dense(self) -> bool:
        """Whether a site sends the whole gradient."""
        return self.up is None and self.entries is None

    @property
    def matrix(self) -> tuple[int, int]:
        """Shape [out, columns] of the gradient as a matrix, the bias's column included; a vector is one row."""
        out = self.shape[0] if len(self.shape) > 1 else 1
        return out, math.prod(self.shape) // max(out, 1) + (self.bias is not None)

    @property
    def projected(self) -> tuple[int, int] | None:
        """Shape of the parameter alone as a matrix, if a second moment of it can be factored; None of a vector."""
        out, columns = self.matrix
        shape = out, columns - (self.bias is not None)
        return shape if min(shape) > 1 else None

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that travel: the weight, and a bias that does so with it."""
        return (self.name,) if self.bias is None else (self.name, self.bias)

    def size(self, rows: int | None, wire: str) -> int:
        """Return the size on the wire, in bytes, of a factor of so many rows, or of the matrix."""
        out, columns = self.matrix
        if rows is None:
            return wire_bytes(wire, out, columns) if self.entries is None else self.entries.payload_bytes(wire)
        return wire_bytes(wire, rows, out) + wire_bytes(wire, rows, columns)


def gather(
    routes: tuple[Route, ...], factors: Mapping[str, Factor], dense: Mapping[str, Tensor], like: Tensor
) -> Payload:
    """Order a model's gradients by route, biases folded in.

    Args:
        routes: of the plan.
        factors: by weight name.
        dense: by parameter name.
        like: a tensor of the dtype and device of what is missing.

    Returns:
        For each route a factor where one was captured, else the matrix [out, columns]. A parameter that this step did
        not use has a zero matrix, or a factor without rows where factors travel.
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
    routes: tuple[Route, ...], payload: Payload, rows: Callable[[int], slice] = lambda length: slice(None)
) -> dict[str, Tensor]:
    """Return the gradient of each parameter in its own shape: the reverse of `gather`.

    Args:
        routes: of the plan.
        payload: in their order.
        rows: returns which of a parameter's first axis are asked for, of its length; of a factor no others are formed.
    """
    gradients: dict[str, Tensor] = {}
    for route, value in zip(routes, payload, strict=True):
        shape = route.shape
        kept = rows(shape[0]) if shape else slice(None)
        if isinstance(value, Factor):
            value = Factor(value.delta[:, kept], value.activation)
            matrix = value.gradient()
        else:
            matrix = value[kept] if len(shape) > 1 else value[:, kept]
        if route.bias is not None:
            gradients[route.bias] = matrix[:, -1]
            matrix = matrix[:, :-1]
        gradients[route.name] = matrix.reshape(len(range(shape[0])[kept]), *shape[1:]) if shape else matrix.reshape(())
    return gradients


def routed(routes: Iterable[Route]) -> tuple[Route, ...]:
    """Return a model's routes in its order, without those of biases that travel with a weight."""
    found = list(routes)
    with_weights = {route.bias for route in found}
    return tuple(route for route in found if route.name not in with_weights)


def smaller(route: Route, dense: Route, wire: str) -> Route:
    """Return the route by which fewer bytes go up."""
    return route if route.size(route.up, wire) < route.size(None, wire) else dense
