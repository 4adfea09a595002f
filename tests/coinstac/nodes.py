"""A computation's nodes, as processes or as containers, on the paths and ports that the platform gives them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import httpx

from tests.ports import free_port

ROOT = Path(__file__).parent.parent.parent
PORT = 8881  # where an image serves
SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Stop:
    """How a node took the end: status 0 is as it should be, 137 SIGKILL.

    SIGTERM unhandled is 143 of a process, but 137 after all of the grace of a container, whose first process it is.
    """

    seconds: float
    status: int


class Node(ABC):
    """A site or the remote: its folders and whatever runs the computation for it.

    Args:
        name: `local0`, `local1`, …, or `remote`.
        client_id: What the platform calls it.
        run_id: What the platform calls the run.
        folder: For the folders of all nodes.
    """

    def __init__(self, name: str, client_id: str, run_id: str, folder: Path) -> None:
        self.name, self.client_id = name, client_id
        self.folder = folder / name
        self.own = Path(client_id, run_id)
        self.input, self.output, self.transfer = (
            self.mount(kind) / self.own for kind in ("input", "output", "transfer")
        )
        for path in (self.input, self.output, self.transfer):
            path.mkdir(parents=True)
        self.log = self.folder / "log.txt"
        self.port = 0
        self.started = 0.0
        self.accepted: list[float] = []  # of every start: seconds until its first accepted connection
        self._waiting = False

    def mount(self, kind: str) -> Path:
        """The folder that is mounted as /input, /output or /transfer."""
        return self.folder / kind

    def start(self) -> None:
        """Start a fresh one, with the same mounts and nothing else of an earlier one."""
        began = time.perf_counter()
        self._start()
        self.started, self._waiting = began, True

    def connected(self) -> None:
        """Note the first accepted connection of a start."""
        if self._waiting:
            self.accepted.append(time.perf_counter() - self.started)
            self._waiting = False

    def stop(self, grace: float) -> Stop:
        """Send SIGTERM, and SIGKILL after the seconds of grace."""
        began = time.perf_counter()
        status = self._stop(grace)
        return Stop(time.perf_counter() - began, status)

    @abstractmethod
    def directories(self) -> dict[str, str]:
        """Return the state's directories as the computation sees them."""

    @abstractmethod
    def alive(self) -> bool:
        """Tell whether the latest one runs."""

    @abstractmethod
    def kill(self) -> None:
        """End the latest one by SIGKILL."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing running, whatever was started."""

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _stop(self, grace: float) -> int: ...


class Process(Protocol):
    """What a node asks of its process; `subprocess.Popen` has it."""

    def poll(self) -> int | None: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Launch = Callable[[list[str], dict[str, str], Path, IO[bytes]], Process]


def _launch(words: list[str], environment: dict[str, str], folder: Path, log: IO[bytes]) -> Process:
    return subprocess.Popen(words, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class ProcessNode(Node):
    """The computation as a subprocess on a free port, with an environment and a working directory of its own.

    Args:
        name: See `Node`.
        client_id: See `Node`.
        run_id: See `Node`.
        folder: See `Node`.
        command: What serves; `--host 127.0.0.1 --port N` is added, and {folder} is the node's folder.
        environment: More variables.
        port_in_environment: Name the port in COINSTAC_PORT alone, as the platform does under Singularity.
        launch: What starts it, given its words, environment, working directory and log.
    """

    def __init__(
        self,
        name: str,
        client_id: str,
        run_id: str,
        folder: Path,
        command: Sequence[str] = (sys.executable, "-m", "rankdad", "coinstac", "--mounts", "{folder}"),
        environment: Mapping[str, str] | None = None,
        port_in_environment: bool = False,
        launch: Launch = _launch,
    ) -> None:
        super().__init__(name, client_id, run_id, folder)
        self.launch = launch
        self.command = [word.replace("{folder}", str(self.folder)) for word in command]
        inherited = {key: os.environ[key] for key in INHERITED if key in os.environ}
        self.environment = inherited | {"PYTHONPATH": str(ROOT)} | dict(environment or {})
        self.port_in_environment = port_in_environment
        self.processes: list[Process] = []
        self.cache = self.folder / "tmp"

    def directories(self) -> dict[str, str]:
        """Return the folders on this machine."""
        return {
            "baseDirectory": str(self.input),
            "outputDirectory": str(self.output),
            "transferDirectory": str(self.transfer),
            "cacheDirectory": str(self.cache),
        }

    def _start(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)  # a container's /tmp dies with it
        self.cache.mkdir()
        self.port = free_port()
        environment, options = self.environment, ["--host", "127.0.0.1"]
        if self.port_in_environment:
            environment = environment | {"COINSTAC_PORT": str(self.port)}
        else:
            options += ["--port", str(self.port)]
        with self.log.open("ab") as log:
            self.processes.append(self.launch([*self.command, *options], environment, self.folder, log))

    def alive(self) -> bool:
        """Tell whether the latest process runs."""
        return bool(self.processes) and self.processes[-1].poll() is None

    def kill(self) -> None:
        """SIGKILL the latest process."""
        self.processes[-1].kill()
        self.processes[-1].wait()

    def _stop(self, grace: float) -> int:
        process = self.processes[-1]
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """SIGKILL every process ever started."""
        for process in self.processes:
            process.kill()
            process.wait()


class ContainerNode(Node):
    """The computation as a container of an image, started as the platform does: its mounts, its port, a terminal.

    Args:
        name: See `Node`.
        client_id: See `Node`.
        run_id: See `Node`.
        folder: See `Node`; to be seen by the docker daemon under the same path.
        image: Its own CMD must serve.
        files_owner: The user id that the folders shall belong to; this process's own where absent.
    """

    def __init__(
        self, name: str, client_id: str, run_id: str, folder: Path, image: str, files_owner: int | None = None
    ) -> None:
        super().__init__(name, client_id, run_id, folder)
        self.image, self.files_owner = image, files_owner
        self.engine = httpx.Client(transport=httpx.HTTPTransport(uds=SOCKET, verify=False))
        self.containers: list[str] = []

    def directories(self) -> dict[str, str]:
        """Return the folders in the container; its /tmp is no mount."""
        return {
            "baseDirectory": f"/input/{self.own}",
            "outputDirectory": f"/output/{self.own}",
            "transferDirectory": f"/transfer/{self.own}",
            "cacheDirectory": "/tmp",
        }

    def _start(self) -> None:
        if self.files_owner is not None:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, self.files_owner, -1, follow_symlinks=False)
        mounts = [f"{self.mount('input')}:/input:ro"]
        mounts += [f"{self.mount(kind)}:/{kind}:rw" for kind in ("output", "transfer")]
        volumes = [word for mount in mounts for word in ("--volume", mount)]
        published = f"127.0.0.1::{PORT}"
        self.containers.append(docker("create", "--pull=never", "--tty", "--publish", published, *volumes, self.image))
        docker("start", self.containers[-1])
        if self.alive():
            self.port = int(docker("port", self.containers[-1], f"{PORT}/tcp").rpartition(":")[2])

    def alive(self) -> bool:
        """Tell whether the latest container runs."""
        return bool(self.containers) and bool(self._state()["Running"])

    def kill(self) -> None:
        """SIGKILL the latest container."""
        if self.alive():
            docker("kill", self.containers[-1])

    def _stop(self, grace: float) -> int:
        docker("stop", "-t", str(round(grace)), self.containers[-1])
        return int(self._state()["ExitCode"])

    def close(self) -> None:
        """Keep what every container wrote, and remove it."""
        with self.log.open("ab") as log:
            for container in self.containers:
                subprocess.run(["docker", "logs", container], stdout=log, stderr=log, timeout=60, check=False)
                docker("rm", "--force", container)
        self.containers.clear()
        self.engine.close()

    def _state(self) -> dict[str, Any]:
        """Ask the engine itself, as the platform does: a docker command takes ten times as long."""
        answer = self.engine.get(f"http://docker/containers/{self.containers[-1]}/json").raise_for_status()
        state: dict[str, Any] = answer.json()["State"]
        return state


def docker(*words: str) -> str:
    """Run a docker command and return its output.

    Raises:
        RuntimeError: With docker's own words.
    """
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"docker {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
