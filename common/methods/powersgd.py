"""PowerSGD: one power iteration on the sum of all sites' gradients, in two exchanges that depend on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from rankdad.common.errors import NonFiniteError
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.layout import Exchange, Slot, both_ways, dense_slot
from rankdad.common.lowrank.reduction.feedback import minus_matrix, plus_matrix
from rankdad.common.lowrank.routes import Payload, Route, smaller
from rankdad.common.lowrank.wire import finite, is_lossless
from rankdad.common.methods.base import (
    Aggregated,
    Contribution,
    Method,
    MethodState,
    SiteStep,
    as_matrix,
    pooled,
    received,
)
from rankdad.common.methods.local_steps import LocalPreset, LocalSteps
from rankdad.common.methods.options import Wire
from rankdad.common.numbers import UpToMillion
from rankdad.common.seeds import derive

CHOSEN = "a layer's gradient in directions that the aggregator chooses, possibly single rows of it"


class PowerSgd(LocalSteps):
    """Multiply gradients by shared directions, in two exchanges a step, with error feedback (Vogels 2019)."""

    lets_out: ClassVar[str] = CHOSEN
    fixed_rows: ClassVar[bool] = True

    name: Literal["powersgd"]
    rank: UpToMillion
    """Number of directions."""
    preset: LocalPreset | None = None
    """Local steps as published: fedavg, fedprox, fedopt or diloco; options that are also given take precedence."""
    feedback: bool = True
    """Whether a step's residual is added to the next."""
    wire: Wire = "float32"
    """Precision on the wire."""

    @property
    def most_rows(self) -> int:
        """Number of directions."""
        return self.rank

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return the route of a product with directions; biases are exact, as published."""
        route = Route(dense.name, dense.shape, None, up=self.rank, down=self.rank)
        return smaller(route, dense, self.wire)

    def exchanges(self, routes: Sequence[Route], sites: int) -> tuple[Exchange, ...]:
        """Return the exchanges of P and of Q."""
        left = (dense_slot(r) if r.up is None else Slot(r.name, r.up, (r.matrix[0],), fixed=True) for r in routes)
        right = [Slot(r.name, r.up, (r.matrix[1],), fixed=True) for r in routes if r.up is not None]
        return (both_ways(left), both_ways(right)) if right else (both_ways(left),)

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return PowerSGD with shared directions."""
        return PowerSgdMethod(self, routes, seed)


class PowerSgdMethod(Method):
    """Two exchanges, one shared orthonormalisation, warm start, error feedback.

    A site's residual is its intended gradient minus its own part of the update.

    Source: Vogels, Karimireddy and Jaggi 2019 (arXiv 1905.13727), Algorithms 1 and 2.
    """

    def __init__(self, spec: PowerSgd, routes: tuple[Route, ...], seed: int) -> None:
        self._spec = spec
        self._routes = routes
        self._seed = seed
        self._reduced = [index for index, route in enumerate(routes) if route.up is not None]

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send M Q, and then Mᵀ P̂ for the received P̂."""
        meant = [self._meant(*pair, state, share) for pair in zip(self._routes, gradients, strict=True)]
        reduced = [(self._routes[index], meant[index]) for index in self._reduced]
        products = list(meant)
        for index, (route, matrix) in zip(self._reduced, reduced, strict=True):
            products[index] = self._directions(route, state.bases.get(route.name), matrix) @ matrix.T
        dtype = meant[0].dtype  # the model's, which may differ from the wire's
        updates = [_in((yield tuple(products)), dtype)]
        if reduced:
            updates.append(_in((yield tuple(as_matrix(updates[0][i]) @ meant[i] for i in self._reduced)), dtype))
        if not self._spec.feedback or share == 0:
            return MethodState(state.residuals, self.bases(updates))
        residuals = {}
        for index, (route, matrix) in enumerate(zip(self._routes, meant, strict=True)):
            if index in self._reduced:
                left = as_matrix(updates[0][index])
                right = received(left @ matrix, self._spec.wire)
                residuals[route.name] = minus_matrix(matrix, Factor(left, as_matrix(right)), share)
            elif not is_lossless(self._spec.wire, dtype):
                residuals[route.name] = minus_matrix(matrix, received(matrix, self._spec.wire), share)
        return MethodState(residuals, self.bases(updates))

    def bases(self, updates: Sequence[Payload]) -> Mapping[str, Tensor]:
        """Return the Q of the last exchange."""
        if len(updates) == 1:
            return {}
        pairs = zip(self._reduced, updates[1], strict=True)
        return {self._routes[index].name: as_matrix(value) for index, value in pairs}

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Average; orthonormalise the sum of all sites' M Q."""
        update = list(pooled(contributions))
        if exchange == 0:
            for index in self._reduced:
                update[index] = torch.linalg.qr(as_matrix(update[index]).T)[0].T.contiguous()
        return tuple(update), state

    def combine(
        self, exchange: int, contributions: Sequence[Contribution], share: float, state: MethodState, seed: int
    ) -> Aggregated:
        """Average; directions are orthonormalised only once."""
        return pooled(contributions), state

    def gradients(self, updates: Sequence[Payload]) -> Payload:
        """Return P̂ Qᵀ as factors, and dense gradients."""
        values = list(updates[0])
        for at, index in enumerate(self._reduced):
            values[index] = Factor(as_matrix(updates[0][index]), as_matrix(updates[1][at]))
        return tuple(values)

    def _meant(self, route: Route, gradient: Matrix, state: MethodState, share: float) -> Tensor:
        """Return gradient plus residual; for a site that is out of data zeros, which leaves its residual unchanged."""
        residual = state.residuals.get(route.name) if share > 0 else None
        meant = plus_matrix(gradient, None if residual is None else as_matrix(residual), share)
        if not finite(meant):
            raise NonFiniteError(f"the gradient of {route.name}")
        return meant

    def _directions(self, route: Route, basis: Tensor | None, like: Tensor) -> Tensor:
        """Return Qᵀ [r, columns]: the last step's, with random directions for zeros, which would stay zero."""
        assert route.up is not None
        columns = route.matrix[1]
        generator = torch.Generator().manual_seed(derive(self._seed, "powersgd", route.name))
        drawn = torch.randn(route.up, columns, generator=generator, dtype=torch.float64).to(like)
        if basis is None:
            return drawn
        basis = basis.to(like)
        sizes = torch.linalg.vector_norm(basis, dim=1, keepdim=True)
        return torch.where(sizes > 0, basis / sizes.clamp_min(torch.finfo(basis.dtype).tiny), drawn)


def _in(payload: Payload, dtype: torch.dtype) -> Payload:
    return tuple(as_matrix(value).to(dtype) for value in payload)
