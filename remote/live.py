"""The live page's document about an active run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from starlette.requests import Request

from rankdad.page.serving import Guard, Page
from rankdad.page.stream import Stream
from rankdad.page.tail import Line, Tail
from rankdad.remote.auth import hashed
from rankdad.remote.connections import VIEWER, ConnectionRegistry
from rankdad.remote.page_document import page_document
from rankdad.remote.results.run_summary import RunFigures
from rankdad.remote.run_session import RunSession
from rankdad.remote.site_status import Kind, SiteStatus, site_statuses

WORDS: Mapping[Kind, str] = {
    "absent": "not here yet",
    "gone": "disconnected",
    "behind": "late: the round continues without it",
    "awaited": "computing",
    "in": "done",
}


class Live:
    """The document of an active run.

    Args:
        host: the run's session.
        lines: returns the last lines of the log.
    """

    def __init__(self, host: RunSession, lines: Callable[[], list[Line]]) -> None:
        self._host, self._lines = host, lines
        self._aggregator, self._recorder = host.aggregator, host.aggregator.recorder
        self._epoch = time.time() - time.perf_counter()  # zero of its clock, in seconds since 1970

    def document(self) -> dict[str, Any]:
        """Return all parts; the page receives a part when it changes."""
        p, status, history = self._recorder.progress, self._aggregator.status, self._recorder.history
        outcome, reason = self._aggregator.outcome
        figures = RunFigures.of(p)
        if p.status == "running" and outcome != "running":  # the last summary is being written
            figures = figures.model_copy(update={"status": outcome, "reason": p.reason or reason})
        running = figures.status == "running"
        return page_document(
            figures,
            self._aggregator.spec,
            history.layers,
            self._lines(),
            id_=self._aggregator.run_id,
            ends=round(time.time() + figures.seconds_left) if figures.steps and running else None,
            waiting={
                "sites": list(status.waiting_for),
                "since": round(self._epoch + status.round_began, 1),
                "without": list(status.without),
            },
            times=history.times(),
            states={one.site: _words(one) for one in site_statuses(self._host)} if running else None,
            refused=self._host.audit.refusals,
            seen={site: round(seen) for site, seen in dict(self._host.seen).items()},
        )


def _words(standing: SiteStatus) -> tuple[str, str]:
    stopped = f"cannot take part: {standing.problem}"
    return standing.kind, stopped if standing.kind == "stopped" else WORDS[standing.kind]


def page_of(host: RunSession, registry: ConnectionRegistry, viewers: Callable[[], Collection[str]]) -> Page:
    """Create the page about a run.

    Args:
        host: the run's session.
        registry: all connections.
        viewers: returns viewers' hashed tokens.
    """
    tail = Tail()
    stream = Stream(Live(host, tail.lines).document, host.aggregator.recorder.history)

    def allowed(_: Request, token: str) -> bool:
        given = hashed(token)
        return any(secrets.compare_digest(known, given) for known in viewers())

    return Page(host.aggregator.spec.name, stream, guard_of(registry, allowed), closing=tail.stop)


def guard_of(
    registry: ConnectionRegistry, allowed: Callable[[Request, str], bool], path: str = "", asks: str = Guard.ASKS
) -> Guard:
    """Create a page's guard, which marks viewers' connections and audits refusals."""

    def admitted(request: Request) -> None:
        connection = request.scope["state"]["connection"]
        if connection.site != VIEWER:
            registry.identify(connection, VIEWER)

    def refused(request: Request, status: int, reason: str) -> None:
        registry.audit.refused(request.client.host if request.client else "", "", status, reason)

    return Guard(allowed, admitted, refused, path, asks)
