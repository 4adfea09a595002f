"""`python -m benchmarks check`: duration of `rankdad check SITE.json` with a log of many earlier runs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from rankdad.common.data import read_site
from rankdad.common.documents import validate
from rankdad.common.policy import Policy
from rankdad.common.spec import RunSpec
from rankdad.local.privacy.assigning import assigner_of
from rankdad.local.privacy.log import DisclosureLog

SITE, FILE, LABEL = "hospital-a", "patients.csv", "event"
WARDS = 5  # each lacks one column: a run that reads it leaves the ward out
MOST_LEFT_OUT = 2  # wards, by an earlier run
MOST_SECONDS = 5.0
FEW_ROWS = 300  # of a site without earlier runs, whose check is mostly start-up


@dataclass(frozen=True)
class Found:
    """How long checks take, each on the clock and of the processor, which other work slows down less.

    Args:
        check: of the site with earlier runs.
        start: of a small one without.
        parts: that each earlier run has used.
    """

    check: tuple[float, float]
    start: tuple[float, float]
    parts: tuple[int, ...]


def run_of(columns: list[str], seed: int) -> dict[str, Any]:
    """Return a run that reads some columns, and leaves out patients with gaps in them."""
    return {
        "name": f"study-{seed}",
        "seed": seed,
        "task": {"name": "classification", "classes": 2},
        "model": {"name": "mlp", "hidden": [16]},
        "data": {"reader": "csv", "file": FILE, "key": "id", "features": columns, "label": LABEL, "missing": "drop"}
        | {"values": ["0", "1"]},
        "preparation": {"standardise": "federated"},
        "evaluation": {"name": "k-fold", "folds": 5},
        "training": {"epochs": 10, "batch_size": 64},
        "method": {"name": "rank-dad", "rank": 2},
        "federation": {"sites": [SITE, "hospital-b", "hospital-c"]},
    }


def write_table(folder: Path, rows: int, columns: int) -> list[str]:
    """Write a hospital's table, and return the names of its columns."""
    rng = np.random.default_rng(0)
    names = [f"x{place}" for place in range(columns)]
    table = pd.DataFrame(rng.normal(size=(rows, columns)).round(3), columns=names)
    ward = rng.integers(0, WARDS, rows)
    for place, name in enumerate(names[-WARDS:]):
        table.loc[ward == place, name] = np.nan
    table.insert(0, "id", [f"P{place:05d}" for place in range(rows)])
    table[LABEL] = rng.integers(0, 2, rows)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / FILE, index=False)
    return names


def write_site(folder: Path, rows: int, columns: int, runs: int) -> list[int]:
    """Write a site's file, its table, a run, and a log of earlier runs; return the parts that each of these has used.

    Args:
        folder: of the site.
        rows: of the table, each a patient's.
        columns: that it has.
        runs: earlier ones.
    """
    names, policy, log = write_table(folder / "data", rows, columns), Policy(), folder / "privacy"
    site = {"name": SITE, "aggregator": "http://127.0.0.1:1", "data": "data", "output": "output"}
    (folder / "site.json").write_text(json.dumps(site), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(run_of(names[: len(names) - WARDS + 1], runs)), encoding="utf-8")
    rng = np.random.default_rng(1)
    for number in range(runs):
        whole, gaps = names[:-WARDS], names[-WARDS:]
        chosen = [*rng.choice(whole, rng.integers(len(whole) // 2, len(whole)), replace=False)]
        chosen += [*rng.choice(gaps, rng.integers(0, MOST_LEFT_OUT + 1), replace=False)]
        spec = validate(RunSpec, run_of(sorted(map(str, chosen)), number))
        assigner = assigner_of(log, SITE, policy, spec, f"run-{number}", results=[folder / "output"])
        data = read_site(spec, folder / "data", 0, assigner=assigner)
        assert data.parts is not None
        assert data.parts.kept()
    return [len(run.parts) for run in DisclosureLog(log, SITE).runs()] if runs else []


def seconds_of(folder: Path) -> tuple[float, float]:
    """Return how long a site's check takes, as a process of its own: on the clock, and of the processor."""
    command = [sys.executable, "-m", "rankdad", "check", str(folder / "site.json")]
    began, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, "--offline", str(folder / "run.json")], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench_check(rows: int, columns: int, runs: int, times: int, console: Console) -> Found:
    """Print and return the median of how long the check takes, and that of a small site without earlier runs.

    Args:
        rows: of the site's table.
        columns: that it has.
        runs: earlier ones.
        times: how often each is measured, in turn.
        console: where to print.
    """
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "large", Path(folder) / "small"
        parts = write_site(large, rows, columns, runs)
        write_site(small, min(rows, FEW_ROWS), columns, 0)
        taken = [(seconds_of(large), seconds_of(small)) for _ in range(times)]
    found = Found(_medians([one for one, _ in taken]), _medians([one for _, one in taken]), tuple(parts))
    console.print(
        f"{rows:,} rows of {columns} columns, {runs} earlier runs of {min(parts, default=0)} to "
        f"{max(parts, default=0)} parts: {_words(found.check)}; {min(rows, FEW_ROWS)} rows and no earlier run, which "
        f"is little but its start: {_words(found.start)}; medians of {times}"
    )
    return found


def _medians(taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(clock for clock, _ in taken), median(processor for _, processor in taken)


def _words(seconds: tuple[float, float]) -> str:
    clock, processor = seconds
    return f"{clock:.2f} s, {processor:.2f} s of the processor"
