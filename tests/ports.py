"""Ports for processes that a test starts, each given to one test alone."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST = 20_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # in which the kernel chooses ports by itself
_held: list[int] = []  # locks, as long as this process lives


def free_port() -> int:
    """Return a port that nobody listens on, and that neither the kernel nor another worker of pytest gives away.

    A port that was bound and closed again would be anybody's until the test's process listens.
    """
    folder = Path(tempfile.gettempdir()) / f"rankdad-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for port in range(FIRST, int(RANGE.read_text().split()[0])):
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # another worker's, or in use
            os.close(lock)
            continue
        _held.append(lock)
        return port
    raise AssertionError("no port is free")
