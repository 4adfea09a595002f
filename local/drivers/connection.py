"""How a site reaches the aggregator: by HTTP, or through an engine that carries its calls."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol, Self

from rankdad.common.protocol.plan import Plan
from rankdad.common.protocol.retention import Receipt


class Connection(Protocol):
    """A site's connection to the aggregator of a run; see `local.drivers.http.AggregatorClient`."""

    def __enter__(self) -> Self:
        """Open it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""

    def run(self) -> dict[str, Any]:
        """Ask for the run: its spec, and what to compare."""

    def expect(self, plan: Plan) -> None:
        """Take answers as large as this plan's."""

    def exchange(self, body: bytes, round_: int, computed: float | None = None) -> bytes:
        """Send a contribution, and return its round's update."""

    def recorded(self, round_: int) -> bytes | None:
        """Return the update of a round if it is complete."""

    def snapshot(self) -> bytes | None:
        """Return the run's newest state; None if there is none yet."""

    def give_up(self, body: bytes) -> None:
        """Say that this site cannot go on."""

    def done(self) -> Receipt | None:
        """Say that this site has all that it needs of the run."""
