"""`python -m benchmarks fed-heart`: FLamby's Fed-Heart-Disease by our runs, beside the table that it has published."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.paired.data import HEART, LABEL, heart
from rankdad.common.errors import DataError
from rankdad.common.policy import EVERYTHING
from rankdad.given import given_simulation
from rankdad.simulations.lockstep import simulate

Arrays = dict[str, NDArray[Any]]
SPLIT, TRAINED = 43, 0.66  # its own split, and which part of a centre's rows it trains on
LEAST = 0.80  # mean accuracy of the centres, of ours on that split
LEVELS = {"cp": (2, 3, 4), "restecg": (1, 2)}  # without the first level
STEPS = {"epochs": 60, "batch_size": 8, "batches": "even", "optimizer": {"name": "adam", "lr": 0.003}}
# Accuracy of the centres in HEART's order, means over five seeds; their mean, its deviation over seeds, and the mean
# that the same files held until September 2022, while it standardised by all centres' rows, tested ones included.
PUBLISHED = {
    "pooled": ((0.783, 0.764, 0.750, 0.644), 0.735, 0.003, 0.805),
    "local, the best": ((0.746, 0.760, 0.725, 0.658), 0.722, 0.021, 0.790),
    "FedAvg": ((0.731, 0.719, 0.650, 0.640), 0.685, 0.028, 0.791),
    "FedProx": ((0.731, 0.719, 0.650, 0.640), 0.685, 0.028, 0.791),
    "SCAFFOLD": ((0.727, 0.719, 0.650, 0.640), 0.684, 0.028, 0.795),
    "cyclic": ((0.758, 0.762, 0.712, 0.640), 0.718, 0.029, 0.792),
    "FedAdam": ((0.752, 0.746, 0.738, 0.667), 0.726, 0.014, 0.809),
    "FedAdagrad": ((0.760, 0.753, 0.738, 0.676), 0.731, 0.013, 0.815),
    "FedYogi": ((0.760, 0.753, 0.738, 0.676), 0.731, 0.013, 0.815),
}
SOURCE = "github.com/owkin/FLamby, edacf54: flamby/results/results_benchmark_fed_heart_disease/heart_seed42 to 46.csv"
SENTENCE = (
    "The lead is exact standardisation by all centres' training rows, not low rank or another optimizer: FLamby "
    "standardises each centre by its own rows, and ours does no better when it does so too."
)


@dataclass(frozen=True)
class Found:
    """A run's accuracy.

    Args:
        split: seed of the split into rows to train on and to test.
        way: how it was trained.
        seed: of the run; None where nothing is drawn.
        centres: accuracy of each, in HEART's order.
        auc: of all test rows together.
    """

    split: int
    way: str
    seed: int | None
    centres: tuple[float, ...]
    auc: float

    @property
    def accuracy(self) -> float:
        """Mean of the centres: FLamby's figure."""
        return mean(self.centres)


def centres(folder: Path, split: int) -> dict[str, Arrays]:
    """Return each centre's rows without gaps as FLamby has them: 13 inputs, and which rows are tested.

    Raises:
        DataError: the files are not there.
    """
    from sklearn.model_selection import train_test_split

    missing = [site for site in HEART if not (folder / f"processed.{site}.data").is_file()]
    if missing:
        raise DataError(folder, f"holds no processed.{missing[0]}.data (UCI heart disease)", code="file-missing")
    found = {}
    for site, table in zip(HEART, heart(folder), strict=True):
        rows = table.dropna()
        y = rows.pop(LABEL).to_numpy()
        for name, levels in LEVELS.items():
            column = rows.pop(name)
            for level in levels:
                rows[f"{name}_{level}"] = column == level
        by = y if min(np.bincount(y, minlength=2)) > 2 else None
        _, test = train_test_split(
            np.arange(len(y)), train_size=TRAINED, test_size=1 - TRAINED, random_state=split, stratify=by
        )
        part = np.zeros(len(y), dtype=np.int64)
        part[test] = 2
        found[site] = {"x": rows.to_numpy(float), "y": y, "split": part}
    return found


def trained(data: Mapping[str, Arrays], split: int, standardise: str, seed: int | None) -> Found:
    """Run the four centres, by steps from a seed or, without one, by the exact solver.

    Args:
        data: of the centres.
        split: that they are split by.
        standardise: whose rows the inputs are standardised by, as in a spec.
        seed: of the run.
    """
    training = {"solver": "exact"} if seed is None else STEPS
    with tempfile.TemporaryDirectory() as folder:
        for site, arrays in data.items():
            (Path(folder) / site).mkdir()
            np.savez(Path(folder) / site / "data.npz", x=arrays["x"], y=arrays["y"], split=arrays["split"])
        spec = {
            "name": "fed-heart",
            "task": {"name": "classification", "classes": 2},
            "data": {"reader": "npz", "shape": [13]},
            "preparation": {"standardise": standardise},
            "model": {"name": "linear"},
            "training": training | {"validation": 0},
            "method": {"name": "dsgd"},
            "federation": {"sites": list(data)},
            "seed": seed or 0,
        }
        source = {"source": {"name": "folders", "path": folder}, "partition": {"name": "folder"}}
        policy = EVERYTHING.model_dump(mode="json")  # even batches hold one or two rows of the smallest centre
        run = Path(folder) / "run"
        simulate(given_simulation({"run": spec, "simulation": source | {"policy": policy}}, run), run)
        accuracy = pd.read_csv(run / "sites.csv", index_col="site")["accuracy"]
        test = json.loads((run / "summary.json").read_text(encoding="utf-8"))["metrics"]["test"]
    way = f"{'exact' if seed is None else 'steps'}, {standardise}"
    return Found(split, way, seed, tuple(accuracy[list(HEART)]), test["auc"])


def together(data: Mapping[str, Arrays], split: int) -> Found:
    """Fit scikit-learn's logistic regression to all centres' rows in one place."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y, part = (np.concatenate([own[name] for own in data.values()]) for name in ("x", "y", "split"))
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[part == 0], y[part == 0])
    tests = [(own["x"][own["split"] == 2], own["y"][own["split"] == 2]) for own in data.values()]
    auc = roc_auc_score(y[part == 2], model.predict_proba(x[part == 2])[:, 1])
    return Found(split, "scikit-learn, pooled", None, tuple(model.score(*test) for test in tests), float(auc))


def bench_fed_heart(folder: Path, seeds: Sequence[int], splits: Sequence[int], console: Console) -> list[Found]:
    """Print and return accuracies: of several seeds on FLamby's split, and of the exact solver on others, too.

    Args:
        folder: of the four files.
        seeds: of the runs by steps.
        splits: seeds of further splits.
        console: where to print.
    """
    own = centres(folder, SPLIT)
    found = [trained(own, SPLIT, way, seed) for way in ("federated", "site") for seed in seeds]
    for split in (SPLIT, *splits):
        data = centres(folder, split)
        found += [trained(data, split, way, None) for way in ("federated", "site")] + [together(data, split)]
    rows = Table("split", "trained, standardised", "seed", *HEART, "mean", "pooled AUC")
    for one in found:
        figures = (*one.centres, one.accuracy, one.auc)
        seed = "" if one.seed is None else str(one.seed)
        rows.add_row(str(one.split), one.way, seed, *(f"{value:.3f}" for value in figures))
    console.print(rows)
    means = Table("means of", *HEART, "mean", "± over seeds or splits", "FLamby before a422b61")
    for way in dict.fromkeys(one.way for one in found):
        runs = {"split 43": [one for one in found if one.way == way and one.split == SPLIT]}
        runs["other splits"] = [one for one in found if one.way == way and one.split != SPLIT]
        for where, some in runs.items():
            if some:
                spread = [stdev(one.accuracy for one in some)] if len(some) > 1 else []
                figures = (*map(mean, zip(*(one.centres for one in some), strict=True)), mean_accuracy(some))
                means.add_row(f"{way}, {where} ({len(some)})", *(f"{value:.3f}" for value in (*figures, *spread)))
    means.add_section()
    for name, (sites, all_, spread_, earlier) in PUBLISHED.items():
        means.add_row(f"FLamby: {name}", *(f"{value:.3f}" for value in (*sites, all_, spread_, earlier)))
    console.print(means)
    console.print(f"FLamby's figures: {SOURCE}; before a422b61, of 9/2022, it standardised by all rows.\n{SENTENCE}")
    return found


def mean_accuracy(found: Sequence[Found]) -> float:
    """Return the mean of several runs' accuracies."""
    return mean(one.accuracy for one in found)


def holds(found: Sequence[Found]) -> bool:
    """Whether the runs by steps on FLamby's own split are as accurate as is said."""
    return mean_accuracy([one for one in found if one.way == "steps, federated"]) >= LEAST
