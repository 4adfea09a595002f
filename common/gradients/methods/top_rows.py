"""Top rows: send the first rows of every factor, and nothing of the rest. The baseline that is easy to beat."""

from __future__ import annotations

from rankdad.common.gradients.factors import Factor
from rankdad.common.gradients.methods.base import MethodState, SiteStep
from rankdad.common.gradients.methods.dad import DadMethod
from rankdad.common.gradients.routes import Payload, Route
from rankdad.common.spec import TopRows


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
