"""Table 1 against pandas on the rows of all sites, and what it warns of before the first step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from rankdad.common.data import read_site
from rankdad.common.policy import EVERYTHING
from rankdad.common.preparation import Preparing
from rankdad.common.preparation.description import sums
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.report.study_table import table_one as study_table
from rankdad.remote.results.run_results import read_results
from rankdad.remote.results.table_one import _outliers, table_one
from rankdad.remote.view import PlainView, Waiting
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, run_spec

DATA = {
    "reader": "csv",
    "file": "table.csv",
    "features": ["age", "weight", "sex"],
    "categorical": {"sex": ["f", "m"]},
    "label": "sick",
    "values": ["no", "yes"],
    "missing": "impute",
}


def spec_of(**changes: Any) -> RunSpec:
    base: dict[str, Any] = {"task": {"name": "classification", "classes": 2}, "data": DATA, "training": {"epochs": 1}}
    return run_spec(**base | changes)


def tables(count: int = 120) -> dict[str, pd.DataFrame]:
    noise, found = np.random.default_rng(0), {}
    for site in SITES:
        sick = noise.random(count) < 0.4
        found[site] = pd.DataFrame(
            {
                "age": noise.normal(60, 10, count) + 5 * sick,
                "weight": noise.normal(80, 12, count),
                "sex": noise.choice(["f", "m"], count),
                "sick": np.where(sick, "yes", "no"),
            }
        )
    return found


def trained(
    spec: RunSpec, found: dict[str, pd.DataFrame], folder: Path, min_rows: int = 1, say: list[str] | None = None
) -> dict[str, Any]:
    data = {}
    for place, (site, table) in enumerate(found.items()):
        (folder / site).mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / site / "table.csv", index=False)
        data[site] = read_site(spec, folder / site, place)
    policy = EVERYTHING.model_copy(update={"min_rows": min_rows})

    def look(aggregator: Aggregator) -> None:
        progress = aggregator.recorder.progress
        if say is not None and not progress.step:
            with console.capture() as shown:
                PlainView(progress, Waiting, console).tick()
            say[:] = shown.get().splitlines()

    console = Console(width=400)
    run(spec, data, folder / "run", policies=dict.fromkeys(found, policy), on_round=look)
    document: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return document


@pytest.mark.slow
@pytest.mark.parametrize(
    "evaluation",
    [{"name": "holdout"}, {"name": "k-fold", "folds": 3, "refit": False}, {"name": "leave-one-site-out"}],
    ids=lambda given: given["name"],
)
def test_table_1_is_that_of_pandas_on_all_rows(tmp_path: Path, evaluation: dict[str, Any]) -> None:
    found = tables()
    for place, table in enumerate(found.values()):
        table.loc[: 10 + 5 * place, "age"] = np.nan
        table.loc[100:103, "sex"] = np.nan
    spec = spec_of(evaluation=evaluation)
    table1 = trained(spec, found, tmp_path)["table1"]
    for name, table in {"pooled": pd.concat(found.values()), **found}.items():
        group = table1["pooled"] if name == "pooled" else table1["sites"][name]
        assert group["rows"] == len(table)
        assert group["label"]["counts"] == [int((table["sick"] == value).sum()) for value in ("no", "yes")]
        for column in ("age", "weight"):
            shown = group["columns"][column]
            assert shown["missing"] == int(table[column].isna().sum())
            assert shown["mean"] == pytest.approx(table[column].mean(), rel=1e-6)  # inputs are float32
            assert shown["sd"] == pytest.approx(table[column].std(), rel=1e-6)
        sex = group["columns"]["sex"]
        assert sex["missing"] == int(table["sex"].isna().sum())
        assert sex["levels"] == table["sex"].value_counts().reindex(["f", "m"]).to_dict()
    assert table1["warnings"] == []


@pytest.mark.slow
def test_other_levels_and_indicators_take_no_place_of_the_columns_after_them(tmp_path: Path) -> None:
    found = tables()
    for table in found.values():
        table.loc[:4, "sex"], table.loc[5:8, "sex"] = "x", np.nan
        table.loc[:10, "age"] = np.nan
    data = {**DATA, "features": ["age", "sex", "weight"], "categorical_other": ["sex"], "missing_indicators": ["*"]}
    for column, shown in trained(spec_of(data=data), found, tmp_path)["table1"]["pooled"]["columns"].items():
        cells = pd.concat(found.values())[column]
        assert shown["missing"] == int(cells.isna().sum()), column
        if column == "sex":
            assert shown["levels"] == {"f": (cells == "f").sum(), "m": (cells == "m").sum(), "any other": 15}
        else:
            assert shown["mean"] == pytest.approx(cells.mean(), rel=1e-6)


@pytest.mark.slow
def test_a_label_that_is_a_number_has_mean_and_deviation(tmp_path: Path) -> None:
    found = tables()
    for table in found.values():
        table["sick"] = np.where(table["sick"] == "yes", 2.5, -1.0) + table["age"] / 7
    found["gamma"]["sick"] += 50
    data = {**DATA, "values": []}
    summary = trained(spec_of(task={"name": "regression"}, data=data), found, tmp_path)
    pooled = pd.concat(found.values())["sick"]
    assert summary["table1"]["pooled"]["label"] == pytest.approx({"mean": pooled.mean(), "sd": pooled.std()}, rel=1e-9)
    assert "gamma" in summary["warnings"]["shifted-label"]


@pytest.mark.slow
def test_what_worries_is_said_before_training(tmp_path: Path) -> None:
    found = tables()
    found["alpha"].loc[:110, "weight"] = np.nan
    found["beta"]["sex"] = "f"
    found["beta"]["age"] *= 10
    found["gamma"]["sick"] = np.where(np.arange(120) < 110, "yes", "no")
    said: list[str] = []
    summary = trained(spec_of(), found, tmp_path, say=said)
    table1 = summary["table1"]
    assert [line.partition("(")[0] for line in table1["warnings"]] == [
        "alpha lacks more than 20 % of weight ",
        "beta has no row with sex = m ",
        "beta may have other units: age is about 10 times larger ",
        "gamma: sick = yes in 92 % of its rows, 35 % at the median hospital: is the label the same?",
    ]
    assert said[-4:] == [f"warning: {line}" for line in table1["warnings"]], "before the first step"
    kinds = {"gaps-over-20-percent": ["alpha"], "levels-absent": ["beta"], "other-units": ["beta"]}
    assert {name: summary["warnings"][name] for name in kinds} == kinds


@pytest.mark.slow
@pytest.mark.parametrize(("outliers", "kind"), [(0, "other-units"), (1, "shifted-columns"), (3, "shifted-columns")])
def test_an_outlier_is_no_unit(outliers: int, kind: str, tmp_path: Path) -> None:
    found = tables()
    if outliers:
        found["beta"].loc[: outliers - 1, "weight"] = 822_462.0
    else:
        found["beta"]["weight"] *= 193
    warned = trained(spec_of(), found, tmp_path)["warnings"]
    assert {name for name in ("other-units", "shifted-columns") if "beta" in warned.get(name, ())} == {kind}


@pytest.mark.parametrize(
    ("field", "place", "value", "said"),
    [
        ("table-counts", 0, 121.0, "table-counts"),
        ("table-rows", 0, 60.0, "table-counts: expected no more than table-rows"),
        ("table-sums", 2, 600.0, "table-sums: expected of a level"),
        ("table-sums", 2, -5.0, "table-sums: expected of a level"),
        ("table-sums", 2, 1.5, "table-sums: expected of a level"),
        ("table-label", 0, 119.0, "table-label: expected classes that add up"),
    ],
)
def test_sums_that_no_table_has_are_refused(tmp_path: Path, field: str, place: int, value: float, said: str) -> None:
    spec, found = spec_of(), tables()
    found["alpha"].to_csv(tmp_path / "table.csv", index=False)
    prepared = read_site(spec, tmp_path, 0)
    preparing = Preparing(spec)
    vector = preparing.contribution("labels", {}, prepared.summed(0), prepared.described())
    assert preparing.check("labels", vector, 120, 120) is None
    start = 0
    for one in preparing._stages["labels"].fields:
        if one.name == field:
            vector[start + place] = value
        start += one.size
    assert said in str(preparing.check("labels", vector, 120, 120))


@pytest.mark.slow
def test_a_policy_lets_nothing_of_few_values_out(tmp_path: Path) -> None:
    """Of few values there is no mean, neither in the sums nor as the difference of two of them."""
    found = tables()
    found["alpha"].loc[5:, "weight"] = np.nan
    spec = spec_of(training={"epochs": 1, "batch_size": 200})
    table1 = trained(spec, found, tmp_path, min_rows=8)["table1"]
    held_back = {"missing": 0, "held_back": True, "mean": None, "sd": None}
    assert table1["sites"]["alpha"]["columns"]["weight"] == held_back
    held = read_site(spec, tmp_path / "beta", 1).splits[0]
    rows = [*held.validation.tolist(), *held.test.tolist()]
    found["beta"].loc[rows[3:], "age"] = np.nan  # three values among what is not trained on
    table1 = trained(spec, found, tmp_path / "again", min_rows=8)["table1"]
    shown, train = table1["sites"]["beta"]["columns"]["age"], found["beta"]["age"].iloc[held.train.tolist()]
    assert shown["mean"] == round(train.mean()), "the three would be what is left of two sums"
    assert (shown["missing"], shown["held_back"]) == (0, True)


@pytest.mark.slow
def test_warnings_say_about_where_counts_are_rounded_and_name_what_is_held_back(tmp_path: Path) -> None:
    """A column of which six patients have a value was in no warning, and 43 of 123 rows were said to be 40."""
    found = tables(123)
    found["alpha"].loc[:42, "weight"] = np.nan
    found["alpha"].loc[6:, "age"] = np.nan
    found["beta"]["sex"] = np.where(np.arange(123) < 2, "m", "f")
    found["gamma"]["age"] = np.nan
    found["gamma"].loc[:3, "weight"] = np.nan  # of which nobody need be told
    spec = spec_of(training={"epochs": 1, "batch_size": 400})
    summary = trained(spec, found, tmp_path, min_rows=8)
    gaps = [line for line in summary["table1"]["warnings"] if "lacks" in line or "no row" in line]
    assert [line.partition(": too")[0].partition(" (5")[0] for line in gaps] == [
        "alpha lacks more than 20 % of weight (about 40 of 123 rows, 33 %)",
        "alpha does not disclose whether it lacks more than 20 % of age",
        "beta has no row, or a few, with sex = m",
        "gamma lacks more than 20 % of age (123 of 123 rows, 100.0 %)",
    ]
    assert summary["warnings"]["gaps-held-back"] == ["alpha"]
    assert "hidden" not in json.dumps(summary["table1"])


@pytest.mark.slow
def test_two_tables_that_differ_by_a_patient_look_alike_to_others(tmp_path: Path) -> None:
    sites = list[dict[str, Any]]()
    for place in range(12):
        found = tables(123)
        for own in found.values():
            own.loc[122, ["age", "weight", "sex", "sick"]] = own.loc[place, ["age", "weight", "sex", "sick"]]
            own.loc[:13, "weight"] = np.nan
        spec = spec_of(training={"epochs": 1, "batch_size": 400})
        table1 = trained(spec, found, tmp_path / str(place), min_rows=8)["table1"]
        sites += table1["sites"].values()
    for shown in sites:
        columns = shown["columns"]
        assert (shown["rows"], columns["weight"]["missing"]) == (123, 10), (
            "14, of which nobody says more than there are"
        )
        assert columns["age"]["mean"] == round(columns["age"]["mean"])
        levels = columns["sex"]["levels"].values()
        assert (min(levels) % 5, sum(levels)) == (0, 123)
    told = {str(shown["columns"]) for shown in sites}
    assert len(told) <= 12, "of 36"


def gap_in(found: dict[str, pd.DataFrame], site: str, column: str, rows: int) -> None:
    found[site].loc[: rows - 1, column] = None


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [False, True])
def test_what_is_held_back_is_not_missing_and_a_small_count_cannot_be_told(tmp_path: Path, held_out: bool) -> None:
    """One gap among 60 rows was "8 (13 %)": what was held out and so held back counted as missing."""
    count = 60
    found = tables(count)
    gap_in(found, "alpha", "age", 1)
    gap_in(found, "alpha", "sex", 3)
    gap_in(found, "beta", "sex", 2)
    found["beta"].loc[2:, "sex"] = np.where(np.arange(count - 2) < 3, "m", "f")
    spec = spec_of(training={"epochs": 1, "batch_size": 200, "validation": 0, "test": 0.15})
    (tmp_path / "beta").mkdir()
    found["beta"].to_csv(tmp_path / "beta" / "table.csv", index=False)
    split = read_site(spec, tmp_path / "beta", 1).splits[0]
    assert len(split.test) == 9
    gaps = [*split.train[:10].tolist(), *split.test[: 2 if held_out else 1].tolist()]
    found["beta"].loc[gaps, "age"] = np.nan  # leaves 7 values, or 8, among what is set aside
    trained(spec, found, tmp_path, min_rows=8)
    run_ = read_results(tmp_path / "run")
    table1 = run_.summary.table1
    alpha, pooled = table1["sites"]["alpha"]["columns"], table1["pooled"]["columns"]
    assert (alpha["age"]["missing"], alpha["age"]["held_back"]) == (0, True)
    beta = table1["sites"]["beta"]["columns"]["age"]
    assert (beta["missing"], "held_back" in beta) == (10, held_out)
    assert pooled["age"]["held_back"]
    assert pooled["age"]["missing"] == sum(site["columns"]["age"]["missing"] for site in table1["sites"].values())
    for site in ("alpha", "beta"):
        sex = table1["sites"][site]["columns"]["sex"]
        assert (sex["missing"], sex["held_back"]) == (0, True)
        hidden = sex["levels_held_back"]
        assert hidden
        left = count - sum(sex["levels"].values())
        lacking = int(found[site]["sex"].isna().sum())
        assert left >= lacking + 8, "what all others leave is of enough rows, however few of them lack it"
        assert all(sex["levels"][level] == 0 for level in hidden)
    assert pooled["sex"]["levels"] == {
        level: sum(site["columns"]["sex"]["levels"][level] for site in table1["sites"].values()) for level in ("f", "m")
    }
    shown = study_table(run_)
    assert shown is not None
    cells = {name: dict(zip(shown.head[1:], row, strict=True)) for name, *row in shown.rows}
    assert cells["age missing"]["alpha"] == "held back"
    assert "or more" in cells["age missing"]["all hospitals"]
    none = "0 (0\N{NO-BREAK SPACE}%)"
    expected = dict.fromkeys(("all hospitals", "alpha", "beta"), "held back") | {"gamma": none}
    assert cells["sex missing"] == expected


@pytest.mark.slow
def test_a_total_of_rounded_counts_is_a_range(tmp_path: Path) -> None:
    """40 were printed of 49 missing values: three counts that were rounded down were added."""
    found = tables()
    for site, gaps in zip(SITES, (13, 17, 19), strict=True):
        gap_in(found, site, "age", gaps)
    trained(spec_of(training={"epochs": 1, "batch_size": 400}), found, tmp_path, min_rows=8)
    rows = study_table(read_results(tmp_path / "run")).rows  # type: ignore[union-attr]
    cells = {name: [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for name, *row in rows}
    assert cells["age missing"] == ["40 to 52 (11 % to 14 %)", "10 (8 %)", "15 (12 %)", "15 (12 %)"]


@pytest.mark.slow
def test_gaps_of_few_patients_are_few_however_many_rows_they_have(tmp_path: Path) -> None:
    found = tables(240)
    for table in found.values():
        table["patient"] = np.arange(240) // 4
    gap_in(found, "alpha", "age", 12)  # of 3 patients
    gap_in(found, "beta", "age", 60)  # of 15
    data = {**DATA, "group": "patient"}
    spec = spec_of(data=data, training={"epochs": 1, "batch_size": 600})
    sites = trained(spec, found, tmp_path, min_rows=5)["table1"]["sites"]
    assert (sites["alpha"]["columns"]["age"]["missing"], "held_back" in sites["alpha"]["columns"]["age"]) == (0, True)
    assert (sites["beta"]["columns"]["age"]["missing"], "held_back" in sites["beta"]["columns"]["age"]) == (60, False)


def two_sites(found: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {site: found[site] for site in SITES[:2]}


@pytest.mark.slow
def test_of_two_sites_that_disagree_both_are_named(tmp_path: Path) -> None:
    """Nobody can say which of the two has other units, zeros for gaps, or another label."""
    federation = {"sites": list(SITES[:2])}
    changes: dict[str, tuple[str, Callable[[pd.DataFrame], Any]]] = {
        "other-units": ("age", lambda table: table["age"] * 10),
        "shifted-columns": ("weight", lambda table: table["weight"] * 0),
        "shifted-label": ("sick", lambda table: np.where(np.arange(120) < 112, "yes", "no")),
    }
    for kind, (column, change) in changes.items():
        for site in SITES[:2]:
            found = two_sites(tables())
            found[site][column] = change(found[site])
            summary = trained(spec_of(federation=federation), found, tmp_path / kind / site)
            assert summary["warnings"] == {kind: list(SITES[:2])}, (kind, site)
            (sentence,) = summary["table1"]["warnings"]
            assert all(name in sentence for name in SITES[:2])
    found = two_sites(tables())
    found["beta"]["sex"] = np.where(np.arange(120) < 110, "f", "m")
    assert trained(spec_of(federation=federation), found, tmp_path / "sex")["warnings"] == {
        "shifted-columns": list(SITES[:2])
    }


@pytest.mark.slow
def test_two_sites_that_have_a_column_are_two_whatever_the_others_have(tmp_path: Path) -> None:
    found = tables()
    found["alpha"]["age"] = np.nan
    found["gamma"]["age"] *= 10
    warnings = trained(spec_of(), found, tmp_path)["warnings"]
    assert warnings == {"gaps-over-20-percent": ["alpha"], "other-units": ["beta", "gamma"]}


def test_one_table_at_two_sites_is_told_by_its_sums_in_any_order(tmp_path: Path) -> None:
    found, spec, sent = tables(), spec_of(), {}
    assert isinstance(spec.data, TableData)
    found["gamma"] = found["alpha"].sample(frac=1, random_state=0)
    for place, (site, table) in enumerate(found.items()):
        (tmp_path / site).mkdir()
        table.to_csv(tmp_path / site / "table.csv", index=False)
        sent[site] = sums(spec.task, read_site(spec, tmp_path / site, place).described(), spec.data)
    assert table_one(spec, sent)["worries"] == {"same-tables": ["alpha", "gamma"]}


def test_a_level_that_a_hospital_keeps_back_is_not_taken_for_none_of_it() -> None:
    """Another was warned of for having as many as it: kept back counted as 0."""
    counts, kept = {"north": [90, 30], "south": [90, 30], "east": [120, 0]}, {"levels_held_back": ["former"]}
    columns = {
        site: {"values": 120, "levels": dict(zip(("never", "former"), own, strict=True))} | (kept if not own[1] else {})
        for site, own in counts.items()
    }
    assert list(_outliers("smoking", columns)) == []
    columns["south"] = {"values": 120, "levels": {"never": 120, "former": 0}} | kept
    assert list(_outliers("smoking", columns)) == []
    columns["north"] = {"values": 120, "levels": {"never": 20, "former": 100}}
    columns["south"] = columns["east"] = {"values": 120, "levels": {"never": 110, "former": 10}}
    assert [where for _, where, _ in _outliers("smoking", columns)] == [("north",)]
