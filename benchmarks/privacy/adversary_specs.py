"""A made-up hospital, and the specs that an adversary who writes them asks it to run."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from rankdad.common.documents import validate
from rankdad.common.models import build_model
from rankdad.common.spec import RunSpec

VICTIM, OTHER, THIRD = "alpha", "beta", "gamma"
STAGES = ("I", "II", "III", "IV", "V")  # of the last two one to five patients each
WARDS = ("north", "south", "east")
LEVELS = {"stage": list(STAGES), "ward": list(WARDS), "sex": ["f", "m"]}
NUMBERS = ("age", "pressure")
FILES, MORE = "patients.csv", "laboratory.csv"
WIDEST = 0.999  # quantile of a number beyond which a unit of chosen weights fires


@dataclass(eq=False)
class Hospital:
    """A hospital's tables, which change between runs.

    Args:
        folder: of the tables.
        rng: draws patients.
        gaps: whether values are missing.
        rows: of patients, by name.
        came: how many there have been.
    """

    folder: Path
    rng: np.random.Generator
    gaps: bool = True
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    came: int = 0

    def admit(self, count: int) -> None:
        """Add patients, few of whom have a rare stage, ward, grade or age."""
        rng = self.rng
        rare = set(rng.choice(count, min(count, 8), replace=False).tolist())
        few = {name: int(rng.integers(1, 6)) for name in ("IV", "V", "east", "old", "gap")}
        for number in range(count):
            self.came += 1
            row: dict[str, Any] = {
                "id": f"P{self.came}",
                "age": int(rng.integers(20, 80)),
                "pressure": round(float(rng.normal(130, 20)), 1),
                "stage": STAGES[int(rng.integers(0, 3))],
                "ward": WARDS[int(rng.integers(0, 2))],
                "sex": "fm"[int(rng.integers(0, 2))],
                "rankin": int(rng.integers(0, 6)),
                "grade": "high" if number in rare else ("low", "middle")[int(rng.integers(0, 2))],
                "score": round(float(rng.normal(50, 10)), 2),
                "marker": round(float(rng.normal(5, 1)), 2),
                "tested": not self.gaps or rng.random() < 0.8,
            }
            for name, column, value in (
                ("IV", "stage", "IV"),
                ("V", "stage", "V"),
                ("east", "ward", "east"),
                ("old", "age", int(rng.integers(85, 100))),
                ("gap", "pressure", "" if self.gaps else row["pressure"]),
            ):
                if rng.random() < few[name] / count:
                    row[column] = value
            self.rows[str(row["id"])] = row
        self.write()

    def correct(self, count: int) -> None:
        """Change one number of some patients."""
        names = self.rng.choice(sorted(self.rows), min(count, len(self.rows)), replace=False).tolist()
        for name in names:
            self.rows[name]["pressure"] = round(float(self.rng.normal(130, 20)), 1)
        self.write()

    def write(self) -> None:
        """Write the tables."""
        self.folder.mkdir(parents=True, exist_ok=True)
        columns = ["id", "age", "pressure", "stage", "ward", "sex", "rankin", "grade", "score"]
        rows = list(self.rows.values())
        for file, names, own in (
            (FILES, columns, rows),
            (MORE, ["id", "marker"], [row for row in rows if row["tested"]]),
        ):
            with (self.folder / file).open("w", newline="") as opened:
                writer = csv.DictWriter(opened, names, extrasaction="ignore")
                writer.writeheader()
                writer.writerows(own)


def ask(rng: np.random.Generator, weights: Path) -> RunSpec:
    """Return a random spec.

    Args:
        rng: draws it.
        weights: folder in which chosen initial weights are put.

    Raises:
        UserError: it is none.
    """

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    solver = one("exact", "auto", "steps", "steps", "steps", "steps", "steps")
    data = _data(rng, few=solver != "steps")
    label = one("rankin", "rankin", "rankin", "grade", "score")
    task: dict[str, Any] = {"name": "classification", "classes": 2}
    if label == "rankin":
        data |= {"label": label, "values": ["no", "yes"], "positive": f"> {one(1, 2, 2, 3, 4)}"}
    elif label == "grade":
        task["classes"] = 3
        data |= {"label": label, "values": ["low", "middle", "high"]}
    else:
        task = {"name": "regression"}
        data |= {"label": label}
    if task["name"] == "classification" and rng.random() < 0.1:
        task["class_weights"] = "balanced"
    evaluation: dict[str, Any] = {"name": one("k-fold", "k-fold", "k-fold", "holdout", "leave-one-site-out")}
    sites = [VICTIM, OTHER]
    if evaluation["name"] == "k-fold":
        evaluation |= {"folds": one(2, 3, 5, 10), "seed": one(0, 1, 2), "stratified": one(True, False)}
        if evaluation["folds"] < 5:
            evaluation["repeats"] = one(1, 1, 2, 3)
    elif evaluation["name"] == "leave-one-site-out":
        sites.append(THIRD)
    model = (
        {"name": "linear"} if solver != "steps" else one({"name": "linear"}, {"name": "mlp", "hidden": [one(2, 3, 8)]})
    )
    references = ("linear",) if evaluation["name"] == "leave-one-site-out" else ("local", "linear", "site")
    evaluation["references"] = [name for name in references if rng.random() < 0.08]
    document = {
        "name": "asked",
        "seed": one(0, 0, 1),
        "task": task,
        "model": model,
        "data": data,
        "preparation": {"standardise": one("none", "none", "federated", "site")},
        "evaluation": evaluation,
        "training": {
            "solver": solver,
            "epochs": one(1, 2, 3),
            "batch_size": one(8, 12, 16, 16, 32, 200),
            "batches": one("even", "full"),
            "optimizer": one(
                {"name": "sgd", "lr": 1e-12},
                {"name": "sgd", "lr": 0.1},
                {"name": "sgd", "lr": 10.0},
                {"name": "adam", "lr": 0.01},
            ),
            "validation": one(0.0, 0.15, 0.2, 0.5),
            "test": one(0.1, 0.2, 0.34),
        },
        "method": one({"name": "dsgd"}, {"name": "dsgd"}, {"name": "rank-dad", "rank": 2}),
        "federation": {"sites": sites},
    }
    if solver == "steps" and rng.random() < 0.1 and evaluation["name"] == "k-fold":
        document["tuning"] = {"weight_decay": [0.0, 0.1]}
        document["training"]["validation"] = 0.2
    spec = validate(RunSpec, document)
    if solver == "steps" and rng.random() < 0.6:
        document["model"] = model | {"pretrained": _chosen(rng, spec, weights)}
        spec = validate(RunSpec, document)
    return spec


def _data(rng: np.random.Generator, *, few: bool) -> dict[str, Any]:
    """Return the columns to read; few if products of all are requested."""
    inputs = [name for name in (*NUMBERS, *LEVELS) if rng.random() < (0.3 if few else 0.7)] or ["age"]
    data: dict[str, Any] = {
        "reader": "csv",
        "file": FILES,
        "key": "id",
        "categorical": {name: list(levels) for name, levels in LEVELS.items() if name in inputs},
        "missing": str(rng.choice(["impute"] * 6 + ["drop"])),
    }
    if rng.random() < 0.1:
        data |= {"covariates": MORE, "missing": "drop"}
        inputs.append("marker")
    if "stage" in inputs and rng.random() < 0.3:
        data["categorical"]["stage"] = list(STAGES[: int(rng.integers(1, 5))])
        data["categorical_other"] = ["stage"]
    if "age" in inputs and rng.random() < 0.3:
        data["clip"] = {"age": [None, int(rng.choice([60, 70, 80, 86]))]}
    if "age" in inputs and rng.random() < 0.25:
        data["missing_values"] = {"age": [str(number) for number in rng.integers(20, 100, int(rng.integers(1, 9)))]}
    if data["missing"] == "impute" and "pressure" in inputs and rng.random() < 0.3:
        data["missing_indicators"] = ["pressure"]
    return data | {"features": inputs}


def _chosen(rng: np.random.Generator, spec: RunSpec, folder: Path) -> dict[str, str]:
    """Put initial weights into a folder: zeros, or units each of which fires for the few beyond a number's bound."""
    state = {name: torch.zeros_like(value) for name, value in build_model(spec).state_dict().items()}
    first = next(name for name in state if name.endswith("weight"))
    bias = first.removesuffix("weight") + "bias"
    hidden = getattr(spec.model, "hidden", None)
    if hidden and "age" in spec.data.inputs:  # type: ignore[union-attr]
        places = spec.data.places  # type: ignore[union-attr]
        at = next(place.first for place in places if place.column == "age")
        state[first][:, at] = 1.0
        state[bias][:] = -torch.from_numpy(rng.integers(70, 96, hidden[0]).astype(np.float32))
        last = [name for name in state if name.endswith("weight")][-1]
        state[last][:] = torch.from_numpy(rng.normal(0, 1e-3, tuple(state[last].shape)).astype(np.float32))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "chosen.safetensors"
    save_file({name: value.contiguous() for name, value in state.items()}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.rename(folder / f"{digest}.safetensors")
    return {"file": f"{digest}.safetensors", "sha256": digest}
