"""What the live page says of an aggregator's run, by part."""

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
from rankdad.remote.host import Host
from rankdad.remote.page_document import page_document
from rankdad.remote.results.run_summary import RunFigures
from rankdad.remote.standing import Kind, Standing, standings

WORDS: Mapping[Kind, str] = {
    "absent": "not here yet",
    "gone": "gone: no connection",
    "behind": "late: the round goes on without it",
    "awaited": "works",
    "in": "is in",
}


class Live:
    """A run as the page tells of it.

    Args:
        host: of the run.
        lines: returns the last ones of the log.
    """

    def __init__(self, host: Host, lines: Callable[[], list[Line]]) -> None:
        self._host, self._lines = host, lines
        self._aggregator, self._recorder = host.aggregator, host.aggregator.recorder
        self._epoch = time.time() - time.perf_counter()  # the moment that its clock counts from

    def document(self) -> dict[str, Any]:
        """Return all parts: a part is told again when it has changed."""
        p, status, history = self._recorder.progress, self._aggregator.status, self._recorder.history
        outcome, reason = self._aggregator.outcome
        figures = RunFigures.of(p)
        if p.status == "running" and outcome != "running":  # and the last summary is being written
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
            states={one.site: _words(one) for one in standings(self._host)} if running else None,
            refused=self._host.audit.refusals,
            seen={site: round(seen) for site, seen in dict(self._host.seen).items()},
        )


def _words(standing: Standing) -> tuple[str, str]:
    stopped = f"cannot take part: {standing.problem}"
    return standing.kind, stopped if standing.kind == "stopped" else WORDS[standing.kind]


def page_of(host: Host, registry: ConnectionRegistry, viewers: Callable[[], Collection[str]]) -> Page:
    """Return the page about a run.

    Args:
        host: of the run.
        registry: of all connections.
        viewers: returns the hashed tokens of those who may see it.
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
    """Return what guards a page: connections of those whom it lets in are viewers', and others are in the audit log."""

    def admitted(request: Request) -> None:
        connection = request.scope["state"]["connection"]
        if connection.site != VIEWER:
            registry.identify(connection, VIEWER)

    def refused(request: Request, status: int, reason: str) -> None:
        registry.audit.refused(request.client.host if request.client else "", "", status, reason)

    return Guard(allowed, admitted, refused, path, asks)
