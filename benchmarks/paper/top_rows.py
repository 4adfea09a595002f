"""Top rows: send the first rows of every factor, and nothing of the rest: the paper's crude baseline."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn

from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.methods.base import Method, MethodState, SiteStep
from rankdad.common.methods.dad import FULL, DadMethod, full_factor
from rankdad.common.methods.local_steps import EveryBatch
from rankdad.common.methods.options import Wire
from rankdad.common.numbers import UpToMillion


class TopRows(EveryBatch):
    """Send the first rows of every factor: the paper's crude baseline."""

    sends_rows_as_they_are: ClassVar[str] = FULL
    updates_are_factors: ClassVar[bool] = True
    rank_field: ClassVar[str] = "method.rows"

    name: Literal["top-rows"]
    rows: UpToMillion = 3
    """How many rows a site sends of a layer's factor."""
    wire: Wire = "float32"
    """Precision on the wire."""

    @property
    def most_rows(self) -> int:
        """As `rows`."""
        return self.rows

    def route(self, dense: Route, bias: str | None, rows: int | None, sites: int) -> Route:
        """Return the route of a factor's first rows; three of them say little of a bias, a sum over all."""
        return full_factor(dense, None, None if rows is None else min(self.rows, rows), sites, self.wire)

    def method(self, routes: tuple[Route, ...], model: nn.Module, seed: int) -> Method:
        """Return the concatenation of first rows."""
        return TopRowsMethod(self, routes)


class TopRowsMethod(DadMethod):
    """dAD on the first rows of every batch: a mean over all samples to which most contribute nothing.

    Source: arXiv 2102.09631, Section 4 ("top 3 columns", which are rows in PyTorch's layout).
    """

    def __init__(self, spec: TopRows, routes: tuple[Route, ...]) -> None:
        super().__init__(routes)
        self._rows = spec.rows

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send the first rows."""
        first = tuple(value.leading(self._rows) if isinstance(value, Factor) else value for value in gradients)
        return (yield from super().step(first, share, state, seed))
