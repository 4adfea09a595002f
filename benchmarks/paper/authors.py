"""rank-dAD as in the authors' published code, with its faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from rankdad.common.errors import NonFiniteError
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.layout import Exchange, Slot, both_ways, dense_slot
from rankdad.common.lowrank.reduction.operators import as_given, empty_factor, leaf, left, normalised, right, widened
from rankdad.common.lowrank.routes import Payload, Route, smaller
from rankdad.common.methods.base import Aggregated, Contribution, Method, MethodState, SiteStep, pooled
from rankdad.common.methods.local_steps import EveryBatch
from rankdad.common.methods.options import Wire
from rankdad.common.numbers import Fraction
from rankdad.common.seeds import derive


class Authors(EveryBatch):
    """Reduce factors by few power iterations, at the sites and again at the aggregator, without error feedback."""

    updates_are_factors: ClassVar[bool] = True
    joins_later: ClassVar[bool] = True

    name: Literal["authors"]
    rank: Annotated[int, Field(ge=2, le=1_000_000)] = 10
    """How many rows are looked for; their code sends one fewer."""
    tolerance: Fraction = 1e-3
    """Distance of two directions, one found after the other, at which the search ends."""
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Power iterations per component."""
    wire: Wire = "float32"
    """Precision on the wire."""

    @property
    def most_rows(self) -> int:
        """One fewer than the rank: the last is not sent."""
        return self.rank - 1

    @property
    def fewest_rows(self) -> int:
        """One: a reduction may leave out as many as a site has to keep back."""
        return 1

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return the route of a reduced factor, which the bias follows from; dense where that is smaller."""
        route = replace(dense, up=self.most_rows, down=self.most_rows)
        out, columns = route.matrix
        route = replace(route, captured=rows is not None and rows * (out + columns) <= out * columns)
        return dense if smaller(route, dense, self.wire) is dense else replace(route, bias=bias)

    def exchanges(self, routes: Sequence[Route], sites: int) -> tuple[Exchange, ...]:
        """Return the exchange of factors without the biases' column."""
        return (both_ways(dense_slot(r) if r.up is None else Slot(r.name, r.up, _bare_shape(r)) for r in routes),)

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return the reduction at both ends."""
        return AuthorsMethod(self, routes)


class AuthorsMethod(Method):
    """Reduced factors; what a reduction leaves out is lost, and a bias is the sum of the rows that it left.

    Source: arXiv 2102.09631, Algorithms 1 and 2, as in trendscenter's coinstac-dinunet (distrib/rankdad).
    """

    def __init__(self, spec: Authors, routes: tuple[Route, ...]) -> None:
        self._spec = spec
        self._routes = routes

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Reduce gradients and send them; a site out of data sends no rows."""
        bare = tuple(_bare(*pair) for pair in zip(self._routes, gradients, strict=True))
        yield self._reduced(bare, seed, max_rows) if share > 0 else bare
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Concatenate all rows and reduce them again."""
        return self._reduced(pooled(contributions), seed, None), state

    def combine(
        self, exchange: int, contributions: Sequence[Contribution], share: float, state: MethodState, seed: int
    ) -> Aggregated:
        """Do the same with a region's; all are out of data where the share is 0."""
        payload = pooled(contributions)
        return self._reduced(payload, seed, None) if share else payload, state

    def gradients(self, updates: Sequence[Payload]) -> Payload:
        """Return the update with the sums of rows for biases."""
        return tuple(
            value.with_ones() if route.bias is not None and isinstance(value, Factor) else value
            for route, value in zip(self._routes, updates[0], strict=True)
        )

    def _reduced(self, payload: Payload, seed: int, max_rows: int | None) -> Payload:
        pairs = zip(self._routes, payload, strict=True)
        return tuple(
            value if route.up is None else self._leading(route, value, derive(seed, route.name), max_rows)
            for route, value in pairs
        )

    def _leading(self, route: Route, value: Matrix, seed: int, max_rows: int | None) -> Factor:
        spec = self._spec
        if max_rows == 0:
            return empty_factor(value)
        try:
            found = published(value, spec.rank, tolerance=spec.tolerance, seed=seed, iterations=spec.iterations)
        except ValueError:
            raise NonFiniteError(f"the gradient of {route.name}") from None
        return found.leading(spec.most_rows if max_rows is None else max_rows)


def _bare_shape(route: Route) -> tuple[int, int]:
    out, columns = route.matrix
    return out, columns - (route.bias is not None)


def _bare(route: Route, value: Matrix) -> Matrix:
    """Return a gradient without the column of its bias."""
    if route.bias is None:
        return value
    return Factor(value.delta, value.activation[:, :-1]) if isinstance(value, Factor) else value[:, :-1]


def published(factor: Matrix, rank: int, *, tolerance: float = 1e-3, seed: int = 0, iterations: int = 5) -> Factor:
    """Reduce a matrix G as the authors do: few power iterations on GGᵀ, and deflation alone.

    A component takes as many iterations as are asked for, converged or not. From the third on, one that coincides with
    the one before ends the search, and takes that one along. A search that ends otherwise loses its last component.

    Args:
        factor: G = Δᵀ A as a factor (Δ [n, out], A [n, in]), or G itself [out, in].
        rank: how many components are looked for; one fewer is returned at most.
        tolerance: distance of two unit vectors below which they coincide.
        seed: of the random starts, uniform on [0, 1).
        iterations: power iterations per component.

    Returns:
        Q [k, out] and P [k, in] with rows of unit length, not orthogonal ones, k < r. A zero matrix has k = 0.

    Raises:
        ValueError: the matrix holds NaN or infinity.

    Source: the recurrence of arXiv 2102.09631, Eq. 5; start, iterations, tolerance and stop as in trendscenter's
        coinstac-dinunet (distrib/rankdad).
    """
    matrix, scale = normalised(widened(factor))
    if scale == 0:
        return empty_factor(factor)
    like, (out, columns) = leaf(matrix), matrix.shape
    generator = torch.Generator().manual_seed(seed)
    delta, activation = like.new_zeros(rank, out), like.new_zeros(rank, columns)
    found, sizes, count = like.new_zeros(rank, out), like.new_zeros(rank), 0
    for _ in range(rank):
        b = torch.rand(out, generator=generator, dtype=torch.float64).to(like)
        for _ in range(iterations):
            known = found[:count]
            b = right(matrix, left(matrix, b)) - known.T @ (sizes[:count].square() * (known @ b))
            b = b / torch.linalg.vector_norm(b)
        image = left(matrix, b)
        sigma = torch.linalg.vector_norm(image)
        if not sigma > 0:  # nothing is left: b is 0 / 0
            break
        if count > 1 and torch.linalg.vector_norm(b - found[count - 1]) < tolerance:
            count -= 1
            break
        found[count], sizes[count] = b, sigma
        delta[count], activation[count] = (sigma * scale) * b, image / sigma
        count += 1
    else:
        count -= 1
    return as_given(Factor(delta[:count], activation[:count]), factor)
