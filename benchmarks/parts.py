"""`python -m benchmarks parts`: cost of folds from parts and of merged levels, against free folds and all levels."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.paired.data import HEART
from rankdad.common.data import SiteData
from rankdad.common.errors import DataError
from rankdad.common.policy import MinLevel, Policy
from rankdad.common.preparation import in_memory
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.given import given_simulation
from rankdad.local.admission import usual
from rankdad.simulations.lockstep import simulate
from rankdad.simulations.site_folders import partitioned_data
from rankdad.simulations.spec import SimulationFile

FILE, LABEL = "patients.csv", "disease"
STRICT = MinLevel(count=3, by="part")
POLICIES = {
    "free folds": Policy(keyed_folds=True, min_level=MinLevel(count=1)),
    "parts": Policy(min_level=MinLevel(count=1)),
    "parts, levels by site": Policy(),
    "parts, levels by part": Policy(min_level=STRICT),
}
FREE = "free folds"
METRICS = {"digits": ("auc", "accuracy"), "heart": ("auc", "accuracy"), "diabetes": ("mae", "r2")}
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak")
LEVELS = {
    "sex": ("0", "1"),
    "cp": ("1", "2", "3", "4"),
    "fbs": ("0", "1"),
    "restecg": ("0", "1", "2"),
    "exang": ("0", "1"),
    "slope": ("1", "2", "3"),
    "ca": ("0", "1", "2", "3"),
    "thal": ("3", "6", "7"),
}
ORDER = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")


@dataclass(frozen=True)
class Found:
    """A run's figures.

    Args:
        data: its name.
        policy: of every hospital, one of `POLICIES`.
        seed: of the run and its folds, or of its hospitals' secrets.
        test: metrics of all rows, each tested by a model that has not seen it.
    """

    data: str
    policy: str
    seed: int
    test: Mapping[str, float]


@dataclass(frozen=True)
class Merged:
    """Values replaced by common ones at a hospital.

    Args:
        site: the hospital.
        policy: one of `POLICIES`.
        patients: that it has.
        parts: in which they lie.
        levels: of its levels, how many lose patients, and how many it has.
        gaps: likewise of columns in which a value is missing.
        touched: patients of whom something is moved.
    """

    site: str
    policy: str
    patients: int
    parts: int
    levels: tuple[int, int]
    gaps: tuple[int, int]
    touched: int


def run_of(data: str, policy: str, seed: int, folder: Path | None, epochs: int | None = None) -> SimulationFile:
    """Return a cross-validated run at several hospitals.

    Args:
        data: one of `METRICS`.
        policy: one of `POLICIES`.
        seed: of the run and its folds, or of its hospitals' secrets.
        folder: of heart's tables, as `write_heart` leaves them.
        epochs: of the training; the data's own without.
    """
    own: dict[str, Any] = {
        "name": data,
        "seed": seed,
        "evaluation": {"name": "k-fold", "folds": 5, "refit": False, "seed": seed},
        "task": {"name": "classification", "classes": 10 if data == "digits" else 2},
        "model": {"name": "mlp", "hidden": [32], "activation": "tanh"},  # `relu` is refused at the smallest hospital
        "method": {"name": "rank-dad", "rank": 2},
        "preparation": {"standardise": "federated"},
        "training": {"epochs": 8, "batch_size": 32, "validation": 0, "optimizer": {"name": "adam", "lr": 0.01}},
        "federation": {"sites": ["hospital-a", "hospital-b", "hospital-c"]},
    }
    table = {"reader": "csv", "file": FILE, "missing": "impute"}
    simulation: dict[str, Any] = {"policy": POLICIES[policy].model_dump(mode="json"), "secret": f"secret {seed}"}
    if data == "digits":
        own |= {"data": {"shape": [64], "scale": 0.0625}, "preparation": {}}
        own["training"] |= {"epochs": 5}
        simulation |= {"source": {"name": "digits"}}
    elif data == "diabetes":
        inputs = ["age", "sex", "bmi", "bp", *(f"s{number}" for number in range(1, 7))]
        levels = {"sex": ["1", "2"]}
        own |= {"task": {"name": "regression"}}
        own["data"] = table | {"features": inputs, "categorical": levels, "label": "progression"}
        own["training"] |= {"epochs": 12}
        simulation |= {"source": {"name": "diabetes"}}
    else:
        levels = {name: list(each) for name, each in LEVELS.items()}
        own["data"] = table | {"features": list(ORDER), "categorical": levels, "label": LABEL, "values": ["0", "1"]}
        own["federation"] = {"sites": list(HEART)}
        simulation |= {"source": {"name": "folders", "path": str(folder)}, "partition": {"name": "folder"}}
    if epochs is not None:
        own["training"] |= {"epochs": epochs}
    return given_simulation({"run": own, "simulation": simulation}, Path())


def write_heart(source: Path, folder: Path) -> None:
    """Write UCI heart disease as a table for each of its four hospitals, with all thirteen columns and their gaps.

    Raises:
        DataError: the files are not there.
    """
    for site in HEART:
        path = source / f"processed.{site}.data"
        if not path.is_file():
            raise DataError(source, f"holds no {path.name} (UCI heart disease)", code="file-missing")
        table = pd.read_csv(path, header=None, na_values="?", names=[*ORDER, LABEL])
        table[LABEL] = (table[LABEL] > 0).astype(int)
        whole = table.astype(dict.fromkeys(LEVELS, "Int64"))
        (folder / site).mkdir(parents=True, exist_ok=True)
        whole.to_csv(folder / site / FILE, index=False)


def merged(file: SimulationFile, policy: str) -> list[Merged]:
    """Return the values that a run's policy replaces at each hospital."""
    with tempfile.TemporaryDirectory() as folder:
        read = partitioned_data(file, Path(folder))
    return [_merged_at(site, policy, file.run, data) for site, data in read.items()]


def _merged_at(site: str, policy: str, spec: RunSpec, data: SiteData) -> Merged:
    assert isinstance(spec.data, TableData)
    before = in_memory(data.samples.inputs)
    after = in_memory(usual(POLICIES[policy], spec, data).samples.inputs)
    levels, gaps, touched = [0, 0], [0, 0], ((before != after) & ~(before.isnan() & after.isnan())).any(1)
    for place in spec.data.places:
        old, new, width = before[:, place.values], after[:, place.values], place.levels
        missing = old.isnan().any(1)
        gaps[0] += bool((missing & ~new.isnan().any(1)).any())
        gaps[1] += bool(missing.any())
        if width:
            levels[0] += int(((old == 1) & (new != 1)).any(0).sum())
            levels[1] += int((old == 1).any(0).sum())
    parts = 0 if data.parts is None else len(data.parts.sizes)
    return Merged(site, policy, len(before), parts, (levels[0], levels[1]), (gaps[0], gaps[1]), int(touched.sum()))


def trained(file: SimulationFile) -> dict[str, float]:
    """Run a simulation in this process, and return its test's metrics."""
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(file, Path(folder) / "run", on_round=lambda aggregator: None)
    return {name: value for name, value in summary["metrics"]["test"].items() if value is not None}


def runs_of(
    names: Sequence[str], seeds: Sequence[int], source: Path, output: Path, epochs: int | None = None
) -> Iterator[Found]:
    """Yield all runs: those that a file of earlier ones has already are not made again.

    Args:
        names: of the data, of `METRICS`.
        seeds: of the runs.
        source: folder of heart's files.
        output: folder of the file.
        epochs: of every training; the data's own without.
    """
    output.mkdir(parents=True, exist_ok=True)
    file = output / "runs.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    done = {(one.data, one.policy, one.seed): one for one in (Found(**json.loads(line)) for line in lines)}
    with tempfile.TemporaryDirectory() as folder:
        if "heart" in names:
            write_heart(source, Path(folder))
        for seed in seeds:
            for name in names:
                for policy in POLICIES:
                    found = done.get((name, policy, seed))
                    if found is None:
                        found = Found(name, policy, seed, trained(run_of(name, policy, seed, Path(folder), epochs)))
                        with file.open("a", encoding="utf-8") as added:
                            added.write(json.dumps(asdict(found)) + "\n")
                    yield found


def bench_parts(
    names: Sequence[str], seeds: Sequence[int], source: Path, output: Path, console: Console, epochs: int | None = None
) -> list[Found]:
    """Print and return figures by policy, their differences from free folds, and merged levels at heart's hospitals.

    Args:
        names: of the data, of `METRICS`.
        seeds: of the runs.
        source: folder of heart's files.
        output: folder of the runs that are done.
        console: where to print.
        epochs: of every training; the data's own without.
    """
    found = list(runs_of(names, seeds, source, output, epochs))
    table = Table("data", "policy", "metric", f"mean of {len(seeds)}", "SD", "from free folds", "SE of it")
    for name in names:
        for metric in METRICS[name]:
            for policy in POLICIES:
                own = _values(found, name, policy, metric)
                apart, error = difference(found, name, policy, metric)
                figures = [f"{mean(own):.4f}", f"{_deviation(own):.4f}"]
                figures += [] if policy == FREE else [f"{apart:+.4f}", f"{error:.4f}"]
                table.add_row(name, policy, metric, *figures)
        table.add_section()
    console.print(table)
    if "heart" in names:
        console.print(_merged_table(source))
    return found


def difference(found: Sequence[Found], name: str, policy: str, metric: str) -> tuple[float, float]:
    """Return how far a policy's mean is from that of free folds, and the standard error of this."""
    own, free = (_values(found, name, one, metric) for one in (policy, FREE))
    return mean(own) - mean(free), ((_deviation(own) ** 2 + _deviation(free) ** 2) / len(own)) ** 0.5


def _values(found: Sequence[Found], name: str, policy: str, metric: str) -> list[float]:
    return [one.test[metric] for one in found if (one.data, one.policy) == (name, policy)]


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _merged_table(source: Path) -> Table:
    table = Table("heart: hospital", "patients", "moved by", "parts", "levels moved", "gaps moved", "patients touched")
    with tempfile.TemporaryDirectory() as folder:
        write_heart(source, Path(folder))
        for policy in ("parts, levels by site", "parts, levels by part"):
            for one in merged(run_of("heart", policy, 0, Path(folder)), policy):
                levels, gaps = (f"{moved} of {there}" for moved, there in (one.levels, one.gaps))
                where = (one.site, str(one.patients), policy.rpartition(" ")[2], str(one.parts))
                table.add_row(*where, levels, gaps, str(one.touched))
            table.add_section()
    return table
