"""Runs an aggregator's routes on a socket until the run ends or a signal comes."""

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
from rankdad.remote.host import Host
from rankdad.remote.live import page_of
from rankdad.remote.proxies import Proxy
from rankdad.remote.view import View
from rankdad.remote.web import Handshake, HttpConnection, accept

BACKLOG = 2048  # connections that wait to be accepted
TICK = 0.25  # seconds between two looks at the progress
GRACE = 2  # seconds in which the last answers reach the sites
MAX_SILENCE = 30.0  # seconds in which sites that are still computing come and hear how the run ended
_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises:
        UserError: the address is in use or not this machine's.
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
    """Return a socket in the file system, for the user and group of this process: a proxy connects to it.

    Raises:
        UserError: another process listens there, something else lies there, or nothing can be made there.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # a process that was killed has left it
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
    """Yield the listening socket that options ask for, and its address.

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
    show: Callable[[Host], View],
    audit: Audit,
    access: Access,
    lifeline: Connection | None = None,
    *,
    resumable: bool = False,
    attach: Callable[[Host], None] = lambda host: None,
    viewers: Mapping[str, str] | None = None,
) -> str:
    """Run until all sites have said goodbye, one has failed, or SIGINT or SIGTERM comes.

    Args:
        aggregator: the run.
        listening: socket that sites connect to.
        show: returns what a person sees.
        audit: log of who comes and goes.
        access: who may connect, and how.
        lifeline: pipe from the parent process: "site<tab>reason" says that a site has died, the pipe's end that the
            parent has.
        resumable: whether an interrupted run can go on later; sites then are not told of the interruption, and try
            to reach the aggregator again.
        attach: given what calls the aggregator, before anybody is served.
        viewers: hashed tokens of those who may see the live page; without any there is none.

    Returns:
        what interrupted the run, if anything did.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn's own handlers stand until it has shut down, then these
        signal.signal(number, lambda *_: None)
    with asyncio.Runner(loop_factory=uvloop_factory()) as runner:
        registry = ConnectionRegistry(audit)
        host = Host(aggregator, audit, connected=registry.present)
        return runner.run(_serve(host, registry, access, listening, show(host), lifeline, resumable, attach, viewers))


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop; None for Python's own."""
    with contextlib.suppress(ImportError):  # not on Windows
        import uvloop

        return uvloop.new_event_loop
    return None


class Uvicorn(uvicorn.Server):
    """A uvicorn with our connections, whose signals interrupt the run instead of cutting everyone off.

    Args:
        config: uvicorn's.
        registry: of all connections.
        secure: makes a connection's encryption, if there is any.
        interrupt: told the name of a signal.
        proxy: what alone connects to a Unix socket.
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
        """Listen."""
        loop = asyncio.get_running_loop()
        self.servers = []
        for one in sockets or ():
            if one.family == socket.AF_UNIX:
                make = partial(self._connection, self._proxy)
                self.servers.append(await loop.create_unix_server(make, sock=one, backlog=BACKLOG))
            elif self._secure is None:
                self.servers.append(await loop.create_server(self._connection, sock=one, backlog=BACKLOG))
            else:
                meet = partial(Handshake, make=self._connection, secure=self._secure, registry=self._registry)
                self._accepting = loop.create_task(accept(one, meet))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and let requests end."""
        if self._accepting is not None:
            self._accepting.cancel()
        await super().shutdown(sockets)

    def _connection(self, proxy: Proxy | None = None) -> HttpConnection:
        return HttpConnection(self.config, self.server_state, self._registry, proxy)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        self._interrupt(signal.Signals(sig).name)


async def _serve(
    host: Host,
    registry: ConnectionRegistry,
    access: Access,
    listening: socket.socket,
    view: View,
    lifeline: Connection | None,
    resumable: bool,
    attach: Callable[[Host], None],
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
        await see_through(host, view, lambda: bool(interruption.reason) and resumable, close_doors)
    finally:
        if page is not None:
            page.close()
    if host.error is not None:
        raise host.error
    return interruption.reason


async def see_through(
    host: Host, view: View, stays: Callable[[], bool], last: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Do what a run needs beside its requests, from its beginning until it has ended and its files are written.

    Args:
        host: of the run.
        view: what a person sees.
        stays: tells whether a run that ends here goes on later; nobody is told of an end then.
        last: done once all sites have been answered, before the files are closed.
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
    """Return how uvicorn serves an application of ours."""
    return uvicorn.Config(
        app,
        http=HttpConnection,
        ws="none",
        loop="none",
        log_config=None,
        log_level="critical",  # what is refused is in the audit log
        access_log=False,
        proxy_headers=False,  # whoever comes from this machine could call himself anybody in the audit log
        lifespan="off",
        timeout_keep_alive=3600,  # a step may take long; five seconds, the default, would close the connection in it
        timeout_graceful_shutdown=GRACE,
        server_header=False,
        date_header=False,
    )


class _Interruption:
    """Ends a run early: for good, or, if it can go on later, only in this process.

    Attributes:
        reason: what has interrupted the run; "" if nothing has.
    """

    def __init__(self, host: Host, resumable: bool) -> None:
        self._host, self._resumable, self._loop = host, resumable, asyncio.get_running_loop()
        self.reason = ""

    def ask(self, cause: str) -> None:
        """End the run soon: a signal may come at any moment."""
        self._loop.call_soon_threadsafe(self._stop, cause)

    def _stop(self, cause: str) -> None:
        host, sites = self._host, self._host.aggregator.children
        if host.aggregator.ended:
            host.discount(*sites)  # whoever computes now is not waited for
            return
        self.reason = f"stopped by {cause}"
        host.aggregator.interrupt(self.reason)
        if not self._resumable:
            host.fail(self.reason, status="interrupted")
            host.discount(*sites)
        host.ended.set()


def _hear(lifeline: Connection, host: Host, interruption: _Interruption) -> None:
    """Take what the parent process says: that a site has died, or, by its end, that it has itself."""
    try:
        site, _, reason = lifeline.recv_bytes().decode(errors="replace").partition("\t")
    except (EOFError, OSError):
        asyncio.get_running_loop().remove_reader(lifeline.fileno())
        interruption.ask("the end of its parent")
    else:
        host.depart(site, reason)


class _Display:
    """A view that may fail, because its terminal is closed or by its own fault, without ending the run."""

    def __init__(self, view: View) -> None:
        self._view: View | None = view

    def call(self, act: Callable[[View], None]) -> None:
        """Let the view act, unless it has failed before."""
        if self._view is not None:
            try:
                act(self._view)
            except (OSError, SystemExit):  # rich turns a closed pipe into an exit
                self._view = None
            except Exception:
                _log.exception("what is shown of the run ends here; the run goes on")
                self._view = None
