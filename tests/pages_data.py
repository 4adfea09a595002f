"""Data and specifications for the commands of the documentation's pages: `python -m tests.pages_data NAME`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

SITES = {"hospital-a": (0, 221), "hospital-b": (221, 368), "hospital-c": (368, 442)}


def heart() -> None:
    """Write `hospitals` as docs/how-to/tables.md describes them."""
    generator = np.random.default_rng(0)
    for name in ("aachen", "bern"):
        rows = 150
        table = pd.DataFrame(
            {
                "age": generator.integers(30, 80, rows),
                "sex": generator.choice(["m", "f"], rows),
                "chol": generator.normal(220, 40, rows).round(1),
            }
        )
        table["num"] = (table["age"] + generator.normal(0, 10, rows) > 55).astype(int) * generator.integers(1, 4, rows)
        folder = Path("hospitals", name)
        folder.mkdir(parents=True)
        table.to_csv(folder / "heart.csv", index=False)


def notes() -> None:
    """Write notes beside the tables in `hospitals`."""
    generator = np.random.default_rng(0)
    words = {"no": ["calm", "fine", "resting", "pain"], "yes": ["pain", "fever", "worse", "fine"]}
    for name in ("bonn", "kiel"):
        labels = generator.choice(list(words), 120)
        texts = [" ".join((*generator.choice(["seen", "today", "by", "ward"], 8), *generator.choice(words[label], 2)))
                 for label in labels]  # fmt: skip
        folder = Path("hospitals", name)
        folder.mkdir(parents=True)
        pd.DataFrame({"note": texts, "ill": labels}).to_csv(folder / "notes.csv", index=False)


def diabetes() -> None:
    """Write `data`, a folder for each of three hospitals, and a run of a network on it as `RUN.json`."""
    from sklearn.datasets import load_diabetes

    table = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    for name, (first, last) in SITES.items():
        folder = Path("data", name)
        folder.mkdir(parents=True)
        table[first:last].to_csv(folder / "patients.csv", index=False)
    features = [name for name in table if name != "progression"]
    run = {
        "name": "diabetes",
        "task": {"name": "regression"},
        "data": {"reader": "csv", "file": "patients.csv", "features": features, "label": "progression"},
        "preparation": {"standardise": "federated"},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"epochs": 10, "batch_size": 16, "validation": 0.1, "optimizer": {"name": "adam", "lr": 0.01}},
        "method": {"name": "rank-dad", "rank": 2},
        "federation": {"sites": list(SITES)},
    }
    Path("RUN.json").write_text(json.dumps(run))


if __name__ == "__main__":
    {"heart": heart, "notes": notes, "diabetes": diabetes}[sys.argv[1]]()
