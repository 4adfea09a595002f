"""The live page about an active run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rankdad.common.errors import ProtocolError
from rankdad.page.history import History
from rankdad.page.serving import Guard, Page, PageRoute, page_router
from rankdad.page.stream import Stream
from rankdad.page.tail import Line
from rankdad.remote.connections import VIEWER
from rankdad.remote.open_run import Runs
from rankdad.remote.page_document import page_document
from rankdad.remote.results.run_summary import RunFigures
from rankdad.remote.run_session import RunSession
from rankdad.remote.site_status import Kind, SiteStatus, site_statuses

PAGE_HEADER = "x-rankdad-page"
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


class Pages:
    """Pages for people: here, the page of a server's only run.

    Args:
        runs: the server's runs.
        asks: title of the form.
    """

    def __init__(self, runs: Runs, asks: str = Guard.ASKS) -> None:
        self._runs, self._everybody = runs, Counter[str]()
        allowed = lambda request, token: self.name(request, token) is not None  # noqa: E731
        self._guard = Guard(allowed, self._admitted, self._refused, asks)

    def close(self) -> None:
        """Close the streams of pages that are of no single run."""

    def routers(self) -> tuple[APIRouter, ...]:
        """Create the pages' routers."""

        async def lead() -> Response:
            """Redirect to the page."""
            return RedirectResponse("page/", 307)

        async def found(request: Request) -> Page | None:  # noqa: ARG001
            return self.page_of(self._runs.only, self._runs.consortium.name)

        router = APIRouter(tags=["page"], route_class=PageRoute)
        for path in ("/", "/page"):
            router.get(path, response_class=RedirectResponse, status_code=307)(lead)
        return router, page_router("/page", self._guard, found)

    def page_of(self, run: str, title: str) -> Page | None:
        """Return the page about an open run; None while it is being opened."""
        opened = self._runs.running[run]
        if opened.served is not None and opened.page is None:
            host = opened.served.host
            live = Live(host, self._runs.lines(run))
            opened.page = self.make(title, live.document, host.aggregator.recorder.history)
        return opened.page

    def make(self, title: str, document: Callable[[], dict[str, Any]], history: History) -> Page:
        """Create the page about a run."""
        stream = Stream(document, history, everybody=self._everybody)
        return Page(title, stream, self._guard, values=self.values)

    def values(self, request: Request) -> dict[str, object]:
        """Return further variables of the template."""
        return {}

    def bearer(self, request: Request) -> str:
        """Return a request's cookie as an `authorization` header, if the page's own script sent it."""
        return self.shown(request) if request.headers.get(PAGE_HEADER) == "1" else ""

    def shown(self, request: Request) -> str:
        """Return a request's cookie as an `authorization` header, for reading."""
        token = self._guard.token(request)
        return f"Bearer {token}" if token else ""

    def name(self, request: Request, token: str) -> str | None:
        """Return a token's owner or viewer; None if it is unknown."""
        members, connection = self._runs.consortium, request.scope["state"]["connection"]
        try:
            name = self._runs.people.check(None, f"Bearer {token}", connection.names(request.headers.raw))
        except ProtocolError:
            return None
        return name if name in (*members.owners, *members.viewers) else None

    def _admitted(self, request: Request) -> None:
        """Mark a viewer's connection."""
        connection = request.scope["state"]["connection"]
        if connection.site != VIEWER:
            self._runs.registry.identify(connection, VIEWER)

    def _refused(self, request: Request, status: int, reason: str) -> None:
        self._runs.audit.refused(request.client.host if request.client else "", "", status, reason)
