"""A site's process that stays, where an engine starts a new process for every message, and the socket between them.

A process serves one run at one site. It ends with the run, when another job continues the run, or when no message can
come any more. Nothing heavy is imported at the top: the engine's process uses this too.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankdad.local.drivers.carried import CarriedConnection

START = 60.0  # seconds in which a process has to listen
STOP = 30.0  # seconds for which a process of an earlier job may still write
IDLE = 3600.0  # seconds without a message: a process that is started later goes on from the checkpoint
LARGEST = 1 << 40  # bytes of a frame
SIZE = struct.Struct("!Q")


def address_of(*key: str) -> Path:
    """Return the address of a process, in a folder that no other user can enter.

    Raises:
        OSError: there is no such folder.
    """
    folder = Path(tempfile.gettempdir()) / f"rankdad-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError
    return folder / hashlib.sha256(os.fsencode("\0".join(key))).hexdigest()[:32]


def advance(words: Sequence[str], address: Path, job: str, reply: bytes) -> bytes:
    """Hand a reply to a site's process, and return the site's next call.

    Args:
        words: that start the process, if there is none.
        address: of its socket.
        job: the engine's number of its job: a process of another job ends first.
        reply: to the last call.

    Raises:
        OSError: no process can be started.
    """
    until = time.monotonic() + START
    while True:
        with socket.socket(socket.AF_UNIX) as peer:
            try:
                peer.connect(str(address))
            except (FileNotFoundError, ConnectionRefusedError):
                _start(words, address, until)
                continue
            with suppress(ConnectionError):
                _send(peer, job.encode())
                _send(peer, reply)
                return _receive(peer)
        if time.monotonic() > until:
            raise TimeoutError


def serve(name: str, job: str, address: Path, work: Callable[[CarriedConnection], object]) -> None:
    """Serve a site's calls until the run or the job ends.

    Args:
        name: of the site.
        job: the engine's number of the job.
        address: of the socket.
        work: the site's life.
    """
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        address.unlink(missing_ok=True)
        listener.bind(str(address))
        listener.listen()
        listener.settimeout(IDLE)
        from rankdad.local.drivers.carried import Carried

        site = Carried(name, work)
        try:
            while not site.ended:
                peer, _ = listener.accept()
                with peer, suppress(ConnectionError):
                    peer.setblocking(True)
                    if _receive(peer) != job.encode():
                        return
                    _send(peer, site.advance(_receive(peer)) or b"")
        except TimeoutError:
            return
        finally:
            with suppress(OSError):
                address.unlink()
            site.stop(STOP)


def _start(words: Sequence[str], address: Path, until: float) -> None:
    null = subprocess.DEVNULL
    process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
    while process.poll() is None and time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as peer, suppress(FileNotFoundError, ConnectionRefusedError):
            peer.connect(str(address))
            return
        time.sleep(0.02)
    raise TimeoutError


def _send(peer: socket.socket, data: bytes) -> None:
    peer.sendall(SIZE.pack(len(data)))
    peer.sendall(data)


def _receive(peer: socket.socket) -> bytes:
    return _exactly(peer, min(LARGEST, SIZE.unpack(_exactly(peer, SIZE.size))[0]))


def _exactly(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError
        parts += part
    return bytes(parts)
