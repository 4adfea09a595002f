"""Hours in a minute and a half: two thousand steps, thirty-two sites."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import theilslopes

from rankdad.remote.tables import count_of
from tests.e2e.test_crashes import wait_for_steps
from tests.e2e.test_processes import COMMAND, ENVIRONMENT, children_of, simulation

pytestmark = pytest.mark.slow


def status_of(pid: int) -> tuple[int, int]:
    """Return a process's resident memory in KB, and how many files it has open."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = (int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return resident, len(list(Path(f"/proc/{pid}/fd").iterdir()))


STEPS = 2000
# KB a step, by a straight line. The smallest thing that a step could leave behind, one message with its objects, has
# two or more. What is measured is 0.1 to 0.5, and less the longer it runs (0.1 after 4,000 steps): shared pages of the
# forked process that are written to one by one, and fragments.
MOST_GROWTH = 1.0


@pytest.mark.exhaustive
@pytest.mark.timeout(240)
def test_two_thousand_steps_take_no_more_memory_and_no_more_files(tmp_path: Path) -> None:
    method = {"name": "rank-dad", "rank": 2, "feedback": "both"}
    file = simulation(tmp_path, method=method, training={"epochs": STEPS // 5 + 1})
    command = [*COMMAND, "simulate", str(file), "--output", str(tmp_path / "run"), "--ledger"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, text=True)
        try:
            samples = watch(process, tmp_path / "run")
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, (tmp_path / "log").read_text()
    for place, table in enumerate(samples):
        warm = table[table[:, 0] > STEPS / 4]
        slope = float(theilslopes(warm[:, 1], warm[:, 0])[0])  # the end of a run takes memory at once
        print(f"process {place}: {slope:.2f} KB a step, from {warm[0]} to {warm[-1]} (steps, KB, files)")
        assert len(warm) > 20
        assert slope < MOST_GROWTH, place
        assert warm[:, 2].max() - warm[0, 2] <= 2, "some are open for a moment at a checkpoint"


def watch(process: subprocess.Popen[str], directory: Path) -> list[Any]:
    """Return for every child, the aggregator first, rows of steps done, memory in KB and open files."""
    wait_for_steps(directory, 1)
    samples: dict[int, list[tuple[int, int, int]]] = {child: [] for child in children_of(process)}
    while process.poll() is None:
        done = count_of(directory, "steps")
        with contextlib.suppress(OSError, ValueError):  # at the end they go, one after the other
            for child, seen in samples.items():
                seen.append((done, *status_of(child)))
        time.sleep(0.1)
    return [np.array(seen) for seen in samples.values()]
