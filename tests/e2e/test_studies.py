"""What is promised of cross-validated studies, measured with real processes."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from sklearn.metrics import roc_auc_score

from benchmarks.studies import bench_studies
from rankdad.common.documents import load_json
from tests.conftest import SHARED, run_document, write_policy
from tests.e2e.test_processes import ROOT, rankdad, site_file, start, wait_for_line

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


@pytest.mark.slow
def test_the_pooled_auc_is_that_of_all_scores_together(cancer: Path) -> None:
    table = predictions(cancer / "run")
    assert len(table) == 569
    test = load_json(cancer / "run" / "summary.json")["metrics"]["test"]
    exact = roc_auc_score(table["label"] == "benign", table["probability_benign"])
    assert test["samples"] == 569
    assert abs(test["auc"] - exact) <= 1e-3
    assert test["accuracy"] == pytest.approx((table["label"] == table["predicted"]).mean())


@pytest.mark.exhaustive
def test_the_same_spec_gives_the_same_folds_and_weights(cancer: Path) -> None:
    done = rankdad("simulate", cancer / "cancer.json", "--output", cancer / "again", timeout=120)
    assert done.returncode == 0, done.stderr
    digests = [load_json(cancer / name / "summary.json")["weights_sha256"] for name in ("run", "again")]
    assert digests[0] == digests[1]
    assert predictions(cancer / "run").equals(predictions(cancer / "again"))


@pytest.mark.slow
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


@pytest.mark.exhaustive
@pytest.mark.shared_data
@pytest.mark.timeout(900)  # 45 s on two quiet cores
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


VOLUMES = "subject,volume\n" + "".join(f"s{n},{n}\n" for n in range(8))
PEOPLE = "subject,ill\n" + "".join(f"s{n},{'yes' if n % 2 else 'no'}\n" for n in range(8))
CELL = "Jane Roe"  # stands where it should not, and nobody outside may read it
BAD: dict[str, tuple[str, str, str, str]] = {
    # the file, what stands in it, what takes its place, what is said
    "alpha": (
        "volumes.csv",
        "s3,3",
        f"s3,{CELL}",
        "row 5, column volume: holds {}, expected a finite number of at most 3e+38",
    ),
    "beta": ("people.csv", "s3,yes", f"s3,{CELL}", "row 5, column ill: holds {}, expected one of no, yes"),
    "gamma": (
        "volumes.csv",
        "s3,3",
        f"{CELL},3",
        "row 5, column subject: 1 of 8 keys are not in people.csv, the first is {}; complete the tables, or set "
        "data.missing to drop",
    ),
}


def hospital(folder: Path, **tables: str) -> Path:
    """Write the tables of a site, good ones where no others are given."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for name, text in ({"volumes": VOLUMES, "people": PEOPLE} | tables).items():
        (folder / "data" / f"{name}.csv").write_text(text)
    return folder


@pytest.mark.slow
def test_bad_data_are_named_at_the_site_and_at_the_aggregator_before_the_first_step(tmp_path: Path) -> None:
    """The aggregator hears of all of them, but for the cell, and of a policy's refusal, and waits."""
    tables = {"reader": "csv", "file": "volumes.csv", "covariates": "people.csv", "key": "subject"}
    document = run_document(
        task={"name": "classification", "classes": 2},
        data=tables | {"features": ["volume"], "label": "ill", "values": ["no", "yes"]},
        training={"batch_size": 100},
    )
    (tmp_path / "run.json").write_text(json.dumps(document))
    processes = [aggregator := start("aggregator", tmp_path / "run.json", "--output", tmp_path / "run", "--port", 0)]
    try:
        address = wait_for_line(aggregator, "listening on").split(";")[0].removeprefix("listening on ").strip()
        for site, (file, old, new, _) in BAD.items():
            good = {"volumes.csv": VOLUMES, "people.csv": PEOPLE}[file]
            folder = hospital(tmp_path / site, **{file.removesuffix(".csv"): good.replace(old, new)})
            processes.append(start("site", site_file(folder, name=site, aggregator=address)))
        for process, (site, (file, _, _, said)) in zip(processes[1:], BAD.items(), strict=True):
            _, err = process.communicate(timeout=60)
            named = tmp_path / site / "data" / file
            assert process.returncode == 2
            assert err.startswith(f"error: {named}: {said.format(repr(CELL))}")
            assert err.count("\n") == 1
        assert aggregator.poll() is None
        policy = write_policy(hospital(tmp_path / "alpha"), min_rows=50)
        done = rankdad("site", site_file(tmp_path / "alpha", aggregator=address, policy=policy))
        assert done.returncode == 2
        assert done.stderr.startswith(
            "error: training.batch_size: the run makes steps of 5 samples here, but this site's policy allows none of "
            "fewer than 50 (min_rows), which larger batches or no validation would respect; "
            '"min_rows": 5 in its policy lets out sums over fewer samples: '
        )
        aggregator.send_signal(signal.SIGTERM)
        out, err = aggregator.communicate(timeout=10)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for site in BAD:
        assert f"\n{site} cannot take part: " in out
    assert "\nalpha cannot take part: training.batch_size: steps-of-too-few (" in out
    assert not re.search(rf"row \d|volumes\.csv|people\.csv|{re.escape(CELL)}", out)
    assert (aggregator.returncode, err.splitlines()[-1].partition(";")[0]) == (130, "error: stopped by SIGTERM")
    summary = load_json(tmp_path / "run" / "summary.json")
    assert (summary["status"], summary["steps"]) == ("interrupted", 0)
    assert summary["problems"]["alpha"].startswith("training.batch_size: steps-of-too-few")
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert written
    assert not any(CELL.encode() in words for words in (out.encode(), *written))
