"""rank-dAD: factors reduced at each site, concatenated, and reduced again at the aggregator.

With error feedback a reduction's residual, what was meant minus what the other end decodes, joins the next step's
matrix before it is reduced: nothing of a gradient is lost, it only arrives later.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import torch
from torch import Tensor

from common.errors import NonFiniteError
from common.factors import Factor
from common.methods.base import State, Weighted, pooled
from common.plan import Payload, Route
from common.reduction.block import block
from common.reduction.exact import exact
from common.reduction.spi import spi
from common.seeds import derive
from common.spec import RankDad

FEW_ROWS = 64  # a factor of so few is decomposed exactly in the time of one block iteration on its product
WARM_ITERATIONS, COLD_ITERATIONS = 1, 6  # of the block reducer, with and without the last update's basis


class RankDadMethod:
    """Reduced factors, with error feedback at the site, the aggregator, both or neither.

    Source: arXiv 2102.09631, Algorithms 1 and 2; the feedback is ours, after Vogels 2019 (arXiv 1905.13727).
    """

    def __init__(self, spec: RankDad, routes: tuple[Route, ...]) -> None:
        self._spec = spec
        self._routes = routes
        self._wire: torch.dtype = getattr(torch, spec.wire)
        self._feedback_at_site = spec.feedback in ("site", "both")
        self._feedback_at_aggregator = spec.feedback in ("aggregator", "both")

    def step(
        self, gradients: Payload, share: float, state: State, seed: int
    ) -> Generator[Payload, Payload, tuple[Payload, State]]:
        """Reduce gradients plus residuals and send them; a site out of data sends no rows and keeps its residuals."""
        residuals: Mapping[str, Tensor] = state.residuals
        sent = gradients
        if share > 0:
            sent, residuals = self._reduce(gradients, share, state, seed, feedback=self._feedback_at_site)
        update = yield sent
        return update, State(residuals, self._bases(update))

    def aggregate(self, contributions: Sequence[Weighted], state: State, seed: int) -> tuple[Payload, State]:
        """Concatenate all sites' rows and reduce them again."""
        update, residuals = self._reduce(pooled(contributions), 1.0, state, seed, feedback=self._feedback_at_aggregator)
        return update, State(residuals, self._bases(update))

    def _bases(self, update: Payload) -> dict[str, Tensor]:
        pairs = zip(self._routes, update, strict=True)
        return {route.name: value.activation for route, value in pairs if isinstance(value, Factor)}

    def _reduce(
        self, payload: Payload, share: float, state: State, seed: int, *, feedback: bool
    ) -> tuple[Payload, dict[str, Tensor]]:
        reduced: list[Factor | Tensor] = []
        residuals: dict[str, Tensor] = {}
        for route, value in zip(self._routes, payload, strict=True):
            if route.up is None:
                reduced.append(value)
                continue
            meant = _plus(value, state.residuals.get(route.name), share) if feedback else value
            try:
                factor = self._reduced(meant, state.bases.get(route.name), derive(seed, route.name))
            except ValueError:
                raise NonFiniteError(f"the gradient of {route.name}") from None
            reduced.append(factor)
            if isinstance(meant, Tensor):
                residuals[route.name] = self._residual(meant, factor, share)
        return tuple(reduced), residuals

    def _reduced(self, matrix: Factor | Tensor, basis: Tensor | None, seed: int) -> Factor:
        """Reduce a matrix by the spec's reducer."""
        rank, tolerance = self._spec.rank, self._spec.tolerance
        few = isinstance(matrix, Factor) and matrix.rows <= FEW_ROWS
        if self._spec.reducer == "exact" or (self._spec.reducer == "auto" and few):
            return exact(matrix, rank, tolerance=tolerance)
        if self._spec.reducer in ("block", "auto"):
            iterations = COLD_ITERATIONS if basis is None or not len(basis) else WARM_ITERATIONS
            return block(matrix, rank, basis=basis, tolerance=tolerance, seed=seed, iterations=iterations)
        return spi(matrix, rank, tolerance=tolerance, seed=seed, iterations=self._spec.iterations)

    def _residual(self, meant: Tensor, sent: Factor, share: float) -> Tensor:
        """Return what was meant minus what the other end decodes, as it will be applied. `meant` is overwritten."""
        decoded = Factor(sent.delta.to(self._wire).to(meant.dtype), sent.activation.to(self._wire).to(meant.dtype))
        return meant.addmm_(decoded.delta.T, decoded.activation, beta=share, alpha=-share)


def _plus(gradient: Factor | Tensor, residual: Tensor | None, share: float) -> Tensor:
    """Return a site's mean gradient plus its residual, less the share that will multiply both."""
    if residual is None:
        return gradient.gradient() if isinstance(gradient, Factor) else gradient.clone()
    if isinstance(gradient, Factor):
        return torch.addmm(residual, gradient.delta.T, gradient.activation, beta=1 / share)
    return torch.add(gradient, residual, alpha=1 / share)
