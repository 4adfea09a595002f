"""dSGD: send the full gradient, average it. Exact, and the yardstick for bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from rankdad.common.gradients.methods.base import Aggregated, Contribution, Method, MethodState, SiteStep, pooled
from rankdad.common.gradients.routes import Payload
from rankdad.common.spec import Dsgd


class DsgdMethod(Method):
    """Full gradients, in one exchange or in one for each; every route is dense."""

    def __init__(self, spec: Dsgd) -> None:
        self._together = spec.exchanges == "one"

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send the gradients as they are."""
        if self._together:
            yield gradients
        else:
            for gradient in gradients:
                yield (gradient,)
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Average."""
        return pooled(contributions), state

    def gradients(self, updates: Sequence[Payload]) -> Payload:
        """Return the updates, one after the other."""
        return tuple(chain.from_iterable(updates))
