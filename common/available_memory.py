"""The memory that there is."""

from __future__ import annotations

from pathlib import Path

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
FREE = Path("/proc/meminfo")


def available() -> int | None:
    """Return the available memory in bytes: the container's limit, or the machine's free memory if that is less.

    None if neither is known.
    """
    limits = [int(text) for path in LIMITS if (text := _read(path)).isdecimal()]
    free = [int(line.split()[1]) * 1024 for line in _read(FREE).splitlines() if line.startswith("MemAvailable:")]
    return min(limits + free, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
