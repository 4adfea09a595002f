"""What goes wrong between the platform and a node: disks, processes, runs in used folders, odd forms."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from common.errors import RankdadError
from platforms.coinstac import site_run
from platforms.coinstac.outputs import Reply
from platforms.coinstac.site_node import SiteNode
from remote import aggregator as aggregator_module
from tests.conftest import run_document
from tests.platforms.nodes import Iterations, sent
from tests.platforms.test_nodes import METHODS, consortium, digests

OWNER = {"classes": 3, "shape": "6", "epochs": 1, "hidden": "5", "rank": 2, "batch_size": 16}


def members(folder: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    """Two members with a form instead of a whole specification."""
    _, inputs = consortium(folder, METHODS[0], 2)
    return {client: own | {"spec": {}} | OWNER | changes for client, own in inputs.items()}


def test_a_disk_that_is_full_at_the_end_is_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(aggregator_module, "save_model", full)
    with pytest.raises(OSError, match="No space left"):
        Iterations(tmp_path, members(tmp_path)).go()


def test_a_site_that_cannot_write_in_the_first_iteration_is_named_with_its_reason(tmp_path: Path) -> None:
    inputs = members(tmp_path)
    run = Iterations(tmp_path, inputs)
    run.state("8f0c")
    (tmp_path / "8f0c" / "output" / "inputs.tmp").mkdir()
    with pytest.raises(RankdadError, match=r"^site-1: .*inputs.json: cannot be written: Is a directory$"):
        run.go()


def test_an_unforeseen_error_at_a_site_keeps_its_words_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("Mrs Miller")

    monkeypatch.setattr(site_run, "lay_out", broken)
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, members(tmp_path)).go()
    log = "the log of this site's container has more"
    assert str(raised.value).splitlines() == [f"site-{n}: ValueError: {log}" for n in (1, 0)]
    assert "Mrs Miller" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sites": "Site One, site-1"}, "owner: Sites, in their order (sites): 'Site One' is no name"),
        ({"lr": "nan"}, 'owner: Learning rate (lr): got "nan", expected a finite number'),
        ({"lr": 10**400}, "(lr): got 1"),
        ({"spec": {"model": {"name": "mlp", "hidden": ["x"] * 400}}}, "model.hidden[0]"),
        ({"spec": {"federation": {"sites": 5}}}, "federation.sites: got 5, expected a list of names"),
        ({"hidden": "99999999999999999999"}, "owner: Hidden layers (hidden): a network of this size"),
        ({"hidden": "1000000, 1000000"}, "owner: Hidden layers (hidden): the network has"),
        ({"data_file": ["a\0b"]}, "is no file's name"),
    ],
)
def test_odd_values_end_in_a_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, members(tmp_path, **changes)).go()
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "living", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["fresh processes", "the same processes"]
)
@pytest.mark.parametrize("iterations", [4, pytest.param(60, marks=pytest.mark.slow)], ids=["broken off", "completed"])
@pytest.mark.parametrize("changes", [{}, {"lr": 0.02}], ids=["the same form", "another form"])
def test_a_run_in_the_folders_of_an_earlier_one_begins_at_the_beginning(
    tmp_path: Path, living: bool, iterations: int, changes: dict[str, Any]
) -> None:
    first = Iterations(tmp_path, members(tmp_path, lr=0.01))
    with contextlib.suppress(AssertionError):
        first.iterate(iterations)
    for node in () if living else first.nodes.values():
        node.close()
    second = Iterations(tmp_path, {client: {**own, **changes} for client, own in first.inputs.items()})
    second.nodes = first.nodes if living else {}
    second.go()
    undisturbed = Iterations(tmp_path / "other", members(tmp_path / "other", **({"lr": 0.01} | changes)))
    undisturbed.go()
    assert len(second.outputs) == len(undisturbed.outputs)
    assert digests(tmp_path) == digests(tmp_path / "other")


@pytest.mark.slow
def test_a_message_that_comes_again_to_a_living_process_changes_nothing(tmp_path: Path) -> None:
    class Twice(Iterations):
        def work(self, client: str, given: Mapping[str, Any]) -> Reply:
            first, again = super().work(client, given), super().work(client, given)
            assert (first.success, sent(first)) == (again.success, sent(again))
            return again

    (folder := tmp_path / "other").mkdir()
    Twice(tmp_path, members(tmp_path)).go()
    Iterations(folder, members(folder)).go()
    assert digests(tmp_path) == digests(folder)


SUBJECTS = [f"s{number}" for number in range(30)]


def test_the_kind_of_data_in_a_whole_specification_decides_what_members_give(tmp_path: Path) -> None:
    data = {"reader": "csv", "file": "t.csv", "features": ["age"], "label": "sex", "values": ["F", "M"]}
    spec = run_document(data=data, task={"name": "classification", "classes": 2}, federation={"sites": []})
    spec |= {"method": {"name": "dsgd"}, "training": spec["training"] | {"epochs": 1}}
    rows = {f"{name}.txt": {"age": place % 7, "sex": "FM"[place % 2]} for place, name in enumerate(SUBJECTS)}
    assert Iterations(tmp_path, members(tmp_path, spec=spec, covariates=rows)).go()["global_metrics"]["samples"] == 12


def test_subjects_files_of_one_name_in_several_folders_stay_apart(tmp_path: Path) -> None:
    rows = {f"{name}/aseg.txt": {"file": "x", "sex": "FM"[place % 2]} for place, name in enumerate(SUBJECTS)}
    form = {"reader": "freesurfer", "classes": 2, "regions": ["Left-Hippocampus"], "label": "sex", "values": "F, M"}
    inputs = members(tmp_path, **form, rank=1, covariates=rows)
    for client in inputs:
        for place, name in enumerate(SUBJECTS):
            (tmp_path / client / "base" / name).mkdir()
            (tmp_path / client / "base" / name / "aseg.txt").write_text(f"{name}\nLeft-Hippocampus\t{place}\n")
    Iterations(tmp_path, inputs).go()
    kept = tmp_path / "8f0c" / "output"
    assert (kept / "data" / "s7" / "aseg.txt").read_text().endswith("\t7\n")
    assert (kept / "inputs.json").stat().st_mode & 0o077 == 0, "the form holds the subjects' table"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"reader": "csv", "features": "a"},
            "owner: Values of the label (values): got 2, expected one for each of 3 task.classes",
        ),
        ({"reader": "csv", "classes": 2}, "owner: Inputs (features): got none, expected at least one column"),
        ({"validation": 0.5, "test": 0.5}, "owner: training: validation 0.5 and test 0.5 leave nothing"),
    ],
)
def test_a_part_that_is_wrong_as_a_whole_names_the_field(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, members(tmp_path, **changes)).go()
    assert said in str(raised.value)


def test_data_that_change_during_a_run_are_not_quoted_to_others(tmp_path: Path) -> None:
    rows = {f"{name}.txt": {"age": place % 7, "sex": "FM"[place % 2]} for place, name in enumerate(SUBJECTS)}
    form = {"reader": "csv", "classes": 2, "features": "age", "label": "sex", "values": "F, M", "method": "dsgd"}
    inputs = members(tmp_path, **form)
    for client in inputs:
        pd.DataFrame(rows.values()).to_csv(tmp_path / client / "base" / "t.csv")
        inputs[client]["covariates"] = ["t.csv"]
    said: list[str] = []

    class Changed(Iterations):
        def start(self, client: str) -> None:
            super().start(client)
            if client in inputs:
                self.nodes[client] = SiteNode(say=said.append)
                table = tmp_path / client / "base" / "t.csv"
                if len(self.outputs) == 3:
                    table.write_text(table.read_text().replace("M", "Miller", 1))

    with pytest.raises(RankdadError) as raised:
        Changed(tmp_path, inputs, replaced=lambda iteration, node: iteration == 4).go()
    assert "column sex: holds a value" in str(raised.value)
    assert "Miller" not in str(raised.value)
    assert "Miller" in "".join(said)


def test_the_site_hears_which_rows_are_left_out(tmp_path: Path) -> None:
    rows = {f"{name}.txt": {"age": place or None, "sex": "FM"[place % 2]} for place, name in enumerate(SUBJECTS)}
    form = {"reader": "csv", "classes": 2, "features": "age", "label": "sex", "values": "F, M", "missing": "drop"}
    said: list[str] = []
    run = Iterations(tmp_path, members(tmp_path, **form, rank=1, covariates=rows))
    state = run.state("8f0c")
    SiteNode(say=said.append).advance(run.inputs["8f0c"], state)
    assert "warning: " in said[0]
    assert "1 of 30 rows lack a value and are left out" in said[0]


@pytest.mark.slow
def test_a_network_too_large_to_be_sent_whole_can_be_had_from_the_form(tmp_path: Path) -> None:
    form = {"hidden": "3000, 3000", "rank": 4}
    with pytest.raises(RankdadError, match=r"carries at most 100.0 MiB; what fits: federation.compare_every 0 \("):
        Iterations(tmp_path, members(tmp_path, **form)).go(3)
    with pytest.raises(AssertionError, match="no end after 3"):
        Iterations(tmp_path, members(tmp_path, **form, compare_every=0)).go(3)
