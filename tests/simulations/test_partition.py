"""Samples dealt out to sites: every row once, by column where it is asked for, and as files that sites can read."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.data import read_samples
from rankdad.common.documents import validate
from rankdad.common.errors import DataError, SpecError, UserError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression
from rankdad.simulations.datasets import ArrayDataset
from rankdad.simulations.partition import Dirichlet, Iid, partition, strata
from rankdad.simulations.site_folders import write_sites
from rankdad.simulations.sources import BreastCancer, Diabetes, Digits
from rankdad.simulations.spec import SimulationFile, read_simulation
from tests.conftest import SITES, run_document, run_spec

CSV: dict[str, Any] = {
    "reader": "csv",
    "file": "table.csv",
    "features": ["age"],
    "label": "group",
    "values": ["a", "b"],
}
TWO = {"name": "classification", "classes": 2}
NAMES = [f"site-{number}" for number in range(20)]
ROWS = ["NYU,20,a", "UCLA,30,b", "nyu,40,a", "KKI,50,b", "UCLA,60,a", "NYU,70,b"]


def run_of(sites: int, **changes: Any) -> RunSpec:
    return run_spec(**{"federation": {"sites": NAMES[:sites]}} | changes)


@given(
    count=st.integers(60, 200),
    sites=st.integers(1, 5),
    seed=st.integers(0, 99),
    how=st.sampled_from(["iid", "shares", "dirichlet"]),
    marked=st.booleans(),
)
def test_every_row_is_dealt_once(count: int, sites: int, seed: int, how: str, marked: bool) -> None:
    generator = np.random.default_rng(seed)
    others = {"split": generator.integers(0, 3, count)} if marked else {}
    pool = ArrayDataset("made", np.arange(count)[:, None], generator.integers(0, 3, count), others)
    shares = tuple(1.0 + site for site in range(sites)) if how == "shares" else None
    partitioning = Dirichlet(name="dirichlet", alpha=1.0) if how == "dirichlet" else Iid(shares=shares)
    by_site = partition(pool, partitioning, run_of(sites, seed=seed))
    assert list(by_site) == NAMES[:sites]
    assert sorted(np.concatenate(list(by_site.values())).tolist()) == list(range(count))
    if shares and not marked:
        expected = count * np.array(shares) / sum(shares)
        assert np.abs([len(rows) for rows in by_site.values()] - expected).max() <= 1


@given(count=st.integers(60, 200), sites=st.integers(1, 4), seed=st.integers(0, 99), how=st.sampled_from(["iid", "d"]))
def test_a_patients_rows_go_to_one_site(count: int, sites: int, seed: int, how: str) -> None:
    generator = np.random.default_rng(seed)
    patients = generator.integers(0, count // 3, count)
    ill = generator.integers(0, 3, count // 3)[patients]
    pool = ArrayDataset("made", np.arange(count)[:, None], ill, {"group": patients})
    partitioning = Dirichlet(name="dirichlet", alpha=5.0) if how == "d" else Iid()
    by_site = partition(pool, partitioning, run_of(sites, seed=seed))
    assert sorted(np.concatenate(list(by_site.values())).tolist()) == list(range(count))
    whose = [set(patients[rows].tolist()) for rows in by_site.values()]
    assert sum(map(len, whose)) == len(set().union(*whose))


def test_dirichlet_makes_sites_differ_and_leaves_each_its_minimum() -> None:
    pool = ArrayDataset("made", np.zeros((600, 6)), np.arange(600) % 3)

    def mixes(alpha: float, minimum: int) -> list[Any]:
        by_site = partition(pool, Dirichlet(name="dirichlet", alpha=alpha, minimum=minimum), run_of(4))
        assert min(map(len, by_site.values())) >= minimum
        return [np.bincount(pool.y[rows], minlength=3) / len(rows) for rows in by_site.values()]

    assert max(mix.max() for mix in mixes(0.1, 60)) > 0.8
    assert max(mix.max() for mix in mixes(1000.0, 1)) < 0.45
    with pytest.raises(
        DataError, match=r"600 samples for 4 sites; lower simulation\.partition\.minimum, 150, or raise alpha"
    ):
        mixes(0.1, 150)


def test_rows_are_dealt_by_what_their_task_calls_a_class() -> None:
    numbers = np.append(np.arange(100.0), np.nan)
    tenths = strata(numbers, Regression(name="regression"))
    assert (tenths[-1], np.bincount(tenths[:-1]).tolist()) == (-1, [10] * 10)
    sets = strata(np.array([[0, 1], [1, 1], [0, 1.0]]), MultiLabel(name="multi-label", labels=2))
    assert (sets[0] == sets[2], sets[0] == sets[1]) == (True, False)
    assert strata(np.array([1.0, np.nan]), Classification(classes=2)).tolist() == [1, -1]


def file_of(tmp_path: Path, sites: list[str], rows: list[str], **partition: Any) -> SimulationFile:
    (tmp_path / "all.csv").write_text("\n".join(["SITE_ID,age,group", *rows]) + "\n")
    simulation = {"source": {"name": "table", "path": str(tmp_path / "all.csv")}, "partition": partition}
    run = run_document(task=TWO, data=CSV, federation={"sites": sites})
    return validate(SimulationFile, {"run": run, "simulation": simulation})


def ages(file: SimulationFile, tmp_path: Path) -> dict[str, list[float]]:
    """What sites read of the files that are written for them."""
    configs = write_sites(file, tmp_path / "sites", "http://127.0.0.1:0")
    readings = {site: read_samples(file.run, Path(one.data) / "table.csv") for site, one in configs.items()}
    assert list(pd.read_csv(Path(configs[file.run.federation.sites[0]].data) / "table.csv")) == [
        "SITE_ID",
        "age",
        "group",
    ]
    return {site: np.asarray(found.inputs)[:, 0].tolist() for site, found in readings.items()}


@pytest.mark.parametrize(
    ("rows", "sites", "values", "expected"),
    [
        (ROWS, ["nyu", "ucla"], None, {"nyu": [20, 40, 70], "ucla": [30, 60]}),
        (["10,20,a", "9,30,b", "10,40,a"], ["x", "y"], None, {"x": [30], "y": [20, 40]}),
        (ROWS, ["x", "y"], {"x": ["NYU", "KKI"], "y": ["nyu"]}, {"x": [20, 50, 70], "y": [40]}),
        (["1,20,a", "02,30,b", "1.0,40,a"], ["x", "y"], {"x": [2], "y": [1]}, {"x": [30], "y": [20, 40]}),
    ],
    ids=["by name", "in order", "listed", "numbers"],
)
def test_a_column_says_whose_a_row_is(
    tmp_path: Path, rows: list[str], sites: list[str], values: Any, expected: dict[str, list[float]]
) -> None:
    assert ages(file_of(tmp_path, sites, rows, name="column", column="SITE_ID", values=values), tmp_path) == expected


@pytest.mark.parametrize(
    ("rows", "partition", "said"),
    [
        (ROWS, {"column": "SITE"}, r"all.csv: has no column SITE; did you mean SITE_ID\?"),
        (
            [*ROWS, ",80,a"],
            {},
            "all.csv: row 8, column SITE_ID: is missing, expected the value that assigns the row to a site",
        ),
        (ROWS, {}, r"column SITE_ID has 4 values \(KKI, NYU, UCLA, nyu\), which are not the names of the 3 sites"),
        (ROWS, {"values": {"alpha": ["NYU"]}}, "partition.values: got alpha, expected each of run.federation.sites"),
        (ROWS, {"values": {"alpha": ["NYU"], "beta": ["KKI"], "gamma": ["USM"]}}, "no row holds 'USM', found KKI, NYU"),
        (ROWS, {"values": {"alpha": ["NYU"], "beta": ["NYU"]}}, "values: NYU belongs to both alpha and beta"),
        (["x,20,c"], {}, "all.csv: row 2, column group: holds 'c', expected one of a, b"),
    ],
)
def test_a_column_that_does_not_fit_is_told(
    tmp_path: Path, rows: list[str], partition: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        ages(file_of(tmp_path, list(SITES), rows, **{"name": "column", "column": "SITE_ID"} | partition), tmp_path)


@pytest.mark.parametrize("how", [{"name": "iid"}, {"name": "dirichlet", "alpha": 1.0}])
def test_tables_are_dealt_out_at_random(tmp_path: Path, how: dict[str, Any]) -> None:
    rows = [f"x,{age},{'ab'[age % 2]}" for age in range(60)]
    by_site = ages(file_of(tmp_path, list(SITES), rows, **how), tmp_path)
    assert sorted(itertools.chain(*by_site.values())) == list(range(60))
    assert by_site["alpha"] != sorted(by_site["alpha"])


def test_a_npz_file_is_dealt_out_with_all_that_it_holds(tmp_path: Path) -> None:
    x, y = np.arange(20.0).reshape(10, 2), np.linspace(0, 1, 10)
    np.savez(tmp_path / "all.npz", x=x, y=y, key=[f"s{row}" for row in range(10)], group=np.arange(10) // 2)
    source = {"name": "npz", "path": str(tmp_path / "all.npz")}
    run = run_document(
        task={"name": "regression"}, data={"shape": [2], "file": "own"}, federation={"sites": ["a", "b"]}
    )
    file = validate(SimulationFile, {"run": run, "simulation": {"source": source}})
    for config in write_sites(file, tmp_path / "sites", "http://127.0.0.1:0").values():
        found = read_samples(file.run, Path(config.data) / "own")
        assert found.labels is not None
        assert found.groups is not None
        rows = (np.asarray(found.inputs)[:, 0] / 2).astype(int)
        assert found.labels.tolist() == y[rows].tolist()
        assert (found.keys, found.groups) == (tuple(f"s{row}" for row in rows), tuple(str(row // 2) for row in rows))
    np.savez(tmp_path / "all.npz", x=x, y=y, key=np.arange(9))
    with pytest.raises(DataError, match=r"all.npz: key has shape \[9\] for 10 samples"):
        write_sites(file, tmp_path / "sites", "http://127.0.0.1:0")


def test_scikit_learns_data_sets_are_what_weights_were_measured_on() -> None:
    """Digests of the numbers in their order, whatever the type of a cell; from scikit-learn's own files."""
    digits = Digits(name="digits").load()
    diabetes, cancer = Diabetes(name="diabetes").load().table, BreastCancer(name="breast-cancer").load().table
    assert (digits.x.shape, digits.y.shape) == ((1797, 64), (1797,))
    assert digest(digits.x.tobytes() + digits.y.tobytes()) == "87ff0c9e40dc7e2c"
    assert list(diabetes.frame) == [*("age", "sex", "bmi", "bp"), *(f"s{i}" for i in range(1, 7)), "progression"]
    assert list(cancer.frame)[:11:10] == ["mean radius", "radius error"]
    assert list(cancer.frame)[29:] == ["worst fractal dimension", "diagnosis"]
    lines = ["\n".join(",".join(row) for row in table.frame.to_numpy().tolist()) for table in (diabetes, cancer)]
    assert [digest(text.encode()) for text in lines] == ["e7310e71350ee5f1", "49efda183fd9450a"]
    assert lines[0].startswith("59,2,32.1,101,157,93.2,38,4,4.8598,87,151\n")


@pytest.mark.slow
def test_no_other_source_needs_scikit_learn() -> None:
    code = "import sys, rankdad.simulations.spec as s; assert not {'sklearn', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_scikit_learn_its_data_sets_say_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        UserError, match=r"simulation\.source: digits needs scikit-learn: pip install 'rankdad\[demo\]'"
    ):
        Digits(name="digits").load()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def test_partitions_and_readers_go_with_sources(tmp_path: Path) -> None:
    def check(source: str, partition: Any = None, **run: Any) -> None:
        simulation = {"source": {"name": source} | ({"path": "x"} if source == "table" else {})}
        simulation |= {"partition": partition} if partition else {}
        validate(SimulationFile, {"run": run_document(**{"task": TWO, "data": CSV} | run), "simulation": simulation})

    by_column = {"name": "column", "column": "c"}
    for source in ("diabetes", "breast-cancer", "table"):
        check(source, by_column)
    for said, source, how, run in (
        ("partition: got column, expected iid or dirichlet for the source digits", "digits", by_column, {}),
        ("got folder, expected iid, dirichlet or column for the source table", "table", {"name": "folder"}, {}),
        ("diabetes does not fit data.reader npz: use folders or npz", "diabetes", None, {"data": {"shape": [6]}}),
        (
            "source: table is one table, but data.covariates is a second: use folders",
            *("table", None, {"data": CSV | {"covariates": "more.csv", "key": "id"}}),
        ),
    ):
        with pytest.raises(SpecError, match=said):
            check(source, how, **run)
    (tmp_path / "file.json").write_text(json.dumps({"simulation": {"source": {"name": "diabetes"}}}))
    with pytest.raises(SpecError, match="the source 'diabetes' comes with its data and takes no file"):
        read_simulation(tmp_path / "file.json", [], data=tmp_path)


def test_an_option_beside_a_source_whose_name_is_no_name_is_refused_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"run": {}, "simulation": {"source": {"name": ["digits"]}}}')
    with pytest.raises(SpecError):
        read_simulation(tmp_path / "file.json", [], data=tmp_path)
