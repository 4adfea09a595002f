"""Top-k: send the largest entries of every weight's gradient, and where they stand, with error feedback."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rankdad.common.errors import NonFiniteError
from rankdad.common.gradients.factors import Matrix
from rankdad.common.gradients.methods.base import (
    Aggregated,
    Contribution,
    Method,
    MethodState,
    SiteStep,
    as_matrix,
    pooled,
    received,
)
from rankdad.common.gradients.reduction.feedback import Residuals, minus_matrix, plus_matrix
from rankdad.common.gradients.routes import Payload, Route
from rankdad.common.gradients.sparse import sparse
from rankdad.common.gradients.wire import finite, is_lossless
from rankdad.common.spec import TopK


class TopKMethod(Method):
    """The largest entries of every chunk of a matrix, at the sites and again of what these add up to.

    Source: Stich, Cordonnier and Jaggi 2018 (arXiv 1809.07599), Algorithm 1; chunks and decay arXiv 2508.15706. The
    second choice, at the aggregator, is ours: what goes down is then no more than what comes up.
    """

    def __init__(self, spec: TopK, routes: tuple[Route, ...]) -> None:
        self._spec = spec
        self._routes = routes

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send the largest entries of gradients plus residuals; a site out of data sends zeros and keeps its own."""
        sent, residuals = gradients, state.residuals
        if share > 0:
            feedback = self._spec.feedback in ("site", "both")
            sent, residuals = self._choose(gradients, share, state, feedback=feedback, decay=self._spec.decay)
        yield sent
        return MethodState(residuals)

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Average, and choose again."""
        feedback = self._spec.feedback in ("aggregator", "both")
        update, residuals = self._choose(pooled(contributions), 1.0, state, feedback=feedback)
        return update, MethodState(residuals)

    def combine(
        self, exchange: int, contributions: Sequence[Contribution], share: float, state: MethodState, seed: int
    ) -> Aggregated:
        """Average a region's, and choose again, as a part of the whole."""
        payload = pooled(contributions)
        if not share:  # all are out of data
            return payload, state
        feedback = self._spec.feedback in ("aggregator", "both")
        sent, residuals = self._choose(payload, share, state, feedback=feedback)
        return sent, MethodState(residuals)

    def _choose(
        self, payload: Payload, share: float, state: MethodState, *, feedback: bool, decay: float = 1.0
    ) -> tuple[Payload, Residuals]:
        """Return what is sent, and what is kept: what was meant less what the other end decodes."""
        sent: list[Matrix] = []
        kept: dict[str, Matrix] = {}
        for route, value in zip(self._routes, payload, strict=True):
            meant = as_matrix(value)
            keeps = feedback and not (route.entries is None and is_lossless(self._spec.wire, meant.dtype))
            if keeps:
                meant = self._meant(route, meant, state, share, decay)
            if route.entries is None:
                sent.append(meant)
                decoded = received(meant, self._spec.wire) if keeps else meant
            elif finite(meant):
                chosen, decoded = sparse(meant, route.entries, self._spec.wire)
                sent.append(chosen)
            else:
                raise NonFiniteError(f"the gradient of {route.name}")
            if keeps:
                kept[route.name] = minus_matrix(meant, decoded, share)
        return tuple(sent), kept

    def _meant(self, route: Route, gradient: Tensor, state: MethodState, share: float, decay: float) -> Tensor:
        residual = state.residuals.get(route.name)
        return plus_matrix(gradient, None if residual is None else as_matrix(residual) * decay, share)
