"""dSGD: send the full gradient, average it. Exact, and the yardstick for bytes."""

from __future__ import annotations

from collections.abc import Sequence

from rankdad.common.gradients.methods.base import Aggregated, Contribution, Method, MethodState, SiteStep, pooled
from rankdad.common.gradients.routes import Payload


class DsgdMethod(Method):
    """Full gradients; every route is dense."""

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send the gradients as they are."""
        yield gradients
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Average."""
        return pooled(contributions), state
