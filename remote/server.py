"""Serves runs on a socket until they are over or a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from rankdad.common.errors import UserError
from rankdad.remote.auth import Context
from rankdad.remote.config import Access
from rankdad.remote.connections import ConnectionRegistry
from rankdad.remote.open_run import Runs
from rankdad.remote.proxies import Proxy
from rankdad.remote.web import Handshake, HttpConnection, accept

BACKLOG = 2048  # connections
GRACE = 2  # seconds for the last answers


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


def serve(runs: Runs, app: FastAPI, listening: socket.socket, access: Access) -> None:
    """Serve until the runs are over, or SIGINT or SIGTERM has stopped them."""
    for number in (signal.SIGINT, signal.SIGTERM):  # replaced by uvicorn's until its shutdown
        signal.signal(number, lambda *_: None)
    with asyncio.Runner(loop_factory=uvloop_factory()) as runner:
        runner.run(_serve(runs, app, listening, access))


async def _serve(runs: Runs, app: FastAPI, listening: socket.socket, access: Access) -> None:
    loop = asyncio.get_running_loop()

    def interrupt(cause: str) -> None:
        loop.call_soon_threadsafe(runs.interrupt, cause)

    web = Uvicorn(web_config(app), runs.registry, access.secure, interrupt, access.proxy)
    await runs.resume()
    gc.freeze()  # a full collection of imported modules took 0.2 s each time
    serving = loop.create_task(web.serve(sockets=[listening]))
    serving.add_done_callback(lambda _: runs.over.set())
    try:
        await runs.over.wait()
    finally:
        app.state.pages.close()
        await runs.leave()
        web.should_exit = True
        await serving


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
