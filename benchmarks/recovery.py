"""`python -m benchmarks recovery`: additional cost of a step with ledger, checkpoints and tokens."""

from __future__ import annotations

import csv
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from rankdad.common.documents import validate
from rankdad.common.spec import RunSpec
from rankdad.remote.persistence import LedgerOptions
from rankdad.simulations.simulator import simulate
from rankdad.simulations.spec import SimulationFile

WARM_UP = 20  # steps left out of every figure
REPETITIONS = 3  # of every kind of run, in turn, so that a slow spell of the machine meets all of them
NOTHING, PROCESS, POWER = "nothing", "file, checkpoints, tokens, without syncs", "the same, synced"


@dataclass(frozen=True)
class Cost:
    """Mean milliseconds per step, checkpoints included, of the same run.

    Args:
        without: nothing is written down and nobody is asked who they are.
        kept: with ledger, checkpoints every 50 steps at aggregator and sites, and tokens.
        synced: the same with every record on the disk before anybody is answered.
        ratio: kept over without, median over repetitions.
        more: kept minus without, median over repetitions.
    """

    without: float
    kept: float
    synced: float
    ratio: float
    more: float


def bench_recovery(file: SimulationFile, epochs: int, console: Console) -> Cost:
    """Measure and print the cost of a run that can be resumed after a crash.

    Args:
        file: simulation.
        epochs: of every run; it needs more than 50 steps for a checkpoint.
        console: where to print.
    """
    found = measure(file, epochs)
    table = Table("what is kept", "ms a step", "times", "ms more")
    table.add_row(NOTHING, f"{found.without:.2f}", "", "")
    table.add_row(PROCESS, f"{found.kept:.2f}", f"{found.ratio:.3f}", f"{found.more:+.2f}")
    synced = (found.synced / found.without, found.synced - found.without)
    table.add_row(POWER, f"{found.synced:.2f}", f"{synced[0]:.3f}", f"{synced[1]:+.2f}")
    sites = len(file.run.federation.sites)
    console.print(f"A step of {file.run.name}, {file.run.method.name}, {sites} sites: means over whole runs")
    console.print(table)
    return found


def measure(file: SimulationFile, epochs: int) -> Cost:
    """Return the cost of a step of the same run, with and without."""
    document = file.run.model_dump(mode="json")
    document["training"]["epochs"] = epochs
    one = SimulationFile(run=validate(RunSpec, document), simulation=file.simulation)
    kinds = {NOTHING: None, PROCESS: LedgerOptions(sync=False), POWER: LedgerOptions()}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(REPETITIONS):
        for kind, ledger in kinds.items():
            seconds[kind].append(_step_seconds(one, ledger))
    pairs = list(zip(seconds[NOTHING], seconds[PROCESS], strict=True))
    without, kept, synced = (1e3 * median(seconds[kind]) for kind in kinds)
    ratio, more = median(kept / bare for bare, kept in pairs), median(kept - bare for bare, kept in pairs)
    return Cost(without, kept, synced, ratio, 1e3 * more)


def _step_seconds(file: SimulationFile, ledger: LedgerOptions | None) -> float:
    """Return the mean seconds from one step's update to the next, after a warm-up."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        directory, out = Path(folder) / "run", os.dup(1)
        os.dup2(nowhere.fileno(), 1)
        try:
            simulate(file, directory, ledger=ledger, tokens=ledger is not None)
        finally:
            os.dup2(out, 1)
            os.close(out)
        with (directory / "steps.csv").open(newline="", encoding="utf-8") as table:
            return fmean(float(row["seconds"]) for row in list(csv.DictReader(table))[WARM_UP:])
