"""Means of squared gradients over rows and over columns: what a factored second moment is made of. Pure functions.

A reduced gradient with error feedback brings some directions late and all at once, and an optimizer that squares it
takes that for noise. What every site knows exactly, and can send as one pair of rows more, is how its own squared
gradient is spread over rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankdad.common.gradients.factors import Factor, Matrix
from rankdad.common.gradients.routes import Payload, Route

TOLERANCE = {"float64": 1e-6, "float32": 1e-3, "bfloat16": 0.02, "log8": 0.1}  # of two means of the same numbers


class Squares(NamedTuple):
    """Means of a squared gradient [out, columns], without its bias.

    Args:
        rows: over each row, [out].
        columns: over each column, [columns].
    """

    rows: Tensor
    columns: Tensor


def squares_of(routes: Sequence[Route], gradients: Payload) -> tuple[Squares, ...]:
    """Return the means of every squared gradient that is a matrix, in the plan's order.

    Args:
        routes: of the plan.
        gradients: one site's, of all routes.
    """
    pairs = zip(routes, gradients, strict=True)
    return tuple(_means(value, route.squares[1]) for route, value in pairs if route.squares is not None)


def _means(value: Matrix, columns: int) -> Squares:
    if not isinstance(value, Factor):
        squared = value[:, :columns].square()
        return Squares(squared.mean(dim=1), squared.mean(dim=0))
    delta, activation = value.delta, value.activation[:, :columns]
    n, out = delta.shape
    if n * (out + columns) > out * columns:
        return _means(delta.T @ activation, columns)
    # Quadratic forms through the n × n products, in float64 for what cancels out; the gradient is not formed.
    wide = delta.double(), activation.double()
    rows, others = (((b @ b.T) @ a * a).sum(dim=0) for a, b in (wide, wide[::-1]))
    return Squares((rows / columns).clamp_(min=0).to(delta), (others / out).clamp_(min=0).to(delta))


def pooled_squares(sent: Sequence[tuple[Squares, ...]], shares: Sequence[float]) -> tuple[Squares, ...]:
    """Return the means over all sites, each weighted by its share: exact, as the means themselves are."""
    return tuple(
        Squares(*(torch.stack(own).T @ own[0].new_tensor(shares) for own in zip(*of_sites, strict=True)))
        for of_sites in zip(*sent, strict=True)
    )


def problem_of(squares: Squares, tolerance: float) -> str:
    """Return what is wrong with means that somebody sent; "" if nothing is."""
    if bool((squares.rows < 0).any()) or bool((squares.columns < 0).any()):
        return "a negative number, expected means of squares"
    rows, columns = (float(part.mean(dtype=torch.float64)) for part in squares)
    if abs(rows - columns) > tolerance * max(rows, columns):
        return f"a mean of {rows:.3g} over rows and {columns:.3g} over columns, expected the same"
    return ""


def energy(squares: Squares) -> float:
    """Return the sum of all squares, as the means say."""
    return float(squares.rows.sum(dtype=torch.float64)) * squares.columns.numel()
