"""The health check, on a /proc of its own."""

from __future__ import annotations

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests.docker.images import ROOT

TCP = "  sl  local_address rem_address   st\n   0: 00000000:223D 00000000:0000 0A\n"  # listens on 8765
UNIX = (
    "Num       RefCount Protocol Flags    Type St Inode Path\n"
    "0000000000000000: 00000002 00000000 00010000 0001 01 17 /socket/rankdad\n"
    "0000000000000000: 00000003 00000000 00000000 0001 03 18 /socket/taken\n"
    "0000000000000000: 00000003 00000000 00000000 0001 03 19\n"
)


def health() -> Any:
    spec = spec_from_file_location("health", ROOT / "docker" / "health.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def proc(folder: Path, command: str, switches: int = 5) -> Path:
    for process, words in {
        "1": f"/x/python -ISu /x/bin/stoppable rankdad {command}",
        "7": f"/x/python -IBu /x/bin/rankdad {command}",
    }.items():
        own = folder / process
        own.mkdir(parents=True, exist_ok=True)
        (own / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words.split()))
        (own / "stat").write_text(f"{process} (a) b) S " + " ".join(str(n) for n in range(40)))
        (own / "status").write_text(f"Name: python\nvoluntary_ctxt_switches:\t{switches}\n")
    (folder / "net").mkdir(exist_ok=True)
    (folder / "net" / "tcp").write_text(TCP)
    (folder / "net" / "unix").write_text(UNIX)
    return folder


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("aggregator run.json --output x", ""),
        ("aggregator run.json --port 8765 --output x", ""),
        ("aggregator run.json --port=8766", "nothing listens on port 8766"),
        ("aggregator run.json --port 0", ""),
        ("serve consortium.json --output x", ""),
        ("serve consortium.json --output x --port 8766", "nothing listens on port 8766"),
        ("coinstac", "nothing listens on port 8881"),
        ("site SITE.json", ""),
        ("aggregator run.json --socket /socket/rankdad", ""),
        ("serve consortium.json --socket=/socket/rankdad", ""),
        ("serve consortium.json --socket /socket/taken", "nothing listens on /socket/taken"),
    ],
)
def test_a_command_that_serves_has_its_port_open(tmp_path: Path, command: str, said: str) -> None:
    assert health().problem(proc(tmp_path / "proc", command), tmp_path / "seen", 0.0) == said


def test_a_process_that_does_not_run_for_two_minutes_hangs(tmp_path: Path) -> None:
    problem, seen = health().problem, tmp_path / "seen"
    where = proc(tmp_path / "proc", "site SITE.json")
    assert problem(where, seen, 0.0) == ""
    os.utime(seen, (1000.0, 1000.0))
    assert problem(where, seen, 1100.0) == ""
    assert problem(where, seen, 1130.0) == "has not run for 130 s"
    assert problem(proc(tmp_path / "proc", "site SITE.json", switches=6), seen, 1130.0) == ""


def test_without_a_command_nothing_is_healthy(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert health().problem(tmp_path / "proc", tmp_path / "seen", 0.0) == "no rankdad runs here"
