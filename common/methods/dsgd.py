"""dSGD: send the full gradient, average it. Exact, and the yardstick for bytes."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from common.methods.base import State, Weighted, pooled
from common.plan import Payload


class DsgdMethod:
    """Full gradients; every route is dense."""

    def step(
        self, gradients: Payload, share: float, state: State, seed: int
    ) -> Generator[Payload, Payload, tuple[Payload, State]]:
        """Send the gradients as they are."""
        update = yield gradients
        return update, state

    def aggregate(self, contributions: Sequence[Weighted], state: State, seed: int) -> tuple[Payload, State]:
        """Average."""
        return pooled(contributions), state
