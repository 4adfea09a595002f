"""rank-dAD: factors reduced at each site, concatenated, and reduced again at the aggregator.

With error feedback a reduction's residual, what was meant minus what the other end decodes, joins the next step's
matrix before it is reduced: nothing of a gradient is lost, it only arrives later.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from common.errors import NonFiniteError
from common.factors import Factor
from common.methods.base import State, Weighted, pooled
from common.plan import Payload, Route
from common.reduction.spi import spi
from common.seeds import derive
from common.spec import RankDad


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
        if share == 0:
            update = yield gradients
            return update, state
        sent, residuals = self._reduce(gradients, share, state, seed, feedback=self._feedback_at_site)
        update = yield sent
        return update, residuals

    def aggregate(self, contributions: Sequence[Weighted], state: State, seed: int) -> tuple[Payload, State]:
        """Concatenate all sites' rows and reduce them again."""
        return self._reduce(pooled(contributions), 1.0, state, seed, feedback=self._feedback_at_aggregator)

    def _reduce(
        self, payload: Payload, share: float, state: State, seed: int, *, feedback: bool
    ) -> tuple[Payload, State]:
        reduced: list[Factor | Tensor] = []
        residuals: State = {}
        for route, value in zip(self._routes, payload, strict=True):
            if isinstance(value, Tensor):
                reduced.append(value)
                continue
            meant = _plus(value, state.get(route.name), share) if feedback else value
            try:
                factor = spi(
                    meant,
                    self._spec.rank,
                    tolerance=self._spec.tolerance,
                    seed=derive(seed, route.name),
                    iterations=self._spec.iterations,
                )
            except ValueError:
                raise NonFiniteError(route.name) from None
            reduced.append(factor)
            if isinstance(meant, Tensor):
                residuals[route.name] = self._residual(meant, factor, share)
        return tuple(reduced), residuals

    def _residual(self, meant: Tensor, sent: Factor, share: float) -> Tensor:
        """Return what was meant minus what the other end decodes, as it will be applied. `meant` is overwritten."""
        decoded = Factor(sent.delta.to(self._wire).to(meant.dtype), sent.activation.to(self._wire).to(meant.dtype))
        return meant.addmm_(decoded.delta.T, decoded.activation, beta=share, alpha=-share)


def _plus(factor: Factor, residual: Tensor | None, share: float) -> Tensor:
    """Return a site's mean gradient plus its residual, less the share that will multiply both."""
    if residual is None:
        return factor.gradient()
    return torch.addmm(residual, factor.delta.T, factor.activation, beta=1 / share)
