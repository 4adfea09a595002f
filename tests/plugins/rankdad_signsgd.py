"""signSGD with majority vote, as another package would bring it along: one file, and an entry point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import nn

from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.methods.base import Aggregated, Contribution, Method, MethodState, SiteStep, as_matrix
from rankdad.common.methods.local_steps import EveryBatch


class SignSgd(EveryBatch):
    """Send the sign of every gradient, and move by what most sites have sent."""

    whole: ClassVar[bool] = True
    lets_out: ClassVar[str] = "the sign of every entry of a layer's gradient"
    rank_field: ClassVar[str] = "method.name"

    name: Literal["signsgd"]
    wire: Literal["int8"] = "int8"
    """Precision on the wire."""

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return the vote."""
        return Vote()


class Vote(Method):
    """Bernstein, Wang, Azizzadenesheli and Anandkumar 2018 (arXiv 1802.04434), Algorithm 3."""

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send signs; a site out of data sends zeros."""
        yield tuple(torch.sign(as_matrix(value)) for value in gradients)
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Return the sign of the sum."""
        payloads = [[as_matrix(value) for value in one.payload] for one in contributions]
        return tuple(torch.sign(sum(values[1:], values[0])) for values in zip(*payloads, strict=True)), state
