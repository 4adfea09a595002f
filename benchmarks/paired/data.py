"""Real data partitioned among hospitals, for tests of intervals of differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import validate
from rankdad.common.spec import RunSpec

FILE, LABEL, GROUP = "rows.csv", "label", "patient"
HEART = ("cleveland", "hungarian", "switzerland", "va")
CLASSES: dict[str, Any] = {"task": {"name": "classification", "classes": 2}}
NUMBER: dict[str, Any] = {"task": {"name": "regression"}}
MLP: dict[str, Any] = {"name": "mlp", "hidden": [16]}
REFERENCES = ["linear", "site"]


def breast_cancer() -> list[pd.DataFrame]:
    """569 biopsies at three hospitals."""
    return _dealt(_frame(datasets.load_breast_cancer(return_X_y=True)), 3)


def digits() -> list[pd.DataFrame]:
    """1,797 handwritten digits at three hospitals: which are 5 or more."""
    pixels, digit = datasets.load_digits(return_X_y=True)
    return _dealt(_frame((pixels[:, (pixels > 0).mean(axis=0) > 0.05], (digit > 4).astype(int))), 3)


def diabetes() -> list[pd.DataFrame]:
    """442 patients' progression of diabetes at three hospitals."""
    return _dealt(_frame(datasets.load_diabetes(return_X_y=True)), 3)


def visits() -> list[pd.DataFrame]:
    """The biopsies again, each patient seen 1 to 4 times: rows of one patient are much alike."""
    rng, once = np.random.default_rng(0), breast_cancer()
    found = []
    for table in once:
        inputs = [str(name) for name in table if name != LABEL]
        often = table.loc[table.index.repeat(rng.integers(1, 5, len(table)))].copy()
        often[GROUP] = [f"p{place}" for place in often.index]
        often[inputs] += 0.3 * once[0][inputs].std().to_numpy() * rng.normal(size=(len(often), len(inputs)))
        found.append(often.reset_index(drop=True))
    return found


def heart(folder: Path) -> list[pd.DataFrame]:
    """UCI heart disease at its four hospitals: 920 patients, gaps where there are some."""
    names = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
    found = []
    for site in HEART:
        table = pd.read_csv(folder / f"processed.{site}.data", header=None, na_values="?")
        rows = table.iloc[:, : len(names)].set_axis(names, axis=1)
        rows[LABEL] = (table.iloc[:, -1] > 0).astype(int)
        found.append(rows)
    return found


def abide(folder: Path, label: str) -> list[pd.DataFrame]:
    """ABIDE I at its twenty sites: 1,035 people, volumes of the brain, and sex, autism or age."""
    found = []
    for site in sorted(one for one in folder.iterdir() if one.is_dir()):
        both = pd.read_csv(site / "freesurfer.csv").merge(pd.read_csv(site / "participants.csv"), on="subject")
        inputs = both.loc[:, "Left-Lateral-Ventricle":"IntraCranialVol"]
        known = (both["sex"] == "M").astype(int) if label == "sex" else both[label]
        found.append(inputs.assign(**{LABEL: known}))
    return found


def written(tables: list[pd.DataFrame], folder: Path, task: dict[str, Any]) -> tuple[RunSpec, dict[str, SiteData]]:
    """Return a cross-validated run on tables, and each site's data.

    Args:
        tables: of the sites.
        folder: where they are written.
        task: of the run.
    """
    sites = [f"site-{place}" for place in range(len(tables))]
    names = [name for name in tables[0] if name not in (LABEL, GROUP)]
    data: dict[str, Any] = {"reader": "csv", "file": FILE, "features": names, "label": LABEL, "missing": "impute"}
    data |= {"group": GROUP} if GROUP in tables[0] else {}
    data |= {"values": [0, 1]} if task is CLASSES else {}
    spec = validate(
        RunSpec,
        {
            "name": "compared",
            **task,
            "model": MLP,
            "data": data,
            "preparation": {"standardise": "federated"},
            "evaluation": {"name": "k-fold", "folds": 3, "refit": False, "references": REFERENCES},
            "training": {"epochs": 6, "batch_size": 32, "optimizer": {"name": "adam", "lr": 0.01}},
            "method": {"name": "dsgd"},
            "federation": {"sites": sites},
        },
    )
    read = {}
    for place, (site, table) in enumerate(zip(sites, tables, strict=True)):
        (folder / site).mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / site / FILE, index=False)
        read[site] = read_site(spec, folder / site, place)
    return spec, read


def _frame(pair: tuple[Any, Any]) -> pd.DataFrame:
    inputs, label = pair
    table = pd.DataFrame(inputs, columns=[f"x{place}" for place in range(inputs.shape[1])])
    table[LABEL] = label
    return table


def _dealt(table: pd.DataFrame, sites: int) -> list[pd.DataFrame]:
    of = np.random.default_rng(0).permutation(len(table)) % sites
    return [table[of == site].reset_index(drop=True) for site in range(sites)]
