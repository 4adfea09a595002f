"""A service's process: lock the directory, open the queue, resume runs, serve until a signal arrives."""

from __future__ import annotations

import logging
import socket
from contextlib import closing
from pathlib import Path

from rankdad.common.files import make_folder, owned
from rankdad.remote.audit import AUDIT, Audit
from rankdad.remote.beginning import Options
from rankdad.remote.config import Access
from rankdad.remote.consortium import Consortium
from rankdad.remote.server import serve
from rankdad.remote.service.app import service_app
from rankdad.remote.service.logs import LOGS
from rankdad.remote.service.queue import FILE, Queue
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
    ):
        service = Service(consortium, directory, queue, access, options, audit)
        _log.addHandler(service.logs)
        audit.note("service started")
        serve(service, service_app(service), listening, access)
        audit.note("service stopped")
        _log.removeHandler(service.logs)
