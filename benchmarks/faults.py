"""`python -m benchmarks faults`: processes of a simulation killed at random moments, and bits of its files flipped."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

SPEC = Path(__file__).parents[1] / "simulations" / "specs" / "digits.json"
CHANGES = ("run.training.epochs=3", 'run.federation.sites=["a","b"]', "run.model.hidden=[16]")
TABLES = ("steps", "metrics")
IN_USE = "folder-in-use"  # for as long as processes of a killed simulator are still ending
PATIENCE = 120.0  # seconds
Story = dict[str, Any]


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
        outcomes = _flip(root, flips, expected, drawn)
        console.print(f"{flips} bits: " + ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items())))
    return wrong + outcomes["OTHER"]


def command(directory: Path, *, resumes: bool) -> list[str]:
    """Return the command that begins or resumes a simulation."""
    words = ["--resume", str(directory)]
    if not resumes:
        words = [str(SPEC), "--ledger", "--output", str(directory)]
        words += [word for change in CHANGES for word in ("--set", change)]
    return [sys.executable, "-m", "rankdad", "simulate", *words, "--quiet"]


def simulated(directory: Path, *, resumes: bool = False) -> tuple[int, str]:
    """Run a simulation to its end; return its status and output."""
    end = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(command(directory, resumes=resumes), capture_output=True, text=True, timeout=PATIENCE)
        if IN_USE not in done.stderr or time.monotonic() > end:
            return done.returncode, done.stderr
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
        process, said = killed_after(directory, ahead, drawn, victims, resumes=resumes)
        if process.returncode < 0 or said is None:
            continue
        if IN_USE in said:
            time.sleep(0.2)
            continue
        is_wrong = process.returncode != 0 or story_of(directory) != expected
        runs, wrong = runs + 1, wrong + is_wrong
        if is_wrong:
            console.print(f"status {process.returncode}: {said}", markup=False)
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
) -> tuple[subprocess.Popen[str], str | None]:
    """Start a simulation and kill one of its processes when the run has gone so many rounds further.

    With 0 rounds the kill comes within the first second, mostly before the sites have started.

    Returns:
        The process, which has ended, and its standard error; None in place of that if something was killed.
    """
    moment = rounds_of(directory) + ahead
    process = subprocess.Popen(
        command(directory, resumes=resumes), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if not ahead:
        time.sleep(drawn.uniform(0.0, 1.0))
    while process.poll() is None and ahead and rounds_of(directory) < moment:
        time.sleep(0.005)
    time.sleep(drawn.uniform(0.0, 0.02))  # anywhere within a round
    names = {process.pid: "the simulator"} | dict.fromkeys(_children(process.pid), "its processes")
    victim = drawn.choice(sorted(names))
    if process.poll() is not None:
        return process, process.communicate()[1]
    victims[names[victim]] += 1
    os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    return process, None


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


def _flip(root: Path, flips: int, expected: Story, drawn: random.Random) -> Counter[str]:
    """Flip bits of the run's file and the checkpoints of a run that was killed half way, one in each copy of it."""
    half, outcomes = root / "half", Counter[str]()
    killed_after(half, rounds_of(root / "undisturbed") // 2, drawn, Counter(), resumes=False)
    for _ in range(flips):
        copy = root / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(half, copy, symlinks=True)
        files = [path for path in copy.rglob("*") if path.suffix in (".sqlite", ".safetensors") and path.stat().st_size]
        path = drawn.choice(sorted(files))
        at, bit = drawn.randrange(path.stat().st_size), drawn.randrange(8)
        with path.open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))
        code, said = simulated(copy, resumes=True)
        if code == 0 and story_of(copy) == expected:
            outcomes["undisturbed"] += 1
        elif code == 2 and "Traceback" not in said:
            outcomes["a sentence"] += 1
        else:
            outcomes["OTHER"] += 1
    return outcomes
