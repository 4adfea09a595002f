"""Top-k: the largest entries of every weight's gradient and their positions, with error feedback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from rankdad.common.errors import NonFiniteError
from rankdad.common.lowrank.factors import Matrix
from rankdad.common.lowrank.reduction.feedback import Residuals, minus_matrix, plus_matrix
from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.lowrank.sparse import entries_of, sparse
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
from rankdad.common.methods.options import RowWire, few_bits_have_feedback

LARGEST = "the largest entries of a layer's gradient, with a rank up to the number of samples, and over time the rest"
SPARSELOCO: Mapping[str, Any] = {  # 2508.15706
    **{"local_steps": 30, "outer": "average", "proximal": 0.0, "moments": "kept"},
    **{"density": 64 / 4096, "decay": 0.95, "wire": "int2"},
}


class TopK(LocalSteps):
    """Send the largest entries of every weight's gradient with their positions; select again at the aggregator."""

    lets_out: ClassVar[str] = LARGEST
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {**LocalSteps.presets, "sparseloco": SPARSELOCO}
    stands_for: ClassVar[tuple[str, ...]] = ("sparseloco",)

    name: Literal["top-k"]
    density: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Fraction of a weight's entries to send in each direction, the same number in every 4096."""
    preset: Literal["sparseloco", LocalPreset] | None = None
    """\"sparseloco\": local steps, 64 of 4096 entries in 2 bits, residuals that decay; the others are presets of local
    steps, as for dsgd. Options that are also given take precedence."""
    feedback: Literal["none", "site", "aggregator", "both"] = "both"
    """Where residuals are kept for the next step."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of a site's residual that remains in the next step; 1 keeps all of it."""
    wire: RowWire = "float32"
    """Precision on the wire; int8, int4 and int2 are in blocks of 64 with one scale each, and the last two need
    feedback."""

    _few_bits = model_validator(mode="after")(few_bits_have_feedback)

    @model_validator(mode="after")
    def _decays_at_a_site(self) -> TopK:
        if self.decay < 1 and self.feedback not in ("site", "both"):
            raise ValueError(f"decay: got {self.decay:g}, but with feedback {self.feedback} no site has a residual")
        return self

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return the route of the largest entries; dense where that is smaller."""
        route = replace(dense, entries=entries_of(dense.matrix, self.density))
        return route if route.size(None, self.wire) < dense.size(None, self.wire) else dense

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return the selection of entries at sites and aggregator."""
        return TopKMethod(self, routes)


class TopKMethod(Method):
    """The largest entries of every chunk of a matrix, at the sites and again of their sum.

    Source: Stich, Cordonnier and Jaggi 2018 (arXiv 1809.07599), Algorithm 1; chunks and decay arXiv 2508.15706. The
    second selection, at the aggregator, is ours: it limits the update to the size of a contribution.
    """

    def __init__(self, spec: TopK, routes: tuple[Route, ...]) -> None:
        self._spec = spec
        self._routes = routes

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send the largest entries of gradients plus residuals; a site out of data sends zeros and keeps them."""
        sent, residuals = gradients, state.residuals
        if share > 0:
            feedback = self._spec.feedback in ("site", "both")
            sent, residuals = self._choose(gradients, share, state, feedback=feedback, decay=self._spec.decay)
        yield sent
        return MethodState(residuals)

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Average, and select again."""
        return self.combine(exchange, contributions, 1.0, state, seed)

    def combine(
        self, exchange: int, contributions: Sequence[Contribution], share: float, state: MethodState, seed: int
    ) -> Aggregated:
        """Average a region's contributions, and select again, as a part of the whole."""
        payload = pooled(contributions)
        if not share:  # all are out of data
            return payload, state
        feedback = self._spec.feedback in ("aggregator", "both")
        sent, residuals = self._choose(payload, share, state, feedback=feedback)
        return sent, MethodState(residuals)

    def _choose(
        self, payload: Payload, share: float, state: MethodState, *, feedback: bool, decay: float = 1.0
    ) -> tuple[Payload, Residuals]:
        """Return the selected entries, and the residuals."""
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
