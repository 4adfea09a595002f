"""Sites simulated from folders that are there already: read where they are, joined, trained on and predicted from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import DataError, SpecError, UserError
from rankdad.local.prediction import UNKNOWN_SITE, predict_file
from rankdad.simulations.cli import mount
from rankdad.simulations.site_folders import write_sites
from rankdad.simulations.spec import SimulationFile, read_simulation
from tests.conftest import OPEN, run_document, write_site

DATA: dict[str, Any] = {
    "reader": "csv",
    "file": "brains.csv",
    "covariates": "people.csv",
    "key": "subject",
    "features": ["volume", "age", "sex"],
    "categorical": {"sex": ["M", "F"]},
    "label": "group",
    "values": ["control", "patient"],
}


@pytest.fixture
def consortium(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for site, count in (("LEUVEN_1", 40), ("Yale", 30), ("unused", 5)):
        folder = tmp_path / "data" / site
        folder.mkdir(parents=True)
        ill = np.arange(count) % 2
        subjects = [f"{site}_{number:03}" for number in range(count)]
        volumes = generator.normal(size=count) + 4 * ill
        pd.DataFrame({"subject": subjects, "volume": volumes}).to_csv(folder / "brains.csv", index=False)
        sexes, groups = np.where(generator.random(count) < 0.5, "M", "F"), np.where(ill, "patient", "control")
        people = pd.DataFrame({"subject": subjects, "age": generator.random(count), "sex": sexes, "group": groups})
        people.iloc[::-1].to_csv(folder / "people.csv", index=False)
    return tmp_path / "data"


def document(consortium: Path, **run: Any) -> dict[str, Any]:
    federation = {"sites": ["leuven_1", "yale"]}
    task = {"name": "classification", "classes": 2}
    return {
        "run": run_document(**{"task": task, "data": DATA, "federation": federation, "training": {"epochs": 8}} | run),
        "simulation": {
            "source": {"name": "folders", "path": str(consortium)},
            "partition": {"name": "folder"},
            "policy": OPEN,
        },
    }


@pytest.mark.slow
def test_tables_are_trained_on_where_they_are_and_predicted_from(consortium: Path, tmp_path: Path) -> None:
    path, run = tmp_path / "file.json", tmp_path / "run"
    path.write_text(json.dumps(document(consortium)))
    app = typer.Typer()
    mount(app)
    done = CliRunner().invoke(app, ["simulate", str(path), "--lockstep", "--output", str(run)])
    assert done.exit_code == 0, done.output
    assert load_json(run / "summary.json")["metrics"]["test"]["auc"] > 0.9
    assert not list(run.rglob("*.npz"))
    assert not list((run / "sites").rglob("brains.csv"))

    (consortium / "Yale" / "people.csv").write_text("subject,age,sex\nnew,0.5,F\n")
    (consortium / "Yale" / "new.csv").write_text("subject,volume\nnew,4.5\n")
    for data, rows in ((consortium / "LEUVEN_1", 40), (consortium / "Yale" / "new.csv", 1)):
        predict_file(run, data, tmp_path / "out.csv", "final")
        table = pd.read_csv(tmp_path / "out.csv")
        assert len(table) == rows
        label = ["label"] if rows == 40 else []
        assert list(table) == ["subject", *label, "predicted", "probability_control", "probability_patient", "outside"]
    assert table.iloc[0][["subject", "predicted"]].tolist() == ["new", "patient"]


def test_npz_files_may_lie_in_folders_too(tmp_path: Path) -> None:
    for site in ("Alpha", "beta"):
        write_site(tmp_path / "data" / site, 10, 0)
    file = validate(
        SimulationFile,
        document(
            tmp_path / "data",
            task={"name": "classification", "classes": 3},
            data={"shape": [6]},
            federation={"sites": ["alpha", "beta"]},
        ),
    )
    again = [write_sites(file, tmp_path / "sites", "http://127.0.0.1:0", is_written=again) for again in (False, True)]
    assert [config.data for config in again[0].values()] == [str(tmp_path / "data" / s) for s in ("Alpha", "beta")]
    assert again[0] == again[1]


def test_a_site_has_one_folder(consortium: Path, tmp_path: Path) -> None:
    def sites(*names: str) -> None:
        file = validate(SimulationFile, document(consortium, federation={"sites": list(names)}))
        write_sites(file, tmp_path / "sites", "http://127.0.0.1:0")

    def refused(*names: str) -> tuple[str, str, str]:
        with pytest.raises(DataError) as caught:
            sites(*names)
        return caught.value.code, caught.value.field, caught.value.path.name

    assert refused("yale", "leuven_2") == ("site-without-data", "federation.sites", "data")
    (consortium / "YALE").mkdir(exist_ok=True)
    assert refused("yale") == ("site-name-repeated", "federation.sites", "Yale")
    consortium.rename(tmp_path / "elsewhere")
    assert refused("yale") == ("folder-unreadable", "--data", "data")


def test_a_folder_is_found_by_what_a_site_may_be_called(consortium: Path, tmp_path: Path) -> None:
    (consortium / "Yale").rename(consortium / "Universitätsklinikum Köln")
    name = "universitaetsklinikum-koeln"
    file = validate(SimulationFile, document(consortium, federation={"sites": ["leuven_1", name]}))
    configs = write_sites(file, tmp_path / "sites", "http://127.0.0.1:0")
    assert Path(configs[name].data).name == "Universitätsklinikum Köln"


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"partition": {"name": "iid"}}, "simulation.partition", 'got iid, expected {"name": "folder"}'),
        ({"source": {"name": "digits"}}, "simulation.partition", "got folder, expected iid or dirichlet"),
        (
            {"source": {"name": "digits"}, "partition": {"name": "iid"}},
            "simulation",
            "source: digits does not fit data.reader csv: use folders",
        ),
    ],
)
def test_folders_go_with_folders(consortium: Path, changes: dict[str, Any], field: str, said: str) -> None:
    found = document(consortium)
    with pytest.raises(SpecError) as error:
        validate(SimulationFile, found | {"simulation": found["simulation"] | changes})
    assert error.value.field == field
    assert said in str(error.value)


def test_the_partition_of_folders_has_to_be_said(consortium: Path, tmp_path: Path) -> None:
    found = document(consortium)
    del found["simulation"]["partition"]
    with pytest.raises(SpecError, match=r"simulation\.partition: got iid, expected"):
        validate(SimulationFile, found)
    (tmp_path / "file.json").write_text(json.dumps(document(consortium)))
    with pytest.raises(UserError, match="--sites: the source 'folders' has its own"):
        read_simulation(tmp_path / "file.json", [], sites=3)


@pytest.mark.slow
def test_a_model_that_needs_what_a_site_has_found_says_so_where_it_is_not_known(
    consortium: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for standardise in ("federated", "site"):
        path, run = tmp_path / f"{standardise}.json", tmp_path / standardise
        path.write_text(json.dumps(document(consortium, preparation={"standardise": standardise})))
        app = typer.Typer()
        mount(app)
        assert CliRunner().invoke(app, ["simulate", str(path), "--lockstep", "--output", str(run)]).exit_code == 0
        predict_file(run, consortium / "LEUVEN_1", tmp_path / "out.csv", "final")
        assert (UNKNOWN_SITE in capsys.readouterr().err) == (standardise == "site")
