"""The image's health check: whether the command in the container is alive. It imports little and connects to nothing.

A serving command has its port open. Every command makes progress, also while it waits, so a process that has not run
for two minutes hangs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE = 120.0  # seconds without progress
PORTS = {"aggregator": 8765, "serve": 8765, "coinstac": 8881}
LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
ACCEPTS = 1 << 16  # __SO_ACCEPTCON, a flag in /proc/net/unix
SEEN = Path("/tmp/rankdad-health")  # state at the last progress; its modification time is the time of that


def find(proc: Path) -> tuple[Path, list[str]] | None:
    """Return the process of the command, and its arguments."""
    for entry in sorted((path for path in proc.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:  # it has ended
            continue
        names = [Path(word).name for word in words[:3]]
        if "rankdad" in names and names[0].startswith("python"):
            return entry, words[names.index("rankdad") + 1 :]
    return None


def port_of(words: Sequence[str]) -> int | None:
    """Return the port on which a command listens; None if it listens on none, or on any free one."""
    port = PORTS.get(words[0] if words else "coinstac")
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if port is not None and word == "--port":
            port = int(following)
        elif port is not None and word.startswith("--port="):
            port = int(word.removeprefix("--port="))
    return port or None


def is_open(proc: Path, port: int) -> bool:
    """Return whether a port is open; reading /proc leaves no line in the aggregator's audit log."""
    for name in ("tcp", "tcp6"):
        for line in (proc / "net" / name).read_text().splitlines()[1:] if (proc / "net" / name).exists() else ():
            _, local, _, state = line.split()[:4]
            if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


def socket_of(words: Sequence[str]) -> str:
    """Return the Unix socket on which a command listens; "" if there is none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--socket":
            return following
        if word.startswith("--socket="):
            return word.removeprefix("--socket=")
    return ""


def is_listening(proc: Path, path: str) -> bool:
    """Return whether a process listens on a Unix socket."""
    table = proc / "net" / "unix"
    lines = (line.split() for line in table.read_text().splitlines()[1:]) if table.exists() else ()
    return any(len(line) == 8 and line[7] == path and int(line[3], 16) & ACCEPTS for line in lines)


def progress(process: Path) -> str:
    """Return context switches and computing time, which change whenever the process runs."""
    lines = (process / "status").read_text().splitlines()
    times = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
    return " ".join([*(line.split()[1] for line in lines if "ctxt_switches" in line), *times])


def problem(proc: Path, seen: Path, now: float) -> str:
    """Return the problem in a few words; "" if there is none."""
    listener = find(proc)
    if listener is None:
        return "no rankdad runs here"
    process, words = listener
    port, path = port_of(words), socket_of(words)
    if path:
        if not is_listening(proc, path):
            return f"nothing listens on {path}"
    elif port is not None and not is_open(proc, port):
        return f"nothing listens on port {port}"
    state = f"{process.name} {progress(process)}"
    if not seen.exists() or seen.read_text() != state:
        seen.write_text(state)
        return ""
    silent = now - seen.stat().st_mtime
    return f"has not run for {silent:.0f} s" if silent > PATIENCE else ""


if __name__ == "__main__":
    sys.exit(problem(Path("/proc"), SEEN, time.time()) or 0)
