"""The interface to the aggregator, for HTTP and for engines that carry the calls."""

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
        """Request the run: its spec and version."""

    def expect(self, plan: Plan) -> None:
        """Accept answers as large as this plan's."""

    def exchange(self, body: bytes, round_: int, computed: float | None = None) -> bytes:
        """Send a contribution, and return its round's update."""

    def recorded(self, round_: int) -> bytes | None:
        """Return the update of a round if it is complete."""

    def snapshot(self) -> bytes | None:
        """Return the run's newest state; None if there is none yet."""

    def give_up(self, body: bytes) -> None:
        """Report that this site cannot continue."""

    def done(self) -> Receipt | None:
        """Report that this site needs nothing more from the run."""
