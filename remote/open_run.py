"""Open runs of a server, and who may reach and see them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from rankdad.page.serving import Page
from rankdad.page.tail import Line
from rankdad.remote.app import Routes
from rankdad.remote.audit import Audit
from rankdad.remote.auth import Identity
from rankdad.remote.connections import ConnectionRegistry
from rankdad.remote.consortium import Consortium
from rankdad.remote.run_session import RunSession
from rankdad.remote.view import View

LOADING = 5.0  # seconds for which a request waits for a run to open
TICK = 0.25  # seconds between ticks
MAX_SILENCE = 30.0  # seconds to wait for sites that do not know the end of the run
_log = logging.getLogger(__name__)


class OpenRun:
    """A run that a server keeps open for its sites.

    Attributes:
        host: its session; None while it is being opened.
        served: its routes, while sites may connect.
        problem: what blocks it at present, or "".
        page: its page, created on request and closed with the session.
    """

    def __init__(self) -> None:
        self.host: RunSession | None = None
        self.problem = ""
        self.page: Page | None = None
        self.served: Routes | None = None
        self._ready = asyncio.Event()

    async def routes(self) -> Routes | None:
        """Return its routes; None while it is being opened."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOADING):
                await self._ready.wait()
        return self.served

    def open(self, routes: Routes) -> None:
        """Let the sites connect."""
        self.served, self.host = routes, routes.host
        self._ready.set()

    def leave(self) -> None:
        """Stop it in this process; another one resumes it."""
        if self.host is not None:
            self.host.ended.set()

    async def serve(self, routes: Routes, view: View, stays: Callable[[], bool]) -> None:
        """Let the sites connect, and drive the run until it has ended and its files are written.

        Args:
            routes: of the run.
            view: shows progress.
            stays: returns whether a run that has not ended is resumed later, so that sites do not learn of an end.
        """
        self.open(routes)
        host, display = routes.host, _Display(view)
        if host.aggregator.ended:
            host.ended.set()
        display.call(lambda view: view.start())
        try:
            while not host.ended.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(host.ended.wait(), TICK)
                host.tick()
                display.call(lambda view: view.tick())
            if host.crashed or (stays() and not host.aggregator.ended):
                await host.leave()
            else:
                await host.drain(MAX_SILENCE)
        finally:
            try:
                await host.close()
            finally:
                self._ready.clear()
                self.served = None
                if self.page is not None:
                    self.page.close()
                    self.page = None
                display.call(lambda view: view.stop())


class _Display:
    """A view whose errors do not end the run."""

    def __init__(self, view: View) -> None:
        self._view: View | None = view

    def call(self, act: Callable[[View], None]) -> None:
        """Call the view unless it has failed before."""
        if self._view is not None:
            try:
                act(self._view)
            except (OSError, SystemExit):  # rich turns a closed pipe into an exit
                self._view = None
            except Exception:
                _log.exception("the display failed; the run continues")
                self._view = None


@dataclass(frozen=True)
class Seen:
    """The last request of a site's agent: seconds since 1970, version, and whether that is compatible."""

    time: float
    version: str
    fits: bool


class Runs(ABC):
    """The open runs of a server, and who may reach and see them. Methods are called in the event loop.

    Args:
        consortium: the members.
        identity: authentication of the sites.
        people: authentication of owners and viewers.
        audit: the audit log.

    Attributes:
        registry: all connections.
        running: open runs by name.
        only: name of the only run, for paths that name none.
        agents: agents by site, after their first request.
        over: set when the server stops.
    """

    only = ""

    def __init__(self, consortium: Consortium, identity: Identity, people: Identity, audit: Audit) -> None:
        self.consortium, self.identity, self.people, self.audit = consortium, identity, people, audit
        self.registry = ConnectionRegistry(audit)
        self.running: dict[str, OpenRun] = {}
        self.agents: dict[str, Seen] = {}
        self.over = asyncio.Event()

    @abstractmethod
    async def resume(self) -> None:
        """Begin or resume all runs that are due."""

    @abstractmethod
    async def leave(self) -> None:
        """Stop after the present rounds."""

    @abstractmethod
    async def routes(self, run: str) -> Routes:
        """Return the routes of a run that is not served, after opening it.

        Raises:
            ProtocolError: it is unknown, has ended, or is being opened.
        """

    @abstractmethod
    def lines(self, run: str) -> Callable[[], list[Line]]:
        """Return a function that returns the last lines of a run's log."""

    def interrupt(self, cause: str) -> None:
        """Stop because of a signal, or the end of the parent process."""
        self.over.set()

    def counts(self) -> dict[str, int]:
        """Return the number of runs by state."""
        return {"running": len(self.running)}

    async def unready(self) -> str:
        """Return why runs cannot go on, or ""."""
        return "the server stops" if self.over.is_set() else ""
