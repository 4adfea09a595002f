"""The specifications in docs/how-to/coinstac.md, pasted as they stand and run on data such as they describe."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest

from rankdad.platforms.coinstac.inputs import read
from tests.platforms.nodes import Iterations

DOCS = Path(__file__).parent.parent.parent / "docs" / "how-to" / "coinstac.md"
BLOCKS = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)]
SPECS = {block["name"]: block for block in BLOCKS if "task" in block}


def test_there_are_three() -> None:
    assert list(SPECS) == ["unseen hospitals", "brain age", "volumes"]
    for spec in SPECS.values():
        assert not read({"spec": spec}).problems
        assert not read({"spec": json.dumps(spec)}).problems


def write(folder: Path, name: str, seed: int) -> list[str]:
    """Write data that a specification describes, and return the files that a member chooses."""
    generator, rows = np.random.default_rng(seed), 60 if name == "volumes" else 160
    if name == "volumes":
        table = pd.DataFrame({"file": [f"{row}.nii" for row in range(rows)], "group": ["control", "patient"] * 30})
        for row in range(rows):
            volume = generator.normal(row % 2, 1, (16, 16, 16)).astype("float32")
            nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / f"{row}.nii")
        table.to_csv(folder / "scans.csv", index=False)
        return ["scans.csv", *table["file"]]
    columns = ["age", "s1", "s2", "volume", *(f"area{number}" for number in range(8 * (name == "brain age")))]
    table = pd.DataFrame(generator.normal(size=(rows, len(columns))), columns=columns)
    if name == "brain age":
        table["subject"] = [f"P{row}" for row in range(rows)]
        table["sex"] = generator.choice(["F", "M"], rows)
    else:
        table["diagnosis"] = np.where(table["s1"] > 0, "malignant", "benign")
    table.to_csv(folder / "mine.csv", index=False)
    return ["mine.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_an_example_runs(tmp_path: Path, name: str) -> None:
    spec: dict[str, Any] = SPECS[name]
    inputs = {}
    for place, client in enumerate(("b2", "a1", "c3")):
        base = tmp_path / client / "base"
        base.mkdir(parents=True)
        files = write(base, name, place)
        spec = spec | {"training": spec["training"] | {"epochs": 1}}
        inputs[client] = {"files": files, "min_rows": 4, "max_rank": 8, "spec": spec}
    shown = Iterations(tmp_path, inputs).go()
    assert shown["global_metrics"]["samples"] > 0
