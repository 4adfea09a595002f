"""dAD: full factors, concatenated. Exact: the product is the gradient of the pooled batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from torch import nn

from rankdad.common.errors import RankdadError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Payload, Route, smaller
from rankdad.common.methods.base import Aggregated, Contribution, Method, MethodState, SiteStep, pooled
from rankdad.common.methods.local_steps import EveryBatch
from rankdad.common.methods.options import Wire

FULL = "the aggregator and, if that is smaller than the gradient, all other sites"


class Dad(EveryBatch):
    """Send full factors and concatenate them: exact (dAD)."""

    sends_rows_as_they_are: ClassVar[str] = FULL
    updates_are_factors: ClassVar[bool] = True

    name: Literal["dad"]
    wire: Wire = "float32"
    """Precision on the wire."""

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return the route of a factor of all rows; down it is the product if that is smaller."""
        return full_factor(dense, bias, rows, sites, self.wire)

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return the concatenation of full factors."""
        return DadMethod(routes)


def full_factor(dense: Route, bias: str | None, rows: int | None, sites: int, wire: str) -> Route:
    """Return the route of a factor of this many rows per site; dense if it is larger, or not captured."""
    if rows is None:
        return dense
    route = Route(dense.name, dense.shape, bias, captured=True, up=rows, down=rows * sites)
    if route.size(route.down, wire) >= route.size(None, wire):
        route = replace(route, down=None)
    return smaller(route, dense, wire)


class DadMethod(Method):
    """Full factors; the update is their product if the concatenation is larger."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._routes = routes

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send the factors unchanged."""
        for route, value in zip(self._routes, gradients, strict=True):
            if route.up is not None and not isinstance(value, Factor):
                raise RankdadError(
                    f"the model used {route.name} outside its layer in this step, so its gradient is not a factor: "
                    "choose rank-dad or dsgd",
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
