"""What members' tables and limits do to a run: said to every member and the owner alike, in the words of the form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rankdad.common.errors import RankdadError
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.platforms.coinstac import inputs as form
from rankdad.platforms.coinstac.compspec import compspec
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.mounts import find_member
from rankdad.platforms.coinstac.site_node import SiteNode
from rankdad.platforms.coinstac.site_run import read_data
from tests.conftest import run_spec
from tests.platforms.nodes import Iterations, site_file

SPEC_KEY = re.compile(r"\b(data|training|method|evaluation|preparation|federation)\.[a-z]")
ROWS = {"c1": 90, "b2": 60, "a3": 40}


def hospitals(folder: Path, rows: Mapping[str, int] = ROWS, **form: Any) -> dict[str, dict[str, Any]]:
    """Members with a table of patients and controls each, and the owner's fields."""
    inputs = {}
    for place, (client, count) in enumerate(rows.items()):
        generator = np.random.default_rng(place)
        case, age = generator.permutation(np.arange(count) % 2), generator.normal(50, 8, count)
        columns = {
            "age": age + 6 * case,
            "dose": generator.normal(20, 2, count),
            "sex": generator.choice(["f", "m"], count),
        }
        columns |= {"group": np.where(case, "Case", "control")}
        (folder / client / "base").mkdir(parents=True)
        write(folder, client, pd.DataFrame(columns))
        inputs[client] = {"files": ["t.csv"], "label": "group", "epochs": 1, "evaluation": "holdout", **form}
    return inputs


def write(folder: Path, client: str, table: pd.DataFrame) -> None:
    table.to_csv(folder / client / "base" / "t.csv", index=False)


def table(folder: Path, client: str) -> pd.DataFrame:
    return pd.read_csv(folder / client / "base" / "t.csv", dtype=str)


def refused(folder: Path, inputs: dict[str, dict[str, Any]], most: int = 4) -> RankdadError:
    with pytest.raises(RankdadError) as raised:
        Iterations(folder, inputs).go(most)
    assert not SPEC_KEY.search(str(raised.value)), str(raised.value)
    for client in inputs:
        path = folder / client / "output" / "error.txt"
        assert not path.exists() or not SPEC_KEY.search(path.read_text()), path.read_text()
    return raised.value


@pytest.mark.parametrize("field", ["label", "categorical"])
def test_members_that_write_a_value_in_another_way_are_named_before_training(tmp_path: Path, field: str) -> None:
    inputs = hospitals(tmp_path, categorical="sex")
    name, ways = ("group", {"Case": "case"}) if field == "label" else ("sex", {"f": "F", "m": "M"})
    own = table(tmp_path, "b2")
    own[name] = own[name].replace(ways)
    write(tmp_path, "b2", own)
    run = Iterations(tmp_path, inputs)
    with pytest.raises(FormError) as raised:
        run.go(2)
    assert (raised.value.code, raised.value.field) == ("values-spelled-apart", field)
    assert "(a3, c1)" in str(raised.value)
    assert "(b2)" in str(raised.value)
    assert len(run.outputs) == 1, "before anything is trained"


def test_a_table_that_writes_a_value_in_two_ways_is_refused_without_its_values(tmp_path: Path) -> None:
    inputs = hospitals(tmp_path)
    own = table(tmp_path, "b2")
    own.loc[own.index[own["group"] == "Case"][:3], "group"] = "CASE"
    write(tmp_path, "b2", own)
    error = refused(tmp_path, inputs)
    assert (error.code, error.field) == ("values-spelled-apart", "label")
    assert "b2: " in str(error)
    assert "CASE" not in str(error), "three rows are fewer than may be told of"
    assert "CASE" in (tmp_path / "b2" / "output" / "error.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "cells", "told"),
    [("dose", 20, True), ("dose", 4, False), ("group", 20, True), ("comment", 20, False)],
)
def test_codes_of_missing_values_are_named_to_member_and_owner(
    tmp_path: Path, column: str, cells: int, told: bool
) -> None:
    """A column that is no input is nobody's business; of fewer rows than the limit the member alone hears."""
    number = column == "dose" and cells == 20
    form: dict[str, Any] = {"label": "dose", "task": "regression"} if number else {}
    inputs = hospitals(tmp_path, features="age" if number else "age, dose", **form)
    for client in inputs:
        own = table(tmp_path, client).replace({"Case": "1", "control": "0"})
        own["comment"] = [str(row) for row in range(len(own))]
        if client == "c1":
            own.loc[own.index[:cells], column] = "-9"
        write(tmp_path, client, own)
    said: list[str] = []

    class Heard(Iterations):
        def start(self, client: str) -> None:
            super().start(client)
            if client == "c1":
                self.nodes[client] = SiteNode(say=said.append)

    lines = [line for line in Heard(tmp_path, inputs).go()["warnings"].values() if " has -9 " in line]
    assert len(lines) == told
    for line in lines:
        assert line.startswith("c1: ")
        assert column in line
        assert not re.search(r"\d\d", line.replace("c1", "")), "and no count"
    own_log = [line for line in said if " has -9 " in line]
    assert [f"({cells} rows)" in line for line in own_log] == ([True] if column != "comment" else [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("listed", [False, True])
def test_codes_of_missing_values_are_named_under_a_whole_specification_too(tmp_path: Path, listed: bool) -> None:
    data = {"reader": "csv", "file": "x.csv", "features": ["age", "d*"], "label": "group"}
    data |= {"values": ["control", "Case"], "missing": "impute"} | ({"missing_values": ["-9"]} if listed else {})
    spec = {"name": "whole", "task": {"name": "classification", "classes": 2}, "data": data}
    inputs = {client: {"files": ["t.csv"], "spec": spec} for client in hospitals(tmp_path)}
    own = table(tmp_path, "c1")
    own.loc[own.index[:20], "dose"] = "-9"
    write(tmp_path, "c1", own)
    lines = [line for line in Iterations(tmp_path, inputs).go()["warnings"].values() if " has -9 " in line]
    assert [line.startswith("c1: column dose ") for line in lines] == [True] * (not listed)


def test_a_method_that_default_limits_refuse_is_the_owners_to_change(tmp_path: Path) -> None:
    error = refused(tmp_path, hospitals(tmp_path, method="powersgd"))
    assert (error.code, error.field) == ("method-refused", "method")
    (line,) = str(error).splitlines()
    assert line.startswith("owner: Method (method): ")
    assert "rank-dad" in line


def test_a_method_that_one_member_refuses_names_it(tmp_path: Path) -> None:
    inputs = hospitals(tmp_path, method="powersgd")
    for client in ("c1", "b2"):
        site_file(tmp_path / client / "base", policy={"rows_per_rank": None, "methods": ["powersgd"]})
        inputs[client]["files"] = ["t.csv", "site.json"]
    error = refused(tmp_path, inputs)
    assert (error.code, error.field) == ("method-refused", "method")
    assert "(at a3)" in str(error)


def test_a_member_with_too_few_rows_hears_what_its_limit_is_and_nobody_how_many_it_has(tmp_path: Path) -> None:
    inputs = hospitals(tmp_path, {"c1": 90, "b2": 60, "a3": 11})
    error = refused(tmp_path, inputs)
    assert (error.code, error.field) == ("steps-of-too-few", "min_rows")
    assert "a3: Fewest rows" in str(error)
    assert " 8, " in str(error)
    assert not re.search(r"\b(7|11)\b", str(error))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rare", "clients"),
    [("o", ["a3"]), ("prefers not to say", ["a3"]), ("o", ["a3", "b2"])],
    ids=["a letter", "several words", "at two members"],
)
def test_a_rare_third_level_is_advised_in_the_forms_words(tmp_path: Path, rare: str, clients: list[str]) -> None:
    inputs = hospitals(tmp_path, categorical="sex")
    for client in clients:
        own = table(tmp_path, client)
        own.loc[5, "sex"] = rare
        write(tmp_path, client, own)
    error = refused(tmp_path, inputs)
    for client in clients:
        assert f"{client}: " in str(error)
        assert f"sex = f | m | {rare}" in (tmp_path / client / "output" / "error.txt").read_text()
    assert str(error).count("data-refused") == len(clients)
    assert rare == "o" or rare not in str(error), "others do not hear what a patient's table says"
    if len(clients) > 1 or rare != "o":
        return
    named = {client: given | {"categorical": "sex = f | m | o"} for client, given in hospitals(tmp_path / "b").items()}
    for client in named:
        write(tmp_path / "b", client, table(tmp_path, client))
    assert Iterations(tmp_path / "b", named).go()["global_metrics"]["samples"]


def test_a_word_among_numbers_is_advised_in_the_forms_words(tmp_path: Path) -> None:
    inputs = hospitals(tmp_path, features="age, dose")
    own = table(tmp_path, "b2")
    own.loc[4, "dose"] = "12,5 mg"
    write(tmp_path, "b2", own)
    error = refused(tmp_path, inputs)
    assert (error.code, error.field) == ("data-refused", "files")
    assert "b2: " in str(error)
    assert "12,5" not in str(error)
    assert "row 6, column dose" in (tmp_path / "b2" / "output" / "error.txt").read_text()


def test_a_column_that_a_member_lacks_is_suggested_to_all(tmp_path: Path) -> None:
    inputs = hospitals(tmp_path)
    write(tmp_path, "b2", table(tmp_path, "b2").rename(columns={"group": "Group"}))
    error = refused(tmp_path, inputs)
    assert (error.code, error.field) == ("column-missing", "label")
    assert "Group" not in str(error), "others do not hear what columns a table has"
    assert "did you mean Group?" in (tmp_path / "b2" / "output" / "error.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_every_row_of_the_tables_has_a_name_and_the_outcome_stands_in_one(tmp_path: Path, task: str) -> None:
    form: dict[str, Any] = {"task": task, "label": "group" if task == "classification" else "dose", "network": "linear"}
    inputs = hospitals(tmp_path, features="age", **form)
    site_file(tmp_path / "b2" / "base", name="north")
    inputs["b2"]["files"].append("site.json")
    shown = Iterations(tmp_path, inputs).go()
    described = compspec()["computation"]["output"]
    for key in ("study", "global_metrics"):
        assert set(shown[key]) <= set(described[key]["items"])
    for site, row in shown["site_metrics"].items():
        assert set(row) <= set(described["site_metrics"]["items"])
        assert row["called"] == site, "what figures and report call it"
    assert set(shown["site_metrics"]) == {"a3", "c1", "north"}
    if task == "classification":
        assert "auc_low" in shown["site_metrics"]["c1"]
        assert (shown["study"]["outcome"], shown["study"]["others"]) == ("group = Case", "group = control")
    else:
        assert shown["study"]["predicted"] == "dose"
    report = (tmp_path / "c1" / "output" / "report.html").read_text()
    assert f"<title>Prediction of {form['label']}" in report


@pytest.mark.parametrize("kept", [True, False])
def test_a_members_own_secret_wins_over_the_bytes_of_its_files(tmp_path: Path, kept: bool) -> None:
    """Other parts for a corrected cell would differ from the first ones by few patients."""
    data = {"reader": "csv", "file": "t.csv", "features": ["age", "dose"], "label": "group"}
    data |= {"values": ["control", "Case"]}
    spec = run_spec(task={"name": "classification", "classes": 2}, data=data, federation={"sites": ["c1", "b2"]})
    plan, parts = make_plan(spec, build_model(spec)), list[list[int]]()
    inputs = hospitals(tmp_path, {"c1": 90})
    base, given = tmp_path / "c1" / "base", {"files": ["t.csv", "site.json"], "label": "group"}
    site_file(base, name="c1", **({"secret": "5e" * 32} if kept else {}))
    for age in ("50", "51"):
        own = table(tmp_path, "c1")
        own.loc[4, "age"] = age
        write(tmp_path, "c1", own)
        member, problems = find_member(form.read(inputs["c1"]), given, base, "c1")
        assert not problems
        found = read_data(
            spec, plan, replace(member, policy=Policy(min_rows=4, rows_per_rank=None), data=base / "t.csv")
        )
        assert found.parts is not None
        parts.append(found.parts.parts.tolist())
    assert (parts[0] == parts[1]) == kept


@pytest.mark.parametrize("secret", ["5E" * 32, "5e" * 31, 7])
def test_a_secret_that_is_none_is_refused_and_not_repeated(tmp_path: Path, secret: Any) -> None:
    inputs = hospitals(tmp_path)
    site_file(tmp_path / "b2" / "base", secret=secret)
    inputs["b2"]["files"].append("site.json")
    error = refused(tmp_path, inputs)
    assert str(secret) not in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_forms_defaults_make_a_model_as_good_as_scikit_learns(tmp_path: Path, task: str) -> None:
    """640, 210 and 24 rows: every fold's own model is scikit-learn's of the same rows."""
    sizes, generator = {"c1": 640, "b2": 210, "a3": 24}, np.random.default_rng(5)
    features = [f"x{place}" for place in range(8)]
    whole = pd.DataFrame(generator.normal(size=(sum(sizes.values()), 8)), columns=features)
    score = whole.to_numpy() @ generator.normal(size=8)
    classes = task == "classification"
    if classes:
        whole["y"] = np.where(generator.random(len(whole)) < 1 / (1 + np.exp(-0.32 * score)), "case", "control")
    else:
        whole["y"] = 20 + score + generator.normal(0, 2, len(whole))
    inputs: dict[str, dict[str, Any]] = {}
    for client, at in zip(sizes, np.split(np.arange(len(whole)), np.cumsum([*sizes.values()])[:-1]), strict=True):
        (tmp_path / client / "base").mkdir(parents=True)
        write(tmp_path, client, whole.iloc[at])
        inputs[client] = {"files": ["t.csv"], "label": "y"} | ({} if classes else {"task": task})
    site_file(tmp_path / "a3" / "base", policy={"min_rows": 1, "rows_per_rank": None, "min_level": 1})
    inputs["a3"]["files"].append("site.json")
    shown = Iterations(tmp_path, inputs).go(100)
    tables = {client: pd.read_csv(tmp_path / client / "base" / "t.csv") for client in sizes}
    scores, truth = list[float](), list[Any]()
    for fold in range(1, 6):
        kept, held = list[pd.DataFrame](), list[pd.DataFrame]()
        for client, own in tables.items():
            file = tmp_path / client / "output" / "predictions" / f"fold-{fold}.csv"
            if not file.exists():  # a member of fewer parts than folds trains whole in the others
                kept.append(own)
                continue
            rows = [name - 2 for name in pd.read_csv(file)["row"].tolist()]  # of a file, whose header is row 1
            kept.append(own.drop(index=rows))
            held.append(own.loc[rows])
        train, test = pd.concat(kept), pd.concat(held)
        model = make_pipeline(StandardScaler(), LogisticRegression(C=1e6) if classes else LinearRegression())
        model.fit(train[features], train["y"])
        scores += (model.decision_function if classes else model.predict)(test[features]).tolist()
        truth += test["y"].tolist()
    found = shown["global_metrics"]
    assert found["samples"] == len(truth) == 874
    if classes:
        wanted = roc_auc_score(truth, scores)
        assert found["auc"] == pytest.approx(max(wanted, 1 - wanted), abs=0.01)
    else:
        assert found["r2"] == pytest.approx(r2_score(truth, scores), abs=0.02)
        assert found["mae"] == pytest.approx(mean_absolute_error(truth, scores), rel=0.02)
