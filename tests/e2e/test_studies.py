"""What is promised of cross-validated studies, measured with real processes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from sklearn.metrics import roc_auc_score

from common.documents import load_json
from simulations.bench.studies import bench_studies
from tests.conftest import SHARED
from tests.e2e.test_processes import ROOT, rankdad

SPECS = ROOT / "simulations" / "specs"
ABIDE = SHARED / "abide_freesurfer"
CANCER = """{
    "run": {
        "name": "cancer",
        "task": {"name": "classification", "classes": 2},
        "model": {"name": "mlp", "hidden": [16]},
        "data": {"reader": "csv", "file": "data.csv", "features": ["mean radius", "mean texture", "mean smoothness"],
                 "label": "diagnosis", "values": ["malignant", "benign"]},
        "preparation": {"standardise": "federated"},
        "evaluation": {"name": "k-fold", "folds": 3, "stratified": true},
        "training": {"epochs": 3, "batch_size": 16, "validation": 0.2, "early_stopping": {"patience": 2},
                     "optimizer": {"name": "adam", "lr": 0.01}},
        "method": {"name": "rank-dad", "rank": 2},
        "federation": {"sites": ["alpha", "beta", "gamma"]}
    },
    "simulation": {"source": {"name": "breast-cancer"}, "partition": {"name": "iid", "shares": [3, 2, 1]}}
}"""


@pytest.fixture(scope="module")
def cancer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cancer")
    (folder / "cancer.json").write_text(CANCER)
    done = rankdad("simulate", folder / "cancer.json", "--output", folder / "run", timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def predictions(run: Path) -> pd.DataFrame:
    return pd.concat(pd.read_csv(path) for path in sorted(run.glob("sites/*/predictions/fold-*.csv")))


def test_the_pooled_auc_is_that_of_all_scores_together(cancer: Path) -> None:
    table = predictions(cancer / "run")
    assert len(table) == 569
    test = load_json(cancer / "run" / "summary.json")["metrics"]["test"]
    exact = roc_auc_score(table["label"] == "benign", table["probability_benign"])
    assert test["samples"] == 569
    assert abs(test["auc"] - exact) <= 1e-3
    assert test["accuracy"] == pytest.approx((table["label"] == table["predicted"]).mean())


def test_the_same_spec_gives_the_same_folds_and_weights(cancer: Path) -> None:
    done = rankdad("simulate", cancer / "cancer.json", "--output", cancer / "again", timeout=120)
    assert done.returncode == 0, done.stderr
    digests = [load_json(cancer / name / "summary.json")["weights_sha256"] for name in ("run", "again")]
    assert digests[0] == digests[1]
    assert predictions(cancer / "run").equals(predictions(cancer / "again"))


def test_a_model_that_was_kept_scores_another_hospital(cancer: Path) -> None:
    """Columns in another order, one that is not asked for, and no labels."""
    table = pd.read_csv(cancer / "run" / "sites" / "beta" / "data" / "data.csv")
    new = table.drop(columns="diagnosis").sample(frac=1, random_state=0)[:20]
    new[sorted(new.columns, reverse=True)].to_csv(cancer / "new.csv", index=False)
    scores = []
    for directory in (cancer / "run", cancer / "run" / "sites" / "alpha"):
        done = rankdad("predict", directory, cancer / "new.csv", "--output", cancer / "scores.csv")
        assert done.returncode == 0, done.stderr
        scores.append(pd.read_csv(cancer / "scores.csv"))
    assert len(scores[0]) == 20
    assert scores[0].equals(scores[1])
    right = scores[0]["predicted"].to_numpy() == table.loc[new.index, "diagnosis"].to_numpy()
    assert right.mean() > 0.7


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.shared_data
@pytest.mark.timeout(400)
def test_brain_age_of_twenty_hospitals() -> None:
    if not ABIDE.exists():
        pytest.skip(f"{ABIDE} is not there")
    federated, together = bench_studies([SPECS / "brain_age.json"], [], ABIDE, [0], Console(width=150))
    assert federated["way"] == "20 processes"
    assert federated["test"]["samples"] == 1035
    assert federated["test"]["pearson_r"] >= 0.855
    assert federated["test"]["mae"] <= 2.8
    assert abs(federated["test"]["pearson_r"] - together["test"]["pearson_r"]) <= 0.005
    assert abs(federated["test"]["mae"] - together["test"]["mae"]) <= 0.05
    assert federated["baseline"]["pearson_r"] == pytest.approx(0.70, abs=0.02)  # of the site's training mean alone
    assert federated["within_sites"]["pearson_r"] < federated["test"]["pearson_r"]
    assert federated["seconds"] < 120
