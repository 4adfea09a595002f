"""`python -m benchmarks faults`: processes of a simulation killed at random moments, and bits of its files flipped."""

from __future__ import annotations

import contextlib
import csv
import json
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console

SPEC = Path(__file__).parents[1] / "simulations" / "specs" / "digits.json"
CHANGES = ("run.training.epochs=3", 'run.federation.sites=["a","b"]', "run.model.hidden=[16]")
TABLES = ("steps", "metrics")
COMPLETE = "run-complete"  # killed at its very end
IN_USE = "folder-in-use"  # for as long as processes of a killed simulator are still ending
PATIENCE = 120.0  # seconds
OTHER, SUFFIXES = "OTHER", (".sqlite", ".sqlite-wal", ".safetensors")
HEADER = 100  # bytes of a database's header; the first of a checkpoint say how long its own is
Story = dict[str, Any]

WARM = multiprocessing.get_context("forkserver")  # seconds of imports are paid once
WARM.set_forkserver_preload(["rankdad.simulations.simulator", "rankdad.remote.process"])


def bench_faults(kills: int, flips: int, seed: int, console: Console) -> int:
    """Kill processes and flip bits; print outcomes and return the number of runs that differ from an undisturbed one.

    Args:
        kills: processes to kill by SIGKILL.
        flips: bits to flip, each in a copy of a run that was killed.
        seed: of moments, victims and bits.
        console: where to print.
    """
    with tempfile.TemporaryDirectory() as folder:
        root, drawn = Path(folder), random.Random(seed)
        simulated(root / "undisturbed")
        expected = story_of(root / "undisturbed")
        wrong, runs, victims = _kill(root, kills, expected, drawn, console)
        said = ", ".join(f"{count} of {name}" for name, count in sorted(victims.items()))
        console.print(f"{kills} kills ({said}), {runs} runs to their end: {wrong} other than undisturbed")
        outcomes = _flip(root, flips, expected, drawn, console)
        console.print(f"{flips} bits: " + ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items())))
    return wrong + outcomes[OTHER]


def command(directory: Path, *, resumes: bool) -> list[str]:
    """Return the words of `rankdad` that begin or resume a simulation."""
    words = ["--resume", str(directory)]
    if not resumes:
        words = [str(SPEC), "--ledger", "--output", str(directory)]
        words += [word for change in CHANGES for word in ("--set", change)]
    return ["simulate", *words, "--quiet"]


class Simulation:
    """A simulation's processes, begun or resumed; what it says is beside its directory."""

    def __init__(self, directory: Path, *, resumes: bool) -> None:
        self._said = directory.with_suffix(".said")
        words = command(directory, resumes=resumes)
        self.process: BaseProcess = WARM.Process(target=_main, args=(words, str(self._said)))
        self.process.start()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return its status and standard error.

        Raises:
            TimeoutError: it does not end.
        """
        self.process.join(PATIENCE)
        if self.process.exitcode is None:
            raise TimeoutError
        return self.process.exitcode, self._said.read_text(encoding="utf-8")


def _main(words: list[str], said: str) -> None:
    for number, name in ((1, os.devnull), (2, said)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    sys.argv = ["rankdad", *words]
    runpy.run_module("rankdad", run_name="__main__")


def simulated(directory: Path, *, resumes: bool = False) -> tuple[int, str]:
    """Run a simulation to its end; return its status and standard error."""
    end = time.monotonic() + PATIENCE
    while True:
        code, said = Simulation(directory, resumes=resumes).end()
        if IN_USE not in said or time.monotonic() > end:
            return code, said
        time.sleep(0.2)


def story_of(directory: Path) -> Story:
    """Return weights and tables without times."""
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    found: Story = {"weights": summary["weights_sha256"], "status": summary["status"]}
    for name in TABLES:
        with (directory / f"{name}.csv").open(newline="", encoding="utf-8") as table:
            rows = csv.DictReader(table)
            found[name] = [{column: row[column] for column in row if "seconds" not in column} for row in rows]
    return found


def _kill(
    root: Path, kills: int, expected: Story, drawn: random.Random, console: Console
) -> tuple[int, int, Counter[str]]:
    wrong = runs = 0
    directory, victims, end = root / "killed", Counter[str](), rounds_of(root / "undisturbed")
    while victims.total() < kills:
        resumes = (directory / "run.sqlite").exists()
        if not resumes:  # a run killed before its start has nothing to resume
            shutil.rmtree(directory, ignore_errors=True)
        ahead = round(drawn.expovariate(4 / end))  # rounds until the kill: about four kills a run
        code, said = killed_after(directory, ahead, drawn, victims, resumes=resumes)
        if code < 0 or said is None:
            continue
        if IN_USE in said:
            time.sleep(0.2)
            continue
        is_wrong = (code != 0 and COMPLETE not in said) or story_of(directory) != expected
        runs, wrong = runs + 1, wrong + is_wrong
        if is_wrong:
            console.print(f"status {code}: {said}", markup=False)
        console.print(f"{victims.total()} kills, {runs} runs to their end: {wrong} other than undisturbed")
        shutil.rmtree(directory)
    if (directory / "run.sqlite").exists():
        code, said = simulated(directory, resumes=True)
        if is_wrong := code != 0 or story_of(directory) != expected:
            console.print(f"status {code}: {said}", markup=False)
        runs, wrong = runs + 1, wrong + is_wrong
    return wrong, runs, victims


def killed_after(
    directory: Path, ahead: int, drawn: random.Random, victims: Counter[str], *, resumes: bool
) -> tuple[int, str | None]:
    """Start a simulation and kill one of its processes when the run has gone so many rounds further.

    With 0 rounds the kill comes within the first second, mostly before the sites have started.

    Returns:
        The status, once it has ended, and its standard error; None in place of that if something was killed.
    """
    moment = rounds_of(directory) + ahead
    simulation = Simulation(directory, resumes=resumes)
    process = simulation.process
    if not ahead:
        time.sleep(drawn.uniform(0.0, 1.0))
    while process.is_alive() and ahead and rounds_of(directory) < moment:
        time.sleep(0.005)
    time.sleep(drawn.uniform(0.0, 0.02))  # anywhere within a round
    assert process.pid is not None
    names = {process.pid: "the simulator"} | dict.fromkeys(_children(process.pid), "its processes")
    victim = drawn.choice(sorted(names))
    if not process.is_alive():
        return simulation.end()
    victims[names[victim]] += 1
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    return simulation.end()[0], None


def rounds_of(directory: Path) -> int:
    """Return how many rounds a run has committed; 0 where none can be read yet."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{directory / 'run.sqlite'}?mode=ro", uri=True)) as file:
            return int(file.execute("SELECT max(round) FROM updates").fetchone()[0] or 0)
    except sqlite3.Error:
        return 0


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _flip(root: Path, flips: int, expected: Story, drawn: random.Random, console: Console) -> Counter[str]:
    """Flip bits of the run's file and the checkpoints of a run that was killed half way, one in each copy of it.

    Half of them fall into the files' headers, byte after byte in a random order; the others fall anywhere.
    """
    half, outcomes = root / "half", Counter[str]()
    killed_after(half, rounds_of(root / "undisturbed") // 2, drawn, Counter(), resumes=False)
    time.sleep(1.0)  # orphans end
    files = sorted(path for path in half.rglob("*") if path.suffix in SUFFIXES and path.stat().st_size)
    bytes_of_headers = [(path, at) for path in files for at in range(min(HEADER, path.stat().st_size))]
    places = drawn.sample(bytes_of_headers, min(flips // 2, len(bytes_of_headers)))
    while len(places) < flips:
        path = drawn.choice(files)
        places.append((path, drawn.randrange(path.stat().st_size)))
    bits = [(number, path.relative_to(half), at, drawn.randrange(8)) for number, (path, at) in enumerate(places)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, outcome, said in pool.map(lambda bit: _flipped(half, expected, *bit), bits):
            outcomes[outcome] += 1
            if outcome == OTHER:
                console.print(f"{bits[number][1:]}: {said}", markup=False)
            if not (number + 1) % 100:
                console.print(f"{number + 1} bits: " + ", ".join(f"{n} {what}" for what, n in outcomes.items()))
    return outcomes


def _flipped(half: Path, expected: Story, number: int, name: Path, at: int, bit: int) -> tuple[int, str, str]:
    """Resume a copy of a run with one bit flipped; return the bit's number, the outcome, and what was said."""
    copy = half.with_name(f"copy-{number}")
    shutil.copytree(half, copy, symlinks=True)
    with (copy / name).open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    try:
        code, said = simulated(copy, resumes=True)
    except TimeoutError:
        return number, OTHER, f"has not ended within {PATIENCE} s: see {copy}"
    outcome = OTHER
    if code == 0 and story_of(copy) == expected:
        outcome = "undisturbed"
    elif code == 2 and "Traceback" not in said:
        outcome = "a sentence"
    shutil.rmtree(copy)
    return number, outcome, said
