"""The project's image and containers of it, for tests: built once a session, and nothing of them is left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BASE = "python:3.11-slim-bookworm"
HARDENED = (
    *("--user", "1000:1000", "--read-only", "--tmpfs", "/tmp"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
)
STOP = 6.0  # seconds within which `docker stop` ends a container
STOPPED = ("130", "137", "143")  # by itself, or at the end of its time
HEALTH = ("python", "-IS", "/opt/rankdad/health.py")


@cache
def _missing() -> str:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else ""


def need_docker() -> None:
    """Skip the test where there is no Docker engine."""
    if why := _missing():
        pytest.skip(f"`docker info` fails: {why.splitlines()[-1]}")


def docker(*arguments: str, check: bool = True) -> str:
    """Run a command of Docker, and return both of its outputs."""
    done = subprocess.run(["docker", *arguments], stdout=-1, stderr=subprocess.STDOUT, text=True, check=False, cwd=ROOT)
    assert not check or done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}"
    return done.stdout.strip()


def torch_index() -> str | None:
    """Return the index of PyTorch to build with; None for the Dockerfile's own. A base may bring PyTorch's wheel."""
    base = docker("image", "inspect", "--format", "{{.Config.Env}}", BASE, check=False)
    return os.environ.get("TORCH_INDEX", "" if "PIP_FIND_LINKS=" in base else None)


@cache
def image() -> str:
    """Build the image from the working tree, and return its id; the test is skipped where Docker is not there."""
    need_docker()
    index = torch_index()
    arguments = () if index is None else ("--build-arg", f"TORCH_INDEX={index}")
    with (Path(tempfile.gettempdir()) / "rankdad-image.lock").open("w") as lock:  # another worker finds all steps done
        fcntl.flock(lock, fcntl.LOCK_EX)
        docker("build", "--quiet", "--tag", "rankdad:test", "--file", "docker/Dockerfile", *arguments, ".")
        return docker("image", "inspect", "--format", "{{.Id}}", "rankdad:test")


@cache
def neuroflame() -> str:
    """Build the image of NeuroFLAME's computation, and return its id."""
    need_docker()
    index, base = torch_index(), "rankdad-nvflare:test"
    arguments = () if index is None else ("--build-arg", f"TORCH_INDEX={index}")
    docker(
        "build",
        "--quiet",
        "--tag",
        base,
        "--file",
        "docker/Dockerfile",
        "--build-arg",
        "EXTRAS=nvflare",
        *arguments,
        ".",
    )
    words = ("--tag", "rankdad-neuroflame:test", "--file", "docker/neuroflame/Dockerfile")
    docker("build", "--quiet", *words, "--build-arg", f"RANKDAD={base}", ".")
    return docker("image", "inspect", "--format", "{{.Id}}", "rankdad-neuroflame:test")


@cache
def nginx() -> str:
    """Build the image of nginx that compose.yaml names, and return its id."""
    need_docker()
    docker("build", "--quiet", "--tag", "rankdad-nginx:test", "docker/nginx")
    return docker("image", "inspect", "--format", "{{.Id}}", "rankdad-nginx:test")


def wait_for(what: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


@contextlib.contextmanager
def network() -> Iterator[str]:
    """Make a network, and remove it."""
    name = f"rankdad-test-{uuid.uuid4().hex[:8]}"
    docker("network", "create", "--internal", name)
    try:
        yield name
    finally:
        docker("network", "rm", name, check=False)


@contextlib.contextmanager
def container(*arguments: str) -> Iterator[str]:
    """Start a container as a hospital should, and remove it."""
    name = docker("run", "--detach", *HARDENED, *arguments).splitlines()[-1]
    try:
        yield name
    finally:
        docker("rm", "--force", "--volumes", name, check=False)


def stop(name: str) -> None:
    """Stop a container as an operator does."""
    began = time.monotonic()
    docker("stop", name)
    took = time.monotonic() - began
    print(f"\nstopped in {took:.1f} s")
    assert took < STOP, logs_of(name)
    assert docker("inspect", "--format", "{{.State.ExitCode}}", name) in STOPPED


def logs_of(name: str) -> str:
    """Return all that a container has printed."""
    return docker("logs", name)


def memory_of(name: str) -> float:
    """Return a container's memory in MB as `docker stats` counts it: without what the kernel gives back at once."""
    shown = docker("stats", "--no-stream", "--format", "{{json .}}", name)
    number = json.loads(shown)["MemUsage"].split()[0]
    units = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10, "B": 1.0}
    unit = next(unit for unit in units if number.endswith(unit))
    return float(number.removesuffix(unit)) * units[unit] / 1e6
