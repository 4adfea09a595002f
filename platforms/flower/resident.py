"""A site's process, which stays while Flower starts a new one for every message, and the socket between them.

One process serves one run at one site. It ends with the run, when another job continues the run, or when no message can
come any more. The module imports nothing heavy: Flower's process uses it too.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankdad.local.drivers.carried import CarriedConnection

ENVIRONMENT = "RANKDAD_FLOWER"  # names a folder with server.json and, for simulations, a file for each site
SERVER = "server"
START = 60.0  # seconds in which a process has to listen
STOP = 30.0  # seconds for which a process of an earlier job may still write
IDLE = 12 * 3600.0  # seconds without a message: Flower keeps none for longer
LARGEST = 1 << 40  # bytes of a frame
SIZE = struct.Struct("!Q")


def settings_place(node: Mapping[str, object]) -> str:
    """Return where a site's settings lie; "" if the node does not say.

    Args:
        node: the node's configuration, as somebody there has written it.
    """
    given, part = node.get("rankdad"), node.get("partition-id")
    if isinstance(given, str):
        return given
    folder = os.environ.get(ENVIRONMENT)
    if folder and isinstance(part, int):  # a simulation's node
        names = sorted(path for path in Path(folder).glob("*.json") if path.stem != SERVER)
        return str(names[part]) if part < len(names) else ""
    return ""


def name_of(place: str) -> str:
    """Return the name in a site's settings; "" if they cannot be read."""
    with suppress(OSError, ValueError):
        document = json.loads(Path(place).read_text(encoding="utf-8"))
        name = document.get("name") if isinstance(document, dict) else None
        return name if isinstance(name, str) else ""
    return ""


def advance(place: str, run: str, job: str, reply: bytes) -> bytes:
    """Hand a reply to a site's process, which is started if there is none, and return the site's next call.

    Args:
        place: of the site's settings.
        run: the run's identity.
        job: Flower's number of its job: a process of another one ends first.
        reply: to the last call.

    Raises:
        OSError: no process can be started.
    """
    address, until = _address(place, run), time.monotonic() + START
    while True:
        with socket.socket(socket.AF_UNIX) as peer:
            try:
                peer.connect(str(address))
            except (FileNotFoundError, ConnectionRefusedError):
                _start(place, run, job, address, until)
                continue
            with suppress(ConnectionError):
                _send(peer, job.encode())
                _send(peer, reply)
                return _receive(peer)
        if time.monotonic() > until:
            raise TimeoutError


def _start(place: str, run: str, job: str, address: Path, until: float) -> None:
    words = [sys.executable, "-m", "rankdad.platforms.flower.resident", place, run, job, str(address)]
    null = subprocess.DEVNULL
    process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True, cwd="/")
    while process.poll() is None and time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as peer, suppress(FileNotFoundError, ConnectionRefusedError):
            peer.connect(str(address))
            return
        time.sleep(0.02)
    raise TimeoutError


def _address(place: str, run: str) -> Path:
    """Return the address of a site's process, in a folder that nobody else can enter."""
    folder = Path(tempfile.gettempdir()) / f"rankdad-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError
    return folder / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}-{run}"


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


def serve(name: str, job: str, address: Path, work: Callable[[CarriedConnection], object]) -> None:
    """Serve a site's calls at an address until the run or the job ends.

    Args:
        name: of the site.
        job: Flower's number of the job.
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
                    call = site.advance(_receive(peer))
                    _send(peer, call or b"")
        except TimeoutError:
            return
        finally:
            with suppress(OSError):
                address.unlink()
            site.stop(STOP)


def live(place: str) -> Callable[[CarriedConnection], None]:
    """Return the life of a site.

    Args:
        place: of its settings.
    """

    def run(connection: CarriedConnection) -> None:
        from rankdad.local.agent.started import take_part
        from rankdad.platforms.flower.settings import site_settings

        take_part(site_settings(place), connection, "flower")

    return run


def main() -> None:
    """Serve a site, in a process of its own."""
    place, _, job, address = sys.argv[1:]
    serve(name_of(place), job, Path(address), live(place))
    os._exit(0)  # a thread that still computes for a job that has ended


if __name__ == "__main__":
    main()
