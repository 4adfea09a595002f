"""NVFlare as a proof of concept on this machine: a server and clients as processes, with certificates of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SITES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
NVFLARE = [str(Path(sys.executable).parent / "nvflare")]
RANKDAD = [sys.executable, "-m", "rankdad"]


def call(words: list[str], environment: Mapping[str, str], cwd: Path, seconds: float = 600) -> str:
    """Run a command, and return what it prints on both streams; it may fail."""
    done = subprocess.run(
        words, env=dict(environment), cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False
    )
    return done.stdout + done.stderr


class Poc:
    """A server and a client for each site, which are there until the `with` ends.

    Args:
        folder: of all kits.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kits = folder / "poc" / "example_project" / "prod_00"
        self.environment = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}
        self.environment |= {"HOME": str(folder), "PYTHONPATH": str(ROOT), "NVFLARE_POC_WORKSPACE": str(folder / "poc")}

    def nvflare(self, *words: str, seconds: float = 600) -> str:
        """Run a command of NVFlare's."""
        return call([*NVFLARE, *words], self.environment, self.folder, seconds)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make the kits, permit our classes there, and start all nodes."""
        self.nvflare("poc", "prepare", "-c", *SITES)
        for node in ("server", *SITES):
            local = self.kits / node / "local"
            resources = json.loads((local / "resources.json.default").read_text())
            resources["class_allow_list"].append("rankdad.platforms.nvflare")
            (local / "resources.json").write_text(json.dumps(resources))
        try:
            said = self.nvflare("poc", "start", "--timeout", "300", seconds=330)
            assert "Ready to go" in said, said
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop all nodes, and kill leftover processes, as the next nodes need their port."""
        self.nvflare("poc", "stop")
        for name in ("daemon_pid.fl", "pid.fl"):
            for path in self.kits.glob(f"*/{name}"):
                with suppress(ValueError, OSError):
                    os.kill(int(path.read_text()), signal.SIGKILL)

    def kill(self, node: str) -> None:
        """Kill all processes of a node, as the loss of its machine does."""
        kill_all("cmdline", str(self.kits / node))

    def settle(self, work: Path, sites: Mapping[str, Mapping[str, Any]]) -> None:
        """Write every node's settings; the runs' directories lie in `work`."""
        documents: dict[str, Mapping[str, Any]] = {**sites, "server": {"directory": str(work / "runs")}}
        for node, document in documents.items():
            (self.kits / node / "local" / "rankdad.json").write_text(json.dumps(document))

    def submit(self, job: Path, seconds: float = 600) -> tuple[str, str]:
        """Submit a job, wait for its end, and return its status and what the server's log says has ended it."""
        return self.wait(self.begin(job), seconds)

    def wait(self, number: str, seconds: float = 600) -> tuple[str, str]:
        """Wait for a job's end, and return its status and what the server's log says has ended it."""
        said = self.nvflare("job", "wait", number, "--interval", "1", seconds=seconds)
        found = re.search(r"status: (\S+)", said)
        log = (self.kits / "server" / "poc_console.log").read_text()  # that of a job goes with it
        panics = re.findall(rf"run={number}.*FATAL_SYSTEM_ERROR received: (.*)", log)
        return found[1] if found else said, "\n".join(panics)

    def begin(self, job: Path) -> str:
        """Submit a job, and return its number."""
        found = re.search(r"job_id: (\S+)", said := self.nvflare("job", "submit", "-j", str(job)))
        assert found is not None, said
        return found[1]


def kill_all(file: str, mark: str) -> None:
    """Kill processes, none of which can report the end of another.

    Args:
        file: of their folders in /proc, such as `cmdline`.
        mark: what that file of theirs has.
    """
    while found := [path for path in Path("/proc").glob(f"[0-9]*/{file}") if mark.encode() in _read(path)]:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for path in found:
                with suppress(ProcessLookupError):
                    os.kill(int(path.parent.name), number)
        time.sleep(0.2)


def _read(path: Path) -> bytes:
    """Return a file's bytes; none of one that is gone."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


def site_documents(work: Path, source: Path, sites: tuple[str, ...] = SITES) -> dict[str, dict[str, Any]]:
    """Copy the sites' data and secrets from a simulation's directory, and return their settings."""
    documents = dict[str, dict[str, Any]]()
    for site in sites:
        own = work / site
        shutil.copytree(source / "sites" / site / "data", own / "data")
        shutil.copytree(source / "sites" / site / "privacy", own / "privacy")
        shutil.copy(source / "sites" / site / "policy.json", own / "policy.json")
        places = {"data": "data", "output": "out", "privacy": "privacy", "policy": "policy.json"}
        documents[site] = {"name": site, "aggregator": "nvflare"} | {key: str(own / at) for key, at in places.items()}
    return documents


def outcome(work: Path) -> tuple[str, set[str]]:
    """Return the status of the only run in a folder, and all sites' digests of the final weights."""
    (directory,) = (work / "runs").iterdir()
    summary = json.loads((directory / "summary.json").read_text())
    return summary["status"], set(summary["weights_sha256"].values())
