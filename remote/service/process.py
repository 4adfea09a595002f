"""A service's process: lock the directory, open the queue, resume runs, serve until a signal arrives."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from contextlib import closing
from pathlib import Path

from rankdad.common.files import make_folder, owned
from rankdad.remote.audit import AUDIT, Audit
from rankdad.remote.config import Access
from rankdad.remote.consortium import Consortium
from rankdad.remote.server import Uvicorn, uvloop_factory, web_config
from rankdad.remote.service.app import ServiceRoutes
from rankdad.remote.service.logs import LOGS
from rankdad.remote.service.queue import FILE, Queue
from rankdad.remote.service.running import Options
from rankdad.remote.service.service import RUNS, Service

_log = logging.getLogger("rankdad")


def serve_consortium(
    consortium: Consortium, directory: Path, listening: socket.socket, access: Access, options: Options
) -> None:
    """Serve all runs of a consortium until SIGINT or SIGTERM arrives.

    Args:
        consortium: the members.
        directory: the service's.
        listening: the listening socket.
        access: network options.
        options: options for all runs.

    Raises:
        UserError: the directory or its queue cannot be used.
    """
    for folder in (directory, directory / RUNS, directory / LOGS):
        make_folder(folder, private=True)
    with (
        owned(directory, "rankdad serve"),
        closing(Queue(directory / FILE)) as queue,
        closing(Audit(directory / AUDIT)) as audit,
        asyncio.Runner(loop_factory=uvloop_factory()) as runner,
    ):
        for number in (signal.SIGINT, signal.SIGTERM):  # replaced by uvicorn's until its shutdown
            signal.signal(number, lambda *_: None)
        audit.note("service started")
        runner.run(_serve(consortium, directory, queue, audit, listening, access, options))
        audit.note("service stopped")


async def _serve(
    consortium: Consortium,
    directory: Path,
    queue: Queue,
    audit: Audit,
    listening: socket.socket,
    access: Access,
    options: Options,
) -> None:
    service, stop = Service(consortium, directory, queue, access, options, audit), asyncio.Event()
    loop = asyncio.get_running_loop()
    _log.addHandler(service.logs)
    routes = ServiceRoutes(service, time.time)

    def interrupt(_: str) -> None:
        loop.call_soon_threadsafe(stop.set)

    web = Uvicorn(web_config(routes.app()), service.registry, access.secure, interrupt, access.proxy)
    await service.resume()
    gc.freeze()  # a full collection of imported modules took 0.2 s each time
    serving = asyncio.create_task(web.serve(sockets=[listening]))
    serving.add_done_callback(lambda _: stop.set())
    try:
        await stop.wait()
    finally:
        routes.pages.close()
        await service.leave()
        web.should_exit = True
        await serving
        _log.removeHandler(service.logs)
