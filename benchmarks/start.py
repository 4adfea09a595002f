"""`python -m benchmarks start`: how long a person waits from the command to the first step."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from rankdad.simulate_command import command


def bench_start(file: Path, runs: int) -> float:
    """Print and return the median ratio of the time to the first step over that of `import torch, fastapi`."""
    ratios = []
    print("import torch, fastapi   command to first step   ratio")
    for _ in range(runs):
        began = perf_counter()
        subprocess.run([sys.executable, "-c", "import torch, fastapi"], check=True)
        imported = perf_counter() - began
        first = _first_step(file)
        ratios.append(first / imported)
        print(f"{imported:18.2f} s {first:22.2f} s {ratios[-1]:7.2f}", flush=True)
    print(f"median ratio {median(ratios):.2f}")
    return median(ratios)


def _first_step(file: Path) -> float:
    """Start a simulation, and return the seconds until it says that the first step is done."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(file, Path(folder) / "run", ["run.training.epochs=1"])
        began = perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            seconds = next((perf_counter() - began for line in process.stdout if line.startswith("step ")), None)
            process.stdout.read()
    if seconds is None:
        raise RuntimeError("the simulation ended before its first step")
    return seconds
