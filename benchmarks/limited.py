"""Run a command with a memory limit for all its processes, if control groups are available."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path("/sys/fs/cgroup")
PATIENCE = 10.0  # seconds for which a group may still count its last process


@contextmanager
def memory_group(mib: int) -> Iterator[Path | None]:
    """Make a control group of so much memory, version 1 or 2, and yield its folder; None where none can be made.

    What its processes touch counts, and what they have mapped, shared, or read and written of files; of the latter the
    system drops what it needs.
    """
    group = None
    for line in Path("/proc/self/cgroup").read_text().splitlines() if Path("/proc/self/cgroup").exists() else ():
        _, names, own = line.split(":", 2)
        if names in ("", "memory"):
            parent = ROOT / "memory" / own.lstrip("/") if names else ROOT / own.lstrip("/")
            limit = "memory.limit_in_bytes" if names else "memory.max"
            group = group or _made(parent / f"rankdad-{time.monotonic_ns()}", limit, mib)
    try:
        yield group
    finally:
        _removed(group)


def run_limited(module: str, words: Sequence[str], mib: int | None) -> dict[str, Any]:
    """Run a module, and return the JSON document that it prints, with `most_mib` of its group, if it had one.

    Args:
        module: its name.
        words: its arguments.
        mib: of memory, for all its processes together; None does not limit it, nor is it where no group can be made.

    Raises:
        subprocess.CalledProcessError: it failed, as where it was killed for its memory.
    """
    command = [sys.executable, "-m", module, *words]
    if mib is None:
        return _document(command)
    with memory_group(mib) as group:
        if group is None:
            return _document(command)
        entering = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
        found = _document([*entering, *command])
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if (group / name).exists():
                found["most_mib"] = int((group / name).read_text()) >> 20
        return found


def _document(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _made(group: Path, limit: str, mib: int) -> Path | None:
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        (group / limit).write_text(str(mib << 20))
        for swap, value in (("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", str(mib << 20))):
            if (group / swap).exists():
                (group / swap).write_text(value)
        return group
    except OSError:  # not ours, or without a memory controller
        _removed(group)
        return None


def _removed(group: Path | None) -> None:
    until = time.monotonic() + PATIENCE
    while group is not None:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
