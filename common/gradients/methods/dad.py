"""dAD: send full factors, concatenate them. Exact: the product is the gradient of the pooled batch."""

from __future__ import annotations

from collections.abc import Sequence

from rankdad.common.errors import RankdadError
from rankdad.common.gradients.factors import Factor
from rankdad.common.gradients.methods.base import Aggregated, Contribution, Method, MethodState, SiteStep, pooled
from rankdad.common.gradients.routes import Payload, Route


class DadMethod(Method):
    """Full factors; where the concatenation is larger than its product, the product goes back."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._routes = routes

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send the factors as they are."""
        for route, value in zip(self._routes, gradients, strict=True):
            if route.up is not None and not isinstance(value, Factor):
                raise RankdadError(
                    f"the model used {route.name} outside its layer in this step, so that no factor covers its "
                    "gradient: choose rank-dad or dsgd",
                    code="used-outside-layer",
                    field="method.name",
                )
        yield gradients
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Concatenate.

        Source: arXiv 2102.09631, Algorithm 1.
        """
        update = tuple(
            value.gradient() if isinstance(value, Factor) and route.down is None else value
            for route, value in zip(self._routes, pooled(contributions), strict=True)
        )
        return update, state
