"""What a container of NeuroFLAME's starts: `provision`, `central` or `edge`; `check` looks at a member's data."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from rankdad.common.documents import load_json
from rankdad.common.errors import RankdadError, UserError
from rankdad.platforms.neuroflame.folders import ENVIRONMENT, ERROR, central, site_inputs, workspace
from rankdad.platforms.neuroflame.provisioning import ADMIN, provision

LOOK = 2.0  # seconds between two looks at a run
JOINING = 3600.0  # seconds for which nodes wait for others, who may have to fetch the image
SILENCE = 600.0  # seconds without the central node after which a member's container ends
LOG, BEGUN = "log.txt", "inputs.json"  # in a member's results; the second once a run has begun
ENDED = "FINISHED:"


@contextmanager
def _started(kit: Path, root: Path, output: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a node of NVFlare's, whose `python3` is this one, and end what is left of it."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    environment = os.environ | {"PATH": path, "HOME": "/tmp", ENVIRONMENT: str(root)}
    words = ["/bin/bash", str(kit / "startup" / "sub_start.sh"), "--once"]
    node = subprocess.Popen(words, env=environment, stdout=output, stderr=output, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield node
    finally:
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def lead(root: Path) -> None:
    """Start the server, see the run through, however long it takes, and end all nodes.

    Raises:
        UserError: the run has not completed.
    """
    with _started(root / "runKit" / "server", root) as server:
        status = _status(root / "runKit", server)
    if status != f"{ENDED}COMPLETED":
        error = central(root) / ERROR
        said = error.read_text(encoding="utf-8").strip() if error.exists() else f"NVFlare ends the run: {status}"
        raise UserError(said, code="run-failed")


def _status(kit: Path, server: subprocess.Popen[bytes]) -> str:
    """Submit the job once all members are there, and return how it has ended; then all nodes end."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    clients = set(load_json(kit / "job" / "meta.json")["deploy_map"]["app"]) - {"server"}
    session, number, status, until = None, None, "", time.monotonic() + JOINING
    while not status.startswith(ENDED):
        if server.poll() is not None:
            raise UserError("NVFlare's server has ended before the run", code="server-ended")
        try:
            session = session or new_secure_session(ADMIN, str(kit / "admin"))
            missing = number is None and clients - {client.name for client in session.get_system_info().client_info}
            if missing and time.monotonic() > until:
                said = f"{', '.join(sorted(missing))}: not there after {JOINING:.0f} s"
                raise UserError(said, code="members-missing")
            if not missing:
                number = number or session.submit_job(str(kit / "job"))
                status = str(session.get_job_meta(number).get("status", ""))
        except RankdadError:
            raise
        except Exception as error:  # it is not up yet, or does not answer now
            print(f"NVFlare's server does not answer yet: {type(error).__name__}", flush=True)
            session = None
        time.sleep(LOOK)
    with suppress(Exception):
        assert session is not None
        session.shutdown("all")
        server.wait(60)
    return status


def take_part(root: Path) -> None:
    """Start a member's node; what it prints is kept among the member's results, and goes nowhere else.

    Raises:
        UserError: the run has not completed here, in words that may leave.
    """
    servers = load_json(root / "runKit" / "startup" / "fed_client.json")["servers"]
    host, _, port = str(servers[0]["service"]["target"]).rpartition(":")
    until, output = time.monotonic() + JOINING, root / "output"
    with (output / LOG).open("ab") as log:
        while time.monotonic() < until and not (output / BEGUN).exists():
            time.sleep(LOOK)
            if not _answers(host, int(port)):
                continue
            with _started(root / "runKit", root, log) as node:  # which gives up if it is not let in at once
                while node.poll() is None and time.monotonic() < until:
                    until = time.monotonic() + SILENCE if _answers(host, int(port)) else until
                    with suppress(subprocess.TimeoutExpired):
                        node.wait(10 * LOOK)
    if not (output / "index.html").exists():
        said = f"the run has not completed here: {ERROR} or {LOG} among this member's results says why"
        raise UserError(said, code="run-failed")


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), 10):
        return True
    return False


def check(root: Path) -> None:
    """Look at a member's data as a run would, and say all that is wrong.

    Raises:
        UserError: something is.
    """
    from rankdad.platforms.coinstac.parameters import check_data

    check_data(*site_inputs(root, "this-member"), root / "data")


def main() -> int:
    """Run the command that is named, and return a container's exit code."""
    (name,) = sys.argv[1:]
    try:
        if name == "provision":
            print("run kits for", *provision(Path(os.environ.get("RANKDAD_PROVISIONING", "/provisioning"))))
        else:
            {"central": lead, "edge": take_part, "check": check}[name](workspace())
    except UserError as error:
        print(f"error: {error} [{error.code}]", file=sys.stderr)
        return 1
    except SystemExit as error:  # a signal's
        return int(error.code or 0)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads of NVFlare's sessions would stay
