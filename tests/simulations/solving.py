"""Members of unequal size whose runs are solved exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import Tensor

from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import load_json
from rankdad.common.policy import MinLevel, Policy
from rankdad.common.spec import RunSpec
from rankdad.simulations.lockstep import run

SIZES = {"large": 640, "middle": 210, "small": 24}
ADMITS_24 = Policy(min_rows=1, min_level=MinLevel(count=1), rows_per_rank=None)  # a fold holds out 4 of 24 rows
COLUMNS = ["age", "bp", "bmi", "sugar", "rate"]
TASKS: dict[str, dict[str, Any]] = {"sick": {"name": "classification", "classes": 2}, "days": {"name": "regression"}}


def table(count: int, seed: int) -> pd.DataFrame:
    drawn = np.random.default_rng(seed)
    frame = pd.DataFrame(drawn.normal([60, 130, 27, 5, 70], [10, 20, 4, 1, 12], (count, 5)).round(2), columns=COLUMNS)
    score = ((frame - frame.mean()) / frame.std()).to_numpy() @ np.array([0.8, -0.4, 0.5, 0.0, 0.2])
    frame["sick"] = np.where(drawn.random(count) < 1 / (1 + np.exp(0.5 - score)), "yes", "no")
    frame["days"] = (9 + 3 * score + drawn.normal(0, 2, count)).round(2)
    return frame


def document(label: str, **changes: Any) -> dict[str, Any]:
    data = {"reader": "csv", "file": "t.csv", "features": COLUMNS, "label": label}
    return {
        **{"name": "members", "task": TASKS[label], "preparation": {"standardise": "federated"}},
        "data": data | ({"values": ["no", "yes"]} if label == "sick" else {}),
        "evaluation": {"name": "k-fold", "folds": 5, "stratified": True},
        "federation": {"sites": list(SIZES)},
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("members")
    for seed, (site, count) in enumerate(SIZES.items()):
        (made / site).mkdir()
        table(count, seed).to_csv(made / site / "t.csv", index=False)
    return made


def trained(
    folder: Path, output: Path, spec: RunSpec, policies: Mapping[str, Policy] | Policy = ADMITS_24
) -> tuple[dict[str, Any], dict[str, SiteData], dict[tuple[str, int], Tensor]]:
    data = {site: read_site(spec, folder / site, place) for place, site in enumerate(SIZES)}
    found: dict[tuple[str, int], Tensor] = {}

    def tested(site: str, fold: int, outputs: Tensor) -> None:
        found[site, fold] = outputs

    each = policies if isinstance(policies, Mapping) else dict.fromkeys(SIZES, policies)
    run(spec, data, output, policies=each, tested=tested)
    summary: dict[str, Any] = load_json(output / "summary.json")
    return summary, data, found
