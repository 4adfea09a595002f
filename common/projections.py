"""Random projections of a gradient, for a factored second moment. Pure functions.

With error feedback, a reduced gradient has some directions late and all at once, which an optimizer would take for
noise when it squares them. Projections of the exact gradients are linear: the sites' mean is that of the pooled
gradient, and the expectations of its squares are the pooled gradient's mean squares over rows and over columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.seeds import derive


class Projections(NamedTuple):
    """A gradient G [out, columns], without its bias, on vectors of random signs w [columns] and u [out].

    Args:
        rows: G w / √columns, [out]: the expectation of its squares is the mean square of each row.
        columns: Gᵀ u / √out, [columns]: the same for each column.
    """

    rows: Tensor
    columns: Tensor


def projections_of(routes: Sequence[Route], gradients: Payload, seed: int) -> tuple[Projections, ...]:
    """Return the projections of every gradient that is a matrix, in the plan's order.

    Source: Alon, Matias and Szegedy 1999, "The space complexity of approximating the frequency moments", Section 2.2.

    Args:
        routes: of the plan.
        gradients: of one site, for all routes.
        seed: of the signs: the same at all sites, different at each step.
    """
    pairs = zip(routes, gradients, strict=True)
    return tuple(
        _projections(value, *route.projected, derive("projections", seed, route.name))
        for route, value in pairs
        if route.projected is not None
    )


def _projections(value: Matrix, out: int, columns: int, seed: int) -> Projections:
    like = value.delta if isinstance(value, Factor) else value
    generator = torch.Generator().manual_seed(seed)
    signs = (torch.randint(2, (size,), generator=generator) * 2 - 1 for size in (columns, out))
    w, u = (each.to(like) / len(each) ** 0.5 for each in signs)
    if isinstance(value, Factor):
        delta, activation = value.delta, value.activation[:, :columns]
        return Projections(delta.T @ (activation @ w), activation.T @ (delta @ u))
    return Projections(value[:, :columns] @ w, value[:, :columns].T @ u)


def pooled_projections(sent: Sequence[tuple[Projections, ...]], shares: Sequence[float]) -> tuple[Projections, ...]:
    """Return the means over all sites, weighted by share: the projections of the pooled gradient."""
    return tuple(
        Projections(*(torch.stack(own).T @ own[0].new_tensor(shares) for own in zip(*of_sites, strict=True)))
        for of_sites in zip(*sent, strict=True)
    )


def least_norm(projections: Sequence[Projections]) -> float:
    """Return the smallest norm of gradients with these projections."""
    if not projections:
        return 0.0
    sizes = (torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64) for part in own]) for own in projections)
    return float(torch.linalg.vector_norm(torch.stack([each.amax() for each in sizes])))
