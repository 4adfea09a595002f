"""A frame of patients, a run on it, and the library's calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner, Result

import rankdad
from rankdad.__main__ import app
from tests.conftest import OPEN, run_document

SCHEMA = {
    "reader": "csv",
    "file": "heart.csv",
    "features": ["age", "chol", "sex"],
    "categorical": {"sex": ["m", "w"]},
    "group": "patient",
    "label": "ill",
    "values": ["0", "1"],
    "missing": "impute",
}


RUN: dict[str, Any] = run_document(
    task={"name": "classification", "classes": 2},
    data=SCHEMA,
    model={"name": "mlp", "hidden": [8], "dropout": 0.2},
    preparation={"standardise": "federated"},
    method={"name": "rank-dad", "rank": 2},
)


SIMULATION = {"policy": OPEN}


def patients(count: int, seed: int) -> pd.DataFrame:
    """A frame as programs have them: numbers with gaps, categories, text."""
    generator = np.random.default_rng(seed)
    age = generator.integers(30, 80, count)
    chol = np.where(generator.random(count) < 0.1, np.nan, generator.normal(200, 30, count))
    return pd.DataFrame(
        {
            "patient": [f"P{seed}-{number}" for number in range(count)],
            "age": age,
            "chol": chol,
            "sex": pd.Categorical(generator.choice(["m", "w"], count)),
            "ill": (age + generator.normal(0, 5, count) > 55).astype(int),
        }
    )


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def simulated(**options: Any) -> rankdad.Run:
    return rankdad.simulate({"run": RUN, "simulation": SIMULATION}, **options)
