"""Tables and files that cannot be used: the field and the member are named, and no cell is told to others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from rankdad.common.errors import RankdadError
from rankdad.platforms.coinstac.site_node import SiteNode
from tests.conftest import run_document
from tests.platforms.nodes import Iterations, patients, site_file


@pytest.mark.parametrize(
    ("cell", "kept"),
    [
        ("Miller, born in 1960", "Miller"),
        ("1e400", "1e400"),
    ],
)
def test_no_cell_of_a_members_table_is_told_to_others(tmp_path: Path, cell: str, kept: str) -> None:
    inputs = patients(tmp_path, features="age")
    path = tmp_path / "8f0c" / "base" / "8f0c.csv"
    table = pd.read_csv(path, dtype=str)
    table.loc[7, "age"] = cell
    table.to_csv(path, index=False)
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, inputs).go(most=2)
    assert str(raised.value).startswith("8f0c: Files (files): ")
    assert not any(word in str(raised.value) for word in (kept, "row", ".csv"))
    assert kept in (tmp_path / "8f0c" / "output" / "error.txt").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda base: (base / "8f0c.csv").write_text(""), "8f0c: Files (files): "),
        (lambda base: (base / "8f0c.csv").write_bytes(b"\xff\xfe\0\1"), "8f0c: Files (files): "),
        (
            lambda base: (base / "8f0c.csv").write_text("id,age\n1,2\n"),
            "8f0c: Column of what is predicted (label): there is no column sex",
        ),
        (
            lambda base: (base / "8f0c.csv").write_text("id,age,dose,sex\n" + "a,1,2,F\n" * 5),
            "8f0c: ",
        ),
    ],
)
def test_a_table_that_cannot_be_used_names_the_member_and_the_field(
    tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    inputs = patients(tmp_path)
    change(tmp_path / "8f0c" / "base")
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, inputs).go(most=2)
    assert said in str(raised.value)
    assert "9f0c: " not in str(raised.value)


@pytest.mark.parametrize("whole", [False, True], ids=["fields", "whole specification"])
def test_a_members_policy_speaks_before_the_table(tmp_path: Path, whole: bool) -> None:
    inputs = patients(tmp_path, method="powersgd")
    (tmp_path / "8f0c" / "base" / "8f0c.csv").write_bytes(b"\xff\xfe\0\1")
    if whole:
        table = {"reader": "csv", "file": "8f0c.csv", "features": ["age"], "label": "sex", "values": ["F", "M"]}
        method = {"name": "powersgd", "rank": 1}
        spec = run_document(task={"name": "classification", "classes": 2}, data=table, method=method, federation={})
        inputs["8f0c"] = {"files": ["8f0c.csv"], "spec": spec}
    run = Iterations(tmp_path, inputs, typed=False)
    joined = run.ask("8f0c", run.inputs["8f0c"], 1).output["rankdad"]
    expected = ("method.name: ", "policy-refuses") if whole else ("members' limits", "method-refused")
    assert [problem["code"] for problem in joined["problems"]] == [expected[1]]
    assert expected[0] in joined["problems"][0]["text"]


def test_the_wrong_files_are_told_neither_by_name_nor_by_number(tmp_path: Path) -> None:
    inputs = patients(tmp_path)
    base = tmp_path / "8f0c" / "base"
    (base / "miller.csv").write_text("a\n")
    (base / "jones.nii").write_text("x")
    for files, code in ((["8f0c.csv", "miller.csv"], "files-several"), (["jones.nii"], "file-missing")):
        inputs["8f0c"]["files"] = files
        with pytest.raises(RankdadError) as raised:
            Iterations(tmp_path, inputs).go(most=2)
        assert f"8f0c: Files (files): {code}" in str(raised.value)
        assert "miller" not in str(raised.value)
        assert files[-1] in (tmp_path / "8f0c" / "output" / "error.txt").read_text()


@pytest.mark.exhaustive
def test_a_folder_holds_a_table_at_any_depth_and_the_members_own_file(tmp_path: Path) -> None:
    inputs = patients(tmp_path, evaluation="holdout")
    for client, given in inputs.items():
        below = tmp_path / client / "base" / "study" / "tables"
        below.mkdir(parents=True)
        (tmp_path / client / "base" / f"{client}.csv").rename(below / "patients.csv")
        site_file(below.parent, name=f"site-{client}")
        del given["files"]
        given["folder"] = "/home/somebody/study"
    assert set(Iterations(tmp_path, inputs).go()["site_metrics"]) == {"site-8f0c", "site-9f0c"}


def test_a_column_of_numbers_with_a_word_in_it_is_a_mistake(tmp_path: Path) -> None:
    inputs = patients(tmp_path)
    path = tmp_path / "8f0c" / "base" / "8f0c.csv"
    table = pd.read_csv(path, dtype=str)
    table.loc[7, "dose"] = "Miller, 12 mg"
    table.to_csv(path, index=False)
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, inputs).go(most=2)
    assert (raised.value.code, raised.value.field) == ("mixed-column", "features")
    assert not any(word in str(raised.value) for word in ("dose", ".csv", "Miller"))


@pytest.mark.slow
def test_data_that_change_during_a_run_are_not_quoted_to_others(tmp_path: Path) -> None:
    inputs = patients(tmp_path, evaluation="holdout", epochs=3)
    said: list[str] = []

    class Changed(Iterations):
        def start(self, client: str) -> None:
            super().start(client)
            if client in inputs:
                self.nodes[client] = SiteNode(say=said.append)
                table = tmp_path / client / "base" / f"{client}.csv"
                if len(self.outputs) == 3:
                    table.write_text(table.read_text().replace("M", "Miller", 1))

    with pytest.raises(RankdadError) as raised:
        Changed(tmp_path, inputs, replaced=lambda iteration, node: iteration == 4).go()
    assert "8f0c: Files (files): data-refused" in str(raised.value)
    assert not any(word in str(raised.value) for word in ("Miller", "row", ".csv"))
    assert "Miller" in "".join(said)


def test_the_site_hears_what_is_imputed_and_which_columns_are_no_inputs(tmp_path: Path) -> None:
    inputs = patients(tmp_path, network="mlp-8")
    path = tmp_path / "8f0c" / "base" / "8f0c.csv"
    table = pd.read_csv(path)
    table.loc[3, "age"] = None
    table.to_csv(path, index=False)
    said: list[str] = []
    SiteNode(say=said.append).advance(inputs["8f0c"], Iterations(tmp_path, inputs).state("8f0c"))
    assert said[0].startswith("note: 8f0c.csv: column id is no input: it holds text")
    assert "1 of 60 rows lack an input, which is imputed" in said[1]
