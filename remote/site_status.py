"""Status of each site, for the live page and the terminal's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # keeps the server out of a site's terminal
    from rankdad.remote.run_session import RunSession

Kind = Literal["stopped", "absent", "gone", "behind", "awaited", "in"]


@dataclass(frozen=True)
class SiteStatus:
    """Status of a site.

    Args:
        site: its name.
        kind: stopped by a problem, absent so far, gone (disconnected), behind the present round, awaited by it, or in.
        rows: number of its samples; None before all have said hello.
        behind: consecutive missed steps.
        seconds: from the start of the last step until its contribution; None without one.
        problem: the reason for `stopped`, or "".
    """

    site: str
    kind: Kind
    rows: int | None = None
    behind: int = 0
    seconds: float | None = None
    problem: str = ""


def site_statuses(host: RunSession) -> list[SiteStatus]:
    """Return the status of each site, in order."""
    aggregator = host.aggregator
    p, status, samples = aggregator.recorder.progress, aggregator.status, aggregator.store.checks.samples
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
        SiteStatus(site, kind(site), rows(site), behind.get(site, 0), seconds.get(site), problems.get(site, ""))
        for site in p.sites
    ]


def shown_state(one: SiteStatus, is_late: bool, ended: bool) -> str:
    """Return a site's state in a few words."""
    if one.kind == "stopped":
        return f"cannot take part: {one.problem}"
    if ended and one.kind != "absent":
        return "done"
    if one.kind == "absent":
        return "not here yet"
    if one.kind == "gone":
        return "gone"
    return "waiting for" if is_late else "late" if one.kind == "behind" or one.behind else "connected"
