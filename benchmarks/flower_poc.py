"""Flower's deployment engine on this machine: a SuperLink and SuperNodes as processes, with TLS and registered keys."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.nvflare_poc import ROOT, SITES, call

BIN = Path(sys.executable).parent
START = 240.0  # seconds in which a node has to be there


class Deployment:
    """A SuperLink and a SuperNode for each site, which are there until the `with` ends.

    Args:
        folder: of keys, logs and settings.
        sites: names of the nodes.
        simulated: whether the SuperLink simulates the nodes.
    """

    def __init__(self, folder: Path, sites: Sequence[str] = SITES, *, simulated: bool = False) -> None:
        self.folder, self.sites, self.simulated, self.port = folder, sites, simulated, _port()
        self.environment = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"} | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(folder),
            "FLWR_HOME": str(folder / "home"),
            "PYTHONPATH": str(ROOT),
            "RANKDAD_FLOWER": str(folder / "settings"),
            "TMPDIR": str(folder / "tmp"),
            "RAY_TMPDIR": tempfile.gettempdir(),  # a socket's path has at most 107 bytes
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {site: _port() for site in sites}

    def flwr(self, *words: str, seconds: float = 120) -> str:
        """Run a command of Flower's."""
        return call([str(BIN / "flwr"), *words], self.environment, self.folder, seconds)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make keys and certificates, register the nodes under the sites' names, and start all."""
        for name in ("home", "settings", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        _certificate(self.folder)
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            + ("insecure = true\n" if self.simulated else f'root-certificates = "{self.folder}/ca.pem"\n')
        )
        try:
            self.start("server")
            for site in () if self.simulated else self.sites:
                _key(self.folder / site)
                said = self.flwr("supernode", "register", f"{self.folder / site}.pub", "--name", site)
                assert "registered" in said, said
                self.start(site)
            until = time.monotonic() + START
            while not self.simulated and time.monotonic() < until:
                if self.flwr("supernode", "list").count("online") == len(self.sites):
                    break
            yield
        finally:
            for name in list(self.processes):
                self.kill(name)
            for number in self.residents():
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)

    def start(self, node: str) -> None:
        """Start a node's process: the SuperLink is "server". A SuperNode is started anew when it ends.

        The SuperLink refuses a SuperNode that comes back before it has missed the one that was killed.
        """
        tls = ["--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem", "--ssl-ca-certfile", "ca.pem"]
        words = ["flower-superlink", *tls, "--port", str(self.port), "--database", "state.db"]
        words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        if self.simulated:
            words = ["flower-superlink", "--insecure", "--simulation", "--port", str(self.port), words[-1]]
        if node != "server":
            words = ["flower-supernode", *tls, "--root-certificates", "ca.pem", "--superlink", f"127.0.0.1:{self.port}"]
            words += ["--auth-supernode-private-key", node, "--port", str(self.ports[node])]
            words += ["--node-config", f'rankdad="{self.folder}/settings/{node}.json"']
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                ["bash", "-c", 'while true; do "$@"; sleep 3; done', "bash", *words],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if node == "server":
            until = time.monotonic() + START
            while time.monotonic() < until:
                with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                    return
                time.sleep(0.2)

    def kill(self, node: str) -> None:
        """Kill a node's process and all that it has started, but for a resident site that is nobody's child."""
        process = self.processes.pop(node)
        for number in (process.pid, *_below(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()

    def residents(self, site: str = "") -> list[int]:
        """Return the numbers of the resident processes of a site, or of all."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().decode(errors="replace")
                if "rankdad.platforms.flower.site" in words and f"{self.folder}/settings/{site}" in words:
                    found.append(int(path.parent.name))
        return found

    def settle(self, work: Path, sites: Mapping[str, Mapping[str, Any]]) -> None:
        """Write every node's settings; the runs' directories lie in `work`."""
        documents: dict[str, Mapping[str, Any]] = {
            site: {**document, "aggregator": "flower"} for site, document in sites.items()
        }
        documents["server"] = {"directory": str(work / "runs"), "registered": not self.simulated}
        for node, document in documents.items():
            (self.folder / "settings" / f"{node}.json").write_text(json.dumps(document))

    def begin(self, job: Path) -> str:
        """Submit a job, and return its number."""
        nodes = ["--federation-config", f"num-supernodes={len(self.sites)}"] if self.simulated else []
        until = time.monotonic() + START
        while (found := re.search(r'"run-id": "?(\d+)', said := self._run(job, nodes))) is None:
            assert time.monotonic() < until, said
        return found[1]

    def _run(self, job: Path, nodes: list[str]) -> str:
        with suppress(subprocess.TimeoutExpired):
            return self.flwr("run", str(job), "here", "--format", "json", *nodes)
        return ""

    def status(self, number: str) -> str:
        """Return a job's status, such as finished:completed."""
        with suppress(ValueError, LookupError):
            return str(
                json.loads(self.flwr("list", "here", "--run-id", number, "--format", "json"))["runs"][0]["status"]
            )
        return ""

    def submit(self, job: Path, seconds: float = 600) -> tuple[str, str]:
        """Submit a job, wait for its end, and return its status and its log."""
        return self.wait(self.begin(job), seconds)

    def wait(self, number: str, seconds: float = 600) -> tuple[str, str]:
        """Wait for a job's end, and return its status and its log."""
        with suppress(subprocess.TimeoutExpired):
            self.flwr("log", number, "here", seconds=seconds)  # until it ends
        return self.status(number), self.flwr("log", number, "here", "--show")


def _below(number: int) -> list[int]:
    """Return the numbers of the processes that a process has started, and of those that these have."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, due = list[int](), [number]
    while due:
        children = parents.get(due.pop(), [])
        found += children
        due += children
    return found


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _key(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    formats = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *formats))
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )


def _certificate(folder: Path) -> None:
    """Write a certificate of this machine, its key, and the authority that has made it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.pem").write_bytes(pem)
    (folder / "cert.pem").write_bytes(pem)
    formats = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *formats))
