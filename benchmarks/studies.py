"""`python -m benchmarks studies`: cross-validated federations of real processes, and training on all data."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from rankdad.common.documents import load_json, validate
from rankdad.common.spec import KFold, RunSpec
from rankdad.common.spec.tasks import Classification, shown
from rankdad.simulate_command import command, summary_of
from rankdad.simulations.spec import read_simulation

Found = dict[str, Any]


def bench_studies(
    files: Sequence[Path], assignments: list[str], data: Path | None, seeds: list[int], console: Console
) -> list[Found]:
    """Print a row per study, way of training and seed of its folds, and the means over seeds; return all figures.

    Args:
        files: runs and their simulations.
        assignments: as `--set` takes them.
        data: the source's data, in place of the files' own path.
        seeds: of the folds of k-fold studies; the others have one run each.
        console: where to print.
    """
    results: list[Found] = []
    head = ("study", "folds' seed", "way", "figures over all folds", "site alone", "within sites", "seconds")
    table = Table(*head, show_lines=False)
    for file in files:
        for pooled in (False, True):
            own = [_study(file, assignments, data, seed, pooled=pooled) for seed in seeds]
            for found in own:
                table.add_row(*_row(found))
            if len(seeds) > 1:
                table.add_row(file.stem, "mean", own[0]["way"], _words(_means(own)), "", "", "")
            results += own
    console.print(table)
    for found in results:
        if "sklearn_auc" in found:
            away = abs(found["test"]["auc"] - found["sklearn_auc"])
            which = f"{found['study']}, {found['way']}, seed {found['seed']}"
            console.print(f"{which}: AUC differs by {away:.1e} from scikit-learn's")
    return results


def _study(file: Path, assignments: list[str], data: Path | None, seed: int, *, pooled: bool) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        evaluation = read_simulation(file, assignments, data=data).run.evaluation
        given = assignments if not isinstance(evaluation, KFold) else [*assignments, f"run.evaluation.seed={seed}"]
        began = perf_counter()
        summary = summary_of(command(file, directory, given, data) + ["--pooled"] * pooled)
        seconds = perf_counter() - began
        spec = validate(RunSpec, load_json(directory / "run.json"))
        found: Found = summary["metrics"] | {"study": spec.name, "seed": seed, "seconds": seconds}
        found["way"] = "together" if pooled else f"{len(summary['sites'])} processes"
        if isinstance(spec.task, Classification) and spec.task.classes == 2:
            found["sklearn_auc"] = _exact_auc(directory)
    return found


def _exact_auc(directory: Path) -> float:
    """Return scikit-learn's AUC of all sites' out-of-fold predictions together, which only a simulation can see."""
    from sklearn.metrics import roc_auc_score

    paths = sorted(directory.glob("sites/*/predictions/*"))
    table = pd.concat(pd.read_csv(path, dtype={"label": str}) for path in paths)
    column = str([name for name in table.columns if name.startswith("probability_")][-1])
    return float(roc_auc_score(table["label"] == column.removeprefix("probability_"), table[column]))


def _row(found: Found) -> tuple[str, ...]:
    values = (found["test"], found["baseline"], found["within_sites"])
    figures = (_words(_telling(value)) for value in values)
    return (found["study"], str(found["seed"]), found["way"], *figures, f"{found['seconds']:.0f}")


def _telling(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name in ("pearson_r", "mae", "auc") if (value := values.get(name)) is not None}


def _means(own: Sequence[Found]) -> dict[str, float]:
    tests = [_telling(found["test"]) for found in own]
    return {name: mean(test[name] for test in tests) for name in tests[0]}


def _words(values: dict[str, float]) -> str:
    return ", ".join(f"{shown(name)} {value:.4f}" for name, value in values.items())
