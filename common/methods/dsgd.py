"""dSGD: full gradients, averaged. Exact, and the baseline for bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import nn

from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.methods.base import Aggregated, Contribution, Method, MethodState, SiteStep, pooled
from rankdad.common.methods.local_steps import LocalPreset, LocalSteps
from rankdad.common.methods.options import Wire


class Dsgd(LocalSteps):
    """Send full gradients and average them."""

    whole: ClassVar[bool] = True
    joins_later: ClassVar[bool] = True
    rank_field: ClassVar[str] = "method.name"
    stands_for: ClassVar[tuple[str, ...]] = tuple(LocalSteps.presets)

    name: Literal["dsgd"]
    preset: LocalPreset | None = None
    """Local steps as published: fedavg, fedprox, fedopt or diloco; what else is given stands."""
    wire: Wire = "float32"
    """Precision on the wire; int8 is in blocks of 64 with one scale each."""

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return the mean of full gradients."""
        return DsgdMethod()


class DsgdMethod(Method):
    """Full gradients; every route is dense."""

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send the gradients unchanged."""
        yield gradients
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Average."""
        return pooled(contributions), state
