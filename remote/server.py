"""Runs an aggregator's routes on a socket until the run ends or a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import FrameType

import uvicorn

from common.errors import UserError
from remote.aggregator import Aggregator
from remote.app import Server
from remote.rounds import Effect
from remote.view import View

TICK = 0.25  # seconds between two looks at the progress
GRACE = 2  # seconds in which the last answers reach the sites
LINGER = 30.0  # seconds in which sites that are still computing come and hear how the run ended


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises:
        UserError: the address is in use or not this machine's.
    """
    try:
        return socket.create_server((host, port), backlog=2048, family=_family(host))
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port"
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def serve(
    aggregator: Aggregator,
    listening: socket.socket,
    make_view: Callable[[Aggregator], View],
    lifeline: Connection | None = None,
    effects: Sequence[Effect] = (),
) -> None:
    """Run until all sites have said goodbye, one has failed, or SIGINT or SIGTERM comes.

    Args:
        aggregator: the run.
        listening: socket that sites connect to.
        make_view: what a person sees.
        lifeline: pipe from the parent process: "site<tab>reason" says that a site has died, the pipe's end that the
            parent has.
        effects: what is left to do of a run that goes on.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn's own handlers stand until it has shut down, then these
        signal.signal(number, lambda *_: None)
    with asyncio.Runner(loop_factory=_uvloop()) as runner:
        runner.run(_serve(aggregator, listening, make_view(aggregator), lifeline, effects))


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):  # not on Windows
        import uvloop

        return uvloop.new_event_loop
    return None


class _Uvicorn(uvicorn.Server):
    """A uvicorn whose signals first tell the sites that the run is interrupted."""

    def __init__(self, config: uvicorn.Config, interrupt: Callable[[str], None]) -> None:
        super().__init__(config)
        self._interrupt = interrupt

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._interrupt(signal.Signals(sig).name)


async def _serve(
    aggregator: Aggregator,
    listening: socket.socket,
    view: View,
    lifeline: Connection | None,
    effects: Sequence[Effect],
) -> None:
    server, loop = Server(aggregator), asyncio.get_running_loop()
    server.carry_out(list(effects))
    if aggregator.ended:
        server.ended.set()

    def interrupt(reason: str) -> None:
        def tell() -> None:
            server.carry_out(aggregator.fail("aggregator", f"stopped by {reason}", status="interrupted"))
            server.discount(*aggregator.plan.sites)  # whoever computes now is not waited for

        loop.call_soon_threadsafe(tell)

    config = uvicorn.Config(
        server.app(),
        loop="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=3600,  # a step may take long; five seconds, the default, would close the connection in it
        timeout_graceful_shutdown=GRACE,
        server_header=False,
        date_header=False,
    )
    web = _Uvicorn(config, interrupt)

    def hear(lifeline: Connection) -> None:
        try:
            site, _, reason = lifeline.recv_bytes().decode(errors="replace").partition("\t")
        except (EOFError, OSError):
            loop.remove_reader(lifeline.fileno())
            interrupt("the end of its parent")
        else:
            server.carry_out(aggregator.fail(site, reason))
            server.discount(site)

    if lifeline is not None:
        loop.add_reader(lifeline.fileno(), hear, lifeline)
    serving = asyncio.create_task(web.serve(sockets=[listening]))
    show = _Show(view)
    show.start()
    try:
        while not server.ended.is_set() and not serving.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server.ended.wait(), TICK)
            show.tick()
        await server.tell_all(LINGER)
        web.should_exit = True
        await serving
    finally:
        await server.close()
        show.stop()
    if server.error is not None:
        raise server.error


class _Show:
    """A view that may break, its terminal or pipe being closed, without breaking the run."""

    def __init__(self, view: View) -> None:
        self._view: View | None = view

    def start(self) -> None:
        self._try(lambda view: view.start())

    def tick(self) -> None:
        self._try(lambda view: view.tick())

    def stop(self) -> None:
        self._try(lambda view: view.stop())

    def _try(self, act: Callable[[View], None]) -> None:
        if self._view is not None:
            try:
                act(self._view)
            except (OSError, SystemExit):  # rich turns a closed pipe into an exit
                self._view = None
