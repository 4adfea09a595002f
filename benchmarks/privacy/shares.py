"""`python -m benchmarks shares`: cost of limiting each patient's share of a step."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.fed_heart import centres
from rankdad.common.policy import Policy
from rankdad.common.privacy.shares import scales
from rankdad.given import given_simulation
from rankdad.local import passes
from rankdad.simulations.lockstep import simulate

SHOWN = {"digits": "accuracy", "heart": "auc", "diabetes": "mae"}
SITES = ("hospital-a", "hospital-b", "hospital-c")
SPLIT = 43  # of heart


@dataclass(frozen=True)
class Measured:
    """Runs of a data set with shares and without, seed by seed.

    Args:
        data: its name.
        rate: of Adam.
        shared: the figure with.
        free: without.
        evened: part of the steps in which somebody had more.
    """

    data: str
    rate: float
    shared: Sequence[float]
    free: Sequence[float]
    evened: float


def document(data: str, rate: float, folder: Path, heart: Path) -> dict[str, Any]:
    """Return a simulation of a data set under the rules, whole gradients and folds by keys aside."""
    training = {"epochs": 30, "batch_size": 32, "validation": 0.0, "optimizer": {"name": "adam", "lr": rate}}
    run: dict[str, Any] = {"name": data, "training": training, "federation": {"sites": list(SITES)}}
    run |= {"method": {"name": "dsgd"}, "model": {"name": "linear"}, "preparation": {"standardise": "federated"}}
    simulation: dict[str, Any] = {"source": {"name": data}, "partition": {"name": "iid"}}
    if data == "digits":
        run |= {"task": {"name": "classification", "classes": 10}, "preparation": {"standardise": "none"}}
        run |= {"model": {"name": "mlp", "hidden": [64]}, "data": {"shape": [64], "scale": 0.0625}}
    elif data == "diabetes":
        table = {"reader": "csv", "file": "patients.csv", "features": ["age", "sex", "bmi", "bp", "s?"]}
        run |= {"task": {"name": "regression"}, "model": {"name": "mlp", "hidden": [32]}}
        run |= {"data": table | {"categorical": {"sex": ["1", "2"]}, "label": "progression"}}
        training["batch_size"] = 16
    else:
        for site, arrays in centres(heart, SPLIT).items():
            (folder / site).mkdir()
            np.savez(folder / site / "data.npz", x=arrays["x"], y=arrays["y"], split=arrays["split"])
        run |= {"task": {"name": "classification", "classes": 2}, "data": {"reader": "npz", "shape": [13]}}
        run |= {"federation": {"sites": sorted(one.name for one in folder.iterdir())}}
        training |= {"batch_size": 16, "solver": "steps"}
        simulation = {"source": {"name": "folders", "path": str(folder)}, "partition": {"name": "folder"}}
    policy = Policy(rows_per_rank=None, keyed_folds=True).model_dump(mode="json")
    return {"run": run, "simulation": simulation | {"policy": policy}}


def figure(simulation: Mapping[str, Any], seed: int, folder: Path) -> float:
    """Return the figure of a run's test that is shown of its data."""
    run = folder / f"run-{seed}-{len(list(folder.iterdir()))}"
    simulate(given_simulation({**simulation, "run": {**simulation["run"], "seed": seed}}, run), run)
    found = json.loads((run / "summary.json").read_text(encoding="utf-8"))["metrics"]["test"]
    return float(found[SHOWN[simulation["run"]["name"]]])


def measured(data: str, rate: float, seeds: Sequence[int], heart: Path) -> Measured:
    """Run a data set with shares and without."""
    steps = list[bool]()

    def noted(deltas: Tensor, people: Tensor, sharing: int) -> Tensor | None:
        found = scales(deltas, people, sharing)
        steps.append(found is not None)
        return found

    def nothing(*_: object) -> None:
        return None

    with tempfile.TemporaryDirectory() as sites, tempfile.TemporaryDirectory() as runs:
        simulation = document(data, rate, Path(sites), heart)
        with patch.object(passes, "scales_of", noted):
            shared = [figure(simulation, seed, Path(runs)) for seed in seeds]
        with patch.object(passes, "scales_of", nothing), patch.object(passes, "shared_units", nothing):
            free = [figure(simulation, seed, Path(runs)) for seed in seeds]
    return Measured(data, rate, shared, free, mean(steps))


def bench_shares(seeds: Sequence[int], heart: Path, console: Console) -> Iterator[Measured]:
    """Print and yield results on each data set at an ordinary learning rate and at a large one."""
    table = Table("data", "figure", "learning rate", "shared", "free", "difference", "steps evened")
    for data, name in SHOWN.items():
        for rate in (0.003, 0.03):
            one = measured(data, rate, seeds, heart)
            apart = [shared - free for shared, free in zip(one.shared, one.free, strict=True)]
            spread = stdev(apart) if len(apart) > 1 else 0.0
            row = (f"{mean(one.shared):.4f}", f"{mean(one.free):.4f}", f"{mean(apart):+.4f} ± {spread:.4f}")
            table.add_row(data, name, f"{rate:g}", *row, f"{one.evened:.1%}")
            yield one
    console.print(table)
