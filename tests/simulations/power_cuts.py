"""A run whose aggregator loses power: of its files only what was synced is there, and what happened to be written.

Run as a program with the shim of `power_cut.c` before all libraries: `power_cuts FOLDER CUTS SEED`.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankdad.common.data import SiteData, read_site
from rankdad.common.spec import RunSpec
from rankdad.remote.records import Retention
from tests.conftest import SITES, run_spec, write_site
from tests.simulations.recovering import LEDGER_OPTIONS, Run, tables_of

BLOCK = 512  # bytes that a disk writes whole
SPEC = {"model": {"name": "mlp", "hidden": [4]}, "training": {"epochs": 2, "validation": 0.2}}
METHODS = ({"name": "rank-dad", "rank": 2}, {"name": "powersgd", "rank": 2}, {"name": "dsgd"})


class Operation(NamedTuple):
    """What was done to a file or a folder's list of files."""

    kind: str
    inode: int
    at: int
    path: Path
    data: bytes


def operations(log: Path, end: int) -> Iterator[Operation]:
    """Yield what stands in the first so many bytes of a log."""
    with log.open("rb") as file:
        while file.tell() < end:
            kind, inode, at, size, path = file.readline().decode().rstrip("\n").split(" ", 4)
            yield Operation(kind, int(inode), int(at), Path(path), file.read(int(size)))


def left_after(log: Path, end: int, draw: random.Random) -> dict[Path, bytes]:
    """Return the files that a disk has after it lost power at a place of the log.

    All that was written to a file before its last sync is there; of what was written later some blocks are. Names are
    journalled: they are in order, and there up to the last sync at least.
    """
    done = list(operations(log, end))
    synced = {one.inode: number for number, one in enumerate(done) if one.kind == "S"}
    last = max(synced.values(), default=0)
    named = draw.randint(last, len(done))
    contents: dict[int, bytearray] = {}
    names: dict[Path, int] = {}
    for number, one in enumerate(done):
        known = contents.setdefault(one.inode, bytearray()) if one.kind in "WT" else bytearray()
        is_sure = number < synced.get(one.inode, -1)
        if one.kind == "W":
            for start in range(0, len(one.data), BLOCK):
                if is_sure or draw.random() < 0.5:
                    piece = one.data[start : start + BLOCK]
                    known.extend(bytes(max(0, one.at + start + len(piece) - len(known))))
                    known[one.at + start : one.at + start + len(piece)] = piece
        elif one.kind == "T" and (is_sure or draw.random() < 0.5):
            del known[one.at :]
            known.extend(bytes(one.at - len(known)))
        if number < named and one.kind in "WS" and names.get(one.path) != one.inode:
            for path in [path for path, inode in names.items() if inode == one.inode]:
                del names[path]  # it was renamed by a system call that nobody can listen to
            names[one.path] = one.inode
        elif number < named and one.kind == "R":
            inode = names.pop(Path(os.fsdecode(one.data)), None)
            names.pop(one.path, None)
            if inode is not None:
                names[one.path] = inode
        elif number < named and one.kind == "U":
            names.pop(one.path, None)
    return {path: bytes(contents[inode]) for path, inode in names.items() if inode in contents}  # else a folder's


class Cut(Run):
    """A run whose aggregator loses power while it takes a message."""

    log: Path
    draw: random.Random
    leaked: list[object]

    def restart(self, victim: str) -> None:
        """Lose power at any moment of the last message, whose answers nobody has heard."""
        directory = self.folder / "run"
        places = self.moments()
        end = self.draw.choice([place for place in places if place >= min(self.began, places[-1])])
        found = left_after(self.log, end, self.draw)
        self.leaked.append(self.aggregator)  # a machine without power closes nothing
        shutil.move(directory, self.folder / f"before-{end}")
        for path, content in found.items():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(content)
        self.answers.clear()
        self.waiting.clear()
        self._start_aggregator()
        self.watch()

    def watch(self) -> None:
        """Note where the log stood before each message."""
        take, self.began = self.aggregator.take, 0

        def noting(site: str, body: bytes) -> dict[str, bytes]:
            self.began = self.log.stat().st_size
            return take(site, body)

        self.aggregator.take = noting  # type: ignore[method-assign]

    def moments(self) -> list[int]:
        """Return all places of the log between two records."""
        places, end = [0], self.log.stat().st_size
        with self.log.open("rb") as file:
            while file.tell() < end:
                file.seek(int(file.readline().split(b" ", 4)[3]), os.SEEK_CUR)
                places.append(file.tell())
        return places


def data_of(spec: RunSpec, folder: Path) -> dict[str, SiteData]:
    return {
        site: read_site(spec, write_site(folder / site, count, place), place)
        for place, (site, count) in enumerate(zip(SITES, (50, 40, 34), strict=True))
    }


def main(folder: Path, cuts: int, seed: int) -> None:
    """Cut the power so many times, each in a run of its own, and compare weights and tables with an undisturbed run."""
    draw, leaked, log = random.Random(seed), list[object](), Path(os.environ["POWER_CUT_LOG"])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the shim closes nothing
    for number in range(cuts):
        spec = run_spec(method=METHODS[number % len(METHODS)], **SPEC)
        data = data_of(spec, folder / "data")
        before = Run(spec, data, folder / f"undisturbed-{number}")
        digest = before.go(lambda message: None)
        options = LEDGER_OPTIONS if number % 2 else LEDGER_OPTIONS.__class__(Retention.TAIL, every=LEDGER_OPTIONS.every)
        log.write_bytes(b"")  # the shim keeps it open
        own = Path(os.environ["POWER_CUT_FOLDER"])
        shutil.rmtree(own, ignore_errors=True)
        run = Cut(spec, data, own, options)
        run.log, run.draw, run.leaked = log, draw, leaked
        run.watch()
        when = draw.randrange(2, before.messages)

        def crash(message: int, run: Cut = run, when: int = when) -> str | None:
            if message == when:
                return "aggregator"
            run.began = sys.maxsize  # answers to what was taken until now are heard
            return None

        assert run.go(crash) == digest, f"cut {number} at message {when}"
        undisturbed, found = (tables_of(one.folder / "run") for one in (before, run))
        assert found == undisturbed, f"cut {number} at message {when}"
        print(f"cut {number} at message {when} of {before.messages}: as undisturbed", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
