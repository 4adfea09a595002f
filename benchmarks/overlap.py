"""`python -m benchmarks overlap`: how much of a slow link's time the backward pass hides, on the paper's GRU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from rankdad.common.policy import EVERYTHING
from rankdad.simulations.command import command, summary_of

BANDWIDTH = 12.5e6  # bytes per second in each direction: 100 Mbit/s
WARM_UP = 2  # steps left out of every figure
CLASSES = 6


@dataclass(frozen=True)
class Overlap:
    """A step of one run, medians over its steps.

    Args:
        seconds: between two updates.
        exposed: of these, those in which the site has nothing to compute, as `steps.csv` has them.
        waited: the same by the site's own clock.
        link: that the step's bytes take on the link, one direction after the other.
    """

    seconds: float
    exposed: float
    waited: float
    link: float


def hidden(one: Overlap, many: Overlap) -> float:
    """Return which part of the time that a single message waits for is not waited for in buckets."""
    return 1 - many.exposed / one.exposed


def bench_overlap(
    method: Mapping[str, Any],
    buckets: int,
    shape: tuple[int, int],
    batch: int,
    steps: int,
    pairs: int,
    console: Console,
) -> list[tuple[Overlap, Overlap]]:
    """Measure steps in one message and in buckets in turn, and print both.

    Args:
        method: of the run.
        buckets: how many.
        shape: of a series, [time, features].
        batch: samples of a step.
        steps: of each run that count.
        pairs: of runs.
        console: where to print.
    """
    table = Table("buckets", "step", "exposed", "by the site's clock", "the bytes' time on the link", "hidden")
    found = []
    for _ in range(pairs):
        one, many = (measure({**method, "buckets": count}, shape, batch, steps) for count in (1, buckets))
        found.append((one, many))
        for count, run, share in ((1, one, ""), (buckets, many, f"{hidden(one, many):.0%}")):
            figures = (f"{figure:.3f}" for figure in (run.seconds, run.exposed, run.waited, run.link))
            table.add_row(str(count), *figures, share)
    size = "×".join(map(str, shape))
    console.print(
        f"{method['name']}, the paper's GRU on series of {size}, {batch} a step, one site at 100 Mbit/s: seconds"
    )
    console.print(table)
    console.print(f"hidden: {median(hidden(*pair) for pair in found):.0%}, median of {pairs}")
    return found


def measure(method: Mapping[str, Any], shape: tuple[int, int], batch: int, steps: int) -> Overlap:
    """Run some steps of one site behind a relay, as real processes, and time them.

    One site: several would disturb each other on one machine. All its connections share the link.
    """
    samples = batch * (WARM_UP + steps)
    with tempfile.TemporaryDirectory() as folder:
        pool, file, run = (Path(folder) / name for name in ("pool.npz", "file.json", "run"))
        generator = np.random.default_rng(0)
        x = generator.normal(size=(samples, *shape)).astype(np.float32)
        np.savez(pool, x=x, y=generator.integers(0, CLASSES, samples))
        training = {
            "epochs": 1,
            "batch_size": batch,
            "optimizer": {"name": "adam", "lr": 1e-4},
            "validation": 0.0,
            "test": 0.0,
        }
        document = {
            "run": {
                "name": "overlap",
                "task": {"name": "classification", "classes": CLASSES},
                "model": {"name": "gru", "preset": "paper"},
                "data": {"shape": list(shape)},
                "training": training,
                "method": method,
                "federation": {"sites": ["site-1"], "compare_every": 0},
            },
            "simulation": {
                "source": {"name": "npz", "path": str(pool)},
                "policy": EVERYTHING.model_dump(mode="json"),
                "relay": {"shared_bandwidth": BANDWIDTH},
            },
        }
        file.write_text(json.dumps(document), encoding="utf-8")
        summary_of(command(file, run))
        rows = pd.read_csv(run / "steps.csv")[WARM_UP:]
        waited = pd.read_csv(run / "sites" / "site-1" / "timings.csv")["wait"][WARM_UP:].median()
    link = ((rows["bytes_up"] + rows["bytes_down"]) / BANDWIDTH).median()
    return Overlap(float(rows["seconds"].median()), float(rows["exposed_seconds"].median()), float(waited), float(link))
