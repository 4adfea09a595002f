"""How each site stands at a moment: what the live page and the terminal's table are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a site's terminal shows the same figures, and needs no server for them
    from rankdad.remote.host import Host

Kind = Literal["stopped", "absent", "gone", "behind", "awaited", "in"]


@dataclass(frozen=True)
class Standing:
    """How a site stands.

    Args:
        site: its name.
        kind: stopped by a problem of its own, absent until it comes, gone without a connection, behind the round that
            goes on without it, awaited by the round, or in.
        rows: samples that it takes part with; None before all have said hello.
        behind: steps in a row that it has been left out of.
        seconds: from the last step's beginning until its contribution was in; None if it took no part.
        problem: that keeps it from taking part; "" if none does.
    """

    site: str
    kind: Kind
    rows: int | None = None
    behind: int = 0
    seconds: float | None = None
    problem: str = ""


def standings(host: Host) -> list[Standing]:
    """Return how the sites of a run stand, in order."""
    aggregator = host.aggregator
    p, status, samples = aggregator.recorder.progress, aggregator.status, aggregator.kept.checks.samples
    connected, problems, behind = host.connected(), dict(p.problems), p.behind
    seconds = aggregator.recorder.history.last_seconds()

    def kind(site: str) -> Kind:
        if site in problems:
            return "stopped"
        if site not in connected:
            return "gone" if site in host.joined else "absent"
        if site in status.without:
            return "behind"
        return "awaited" if site in status.waiting_for else "in"

    def rows(site: str) -> int | None:
        return sum(samples[site][0]) if site in samples else None

    return [
        Standing(site, kind(site), rows(site), behind.get(site, 0), seconds.get(site), problems.get(site, ""))
        for site in p.sites
    ]
