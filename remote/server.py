"""Serves an aggregator's routes on a socket until the run ends or a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from rankdad.common.errors import UserError
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.app import Routes
from rankdad.remote.audit import Audit
from rankdad.remote.auth import Context
from rankdad.remote.config import Access
from rankdad.remote.connections import ConnectionRegistry
from rankdad.remote.live import page_of
from rankdad.remote.proxies import Proxy
from rankdad.remote.run_session import RunSession
from rankdad.remote.view import View
from rankdad.remote.web import Handshake, HttpConnection, accept

BACKLOG = 2048  # connections
TICK = 0.25  # seconds between ticks
GRACE = 2  # seconds for the last answers
MAX_SILENCE = 30.0  # seconds to wait for sites that do not know the end of the run
_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Open a listening TCP socket; port 0 takes a free one.

    Raises:
        UserError: the address is in use or not of this machine.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), backlog=BACKLOG, family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port",
            code="cannot-listen",
            field="--port",
        ) from None


def listen_behind(path: Path) -> socket.socket:
    """Open a listening Unix socket for a proxy, accessible to this process's user and group.

    Raises:
        UserError: the path is in use or cannot be created.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # left by a killed process
        listening.bind(str(path))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen on {path}: {error.strerror or error}; choose another --socket",
            code="cannot-listen",
            field="--socket",
        ) from None
    finally:
        os.umask(before)
    return listening


@contextlib.contextmanager
def opened(access: Access, port: int) -> Iterator[tuple[socket.socket, str]]:
    """Open the listening socket of the options; yield it with its address.

    Raises:
        UserError: see `listen` and `listen_behind`.
    """
    if access.behind is not None:
        with listen_behind(access.behind) as listening:
            try:
                yield listening, f"unix:{access.behind}"
            finally:
                access.behind.unlink(missing_ok=True)
        return
    with listen(access.host, port) as listening:
        address, bound = listening.getsockname()[:2]
        yield listening, f"{access.scheme}://{f'[{address}]' if ':' in address else address}:{bound}"


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        return trying.connect_ex(str(path)) == 0


def serve(
    aggregator: Aggregator,
    listening: socket.socket,
    show: Callable[[RunSession], View],
    audit: Audit,
    access: Access,
    lifeline: Connection | None = None,
    *,
    resumable: bool = False,
    attach: Callable[[RunSession], None] = lambda host: None,
    viewers: Mapping[str, str] | None = None,
) -> str:
    """Serve until all sites have said goodbye, one has failed, or SIGINT or SIGTERM arrives.

    Args:
        aggregator: the run.
        listening: socket for the sites.
        show: creates the view of a session.
        audit: the audit log.
        access: network options.
        lifeline: pipe from the parent process. "site<tab>reason" reports the death of a site; its end, the parent's.
        resumable: whether an interrupted run can be resumed; sites are then not told, and reconnect.
        attach: called with the session before serving.
        viewers: hashed tokens for the live page; None disables it.

    Returns:
        The reason for an interruption, or "".
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # replaced by uvicorn's until its shutdown
        signal.signal(number, lambda *_: None)
    with asyncio.Runner(loop_factory=uvloop_factory()) as runner:
        registry = ConnectionRegistry(audit)
        host = RunSession(aggregator, audit, connected=registry.present)
        return runner.run(_serve(host, registry, access, listening, show(host), lifeline, resumable, attach, viewers))


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory; None if it is not installed."""
    with contextlib.suppress(ImportError):  # not on Windows
        import uvloop

        return uvloop.new_event_loop
    return None


class Uvicorn(uvicorn.Server):
    """uvicorn with our connections; signals interrupt the run gracefully.

    Args:
        config: uvicorn's.
        registry: all connections.
        secure: creates TLS contexts, if there is TLS.
        interrupt: called with the name of a signal.
        proxy: the proxy on a Unix socket.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        registry: ConnectionRegistry,
        secure: Callable[[], Context] | None,
        interrupt: Callable[[str], None],
        proxy: Proxy | None = None,
    ) -> None:
        super().__init__(config)
        self._registry, self._secure, self._interrupt, self._proxy = registry, secure, interrupt, proxy
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        loop = asyncio.get_running_loop()
        self.servers = []
        for one in sockets or ():
            if one.family == socket.AF_UNIX:
                make = partial(self._connection, self._proxy)
                self.servers.append(await loop.create_unix_server(make, sock=one, backlog=BACKLOG))
            elif self._secure is None:
                self.servers.append(await loop.create_server(self._connection, sock=one, backlog=BACKLOG))
            else:
                handle = partial(Handshake, make=self._connection, secure=self._secure, registry=self._registry)
                self._accepting = loop.create_task(accept(one, handle))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening and finish requests."""
        if self._accepting is not None:
            self._accepting.cancel()
        await super().shutdown(sockets)

    def _connection(self, proxy: Proxy | None = None) -> HttpConnection:
        return HttpConnection(self.config, self.server_state, self._registry, proxy)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._interrupt(signal.Signals(sig).name)


async def _serve(
    host: RunSession,
    registry: ConnectionRegistry,
    access: Access,
    listening: socket.socket,
    view: View,
    lifeline: Connection | None,
    resumable: bool,
    attach: Callable[[RunSession], None],
    viewers: Mapping[str, str] | None,
) -> str:
    attach(host)
    aggregator = host.aggregator
    page = None if viewers is None else page_of(host, registry, viewers.values)
    app = Routes(host, access.identity(aggregator.children), registry).app([page.router()] if page else [])
    if aggregator.ended:
        host.ended.set()
    interruption = _Interruption(host, resumable)
    web = Uvicorn(web_config(app), registry, access.secure, interruption.ask, access.proxy)
    if lifeline is not None:
        asyncio.get_running_loop().add_reader(lifeline.fileno(), _hear, lifeline, host, interruption)
    serving = asyncio.create_task(web.serve(sockets=[listening]))
    serving.add_done_callback(lambda _: host.ended.set())

    async def close_doors() -> None:
        if page is not None:
            page.close()
        web.should_exit = True
        await serving

    try:
        await run_until_finished(host, view, lambda: bool(interruption.reason) and resumable, close_doors)
    finally:
        if page is not None:
            page.close()
    if host.error is not None:
        raise host.error
    return interruption.reason


async def run_until_finished(
    host: RunSession, view: View, stays: Callable[[], bool], last: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Drive a run until it has ended and its files are written.

    Args:
        host: the run's session.
        view: shows progress.
        stays: returns whether the run is resumed later, so that sites do not learn of an end.
        last: called after all sites have been answered, before the files are closed.
    """
    display = _Display(view)
    display.call(lambda view: view.start())
    try:
        while not host.ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(host.ended.wait(), TICK)
            host.tick()
            display.call(lambda view: view.tick())
        if host.crashed or stays():
            await host.leave()
        else:
            await host.drain(MAX_SILENCE)
        if last is not None:
            await last()
    finally:
        await host.close()
        display.call(lambda view: view.stop())


def web_config(app: FastAPI) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    return uvicorn.Config(
        app,
        http=HttpConnection,
        ws="none",
        loop="none",
        log_config=None,
        log_level="critical",  # refusals are in the audit log
        access_log=False,
        proxy_headers=False,  # local callers could forge addresses in the audit log
        lifespan="off",
        timeout_keep_alive=3600,  # a step may take longer than the default of five seconds
        timeout_graceful_shutdown=GRACE,
        server_header=False,
        date_header=False,
    )


class _Interruption:
    """Interrupts a run: for good, or only in this process if it can be resumed.

    Attributes:
        reason: reason for the interruption; "" before.
    """

    def __init__(self, host: RunSession, resumable: bool) -> None:
        self._host, self._resumable, self._loop = host, resumable, asyncio.get_running_loop()
        self.reason = ""

    def ask(self, cause: str) -> None:
        """Request the interruption; safe in a signal handler."""
        self._loop.call_soon_threadsafe(self._stop, cause)

    def _stop(self, cause: str) -> None:
        host, sites = self._host, self._host.aggregator.children
        if host.aggregator.ended:
            host.mark_acknowledged(*sites)  # does not wait for computing sites
            return
        self.reason = f"stopped by {cause}"
        host.aggregator.interrupt(self.reason)
        if not self._resumable:
            host.fail(self.reason, status="interrupted")
            host.mark_acknowledged(*sites)
        host.ended.set()


def _hear(lifeline: Connection, host: RunSession, interruption: _Interruption) -> None:
    """Read the parent's message about a dead site, or its end."""
    try:
        site, _, reason = lifeline.recv_bytes().decode(errors="replace").partition("\t")
    except (EOFError, OSError):
        asyncio.get_running_loop().remove_reader(lifeline.fileno())
        interruption.ask("the end of its parent process")
    else:
        host.depart(site, reason)


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
