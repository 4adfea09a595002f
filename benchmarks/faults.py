"""`python -m benchmarks faults`: processes of a simulation killed at random moments, and bits of its files flipped."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
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
        began = time.monotonic()
        simulated(root / "undisturbed")
        seconds, expected = time.monotonic() - began, story_of(root / "undisturbed")
        wrong, runs, victims = _kill(root, kills, seconds, expected, drawn)
        said = ", ".join(f"{count} of {name}" for name, count in sorted(victims.items()))
        console.print(f"{kills} kills ({said}), {runs} runs to their end: {wrong} other than undisturbed")
        outcomes = _flip(root, flips, seconds, expected, drawn)
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
    root: Path, kills: int, seconds: float, expected: Story, drawn: random.Random
) -> tuple[int, int, Counter[str]]:
    wrong = runs = 0
    directory, victims = root / "killed", Counter[str]()
    while victims.total() < kills:
        resumes = (directory / "run.sqlite").exists()
        if not resumes:  # a run killed before its start has nothing to resume
            shutil.rmtree(directory, ignore_errors=True)
        process = subprocess.Popen(
            command(directory, resumes=resumes), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            said = process.communicate(timeout=drawn.uniform(0.0, seconds))[1]
        except subprocess.TimeoutExpired:
            family = [process.pid, *_children(process.pid)]
            victim = drawn.choice(family)
            victims["the simulator" if victim == process.pid else "its processes"] += 1
            os.kill(victim, signal.SIGKILL)
            process.communicate(timeout=PATIENCE)
            continue
        if IN_USE in said:
            time.sleep(0.2)
            continue
        runs, wrong = runs + 1, wrong + (process.returncode != 0 or story_of(directory) != expected)
        shutil.rmtree(directory)
    if (directory / "run.sqlite").exists():
        code, _ = simulated(directory, resumes=True)
        runs, wrong = runs + 1, wrong + (code != 0 or story_of(directory) != expected)
    return wrong, runs, victims


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _flip(root: Path, flips: int, seconds: float, expected: Story, drawn: random.Random) -> Counter[str]:
    """Flip bits of the run's file and the checkpoints of a run that was killed half way, one in each copy of it."""
    half, outcomes = root / "half", Counter[str]()
    process = subprocess.Popen(command(half, resumes=False), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.7 * seconds)
    process.kill()
    process.wait()
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
