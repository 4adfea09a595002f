"""What goes wrong between the platform and a node: disks, processes, runs in used folders, odd forms."""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankdad.common.errors import RankdadError
from rankdad.platforms.coinstac import site_run
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.outputs import Reply
from rankdad.remote import run_store
from tests.conftest import run_document
from tests.platforms.nodes import REMOTE, Iterations, patients, sent, site_file
from tests.platforms.test_nodes import METHODS, consortium, digests


def members(folder: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    """Two members with a whole specification; `changes` are its own."""
    _, inputs = consortium(folder, METHODS[0], 2)
    training = {"epochs": 1, "batch_size": 16} | changes.pop("training", {})
    spec = run_document(**{"method": METHODS[0], "training": training, "federation": {}} | changes)
    return {client: own | {"spec": spec} for client, own in inputs.items()}


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_end_is_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_store, "save_model", full)
    with pytest.raises(OSError, match="No space left"):
        Iterations(tmp_path, members(tmp_path)).go()


def test_a_site_that_cannot_write_in_the_first_iteration_is_named_with_its_code(tmp_path: Path) -> None:
    inputs = members(tmp_path)
    run = Iterations(tmp_path, inputs)
    run.state("8f0c")
    (tmp_path / "8f0c" / "output" / "inputs.tmp").mkdir()
    with pytest.raises(RankdadError, match=r"^8f0c: cannot-write"):
        run.go()


def test_an_unforeseen_error_at_a_site_keeps_its_words_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("Mrs Miller")

    monkeypatch.setattr(site_run, "read_site", broken)
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, members(tmp_path)).go()
    log = "see the log of this site's container"
    assert str(raised.value).splitlines() == [f"{client}: ValueError: {log}" for client in ("8f0c", "9f0c")]
    assert "Mrs Miller" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"name": "mlp", "hidden": ["x"] * 400}}, "Whole specification (spec): model.hidden[0]"),
        ({"federation": {"sites": 5}}, "federation.sites: got 5, expected a list of names"),
        ({"federation": {"sites": ["Site One", "b"]}}, "federation.sites[0]"),
        ({"model": {"name": "mlp", "hidden": [10**6, 10**6]}}, "owner: Whole specification (spec): model.hidden: the"),
        ({"seed": 10**400}, "seed"),
        ({"training": {"validation": 0.5, "test": 0.5}}, "training: validation 0.5 and test 0.5 leave nothing"),
    ],
)
def test_odd_values_end_in_a_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, members(tmp_path, **changes)).go()
    assert said in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "living", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["fresh processes", "the same processes"]
)
@pytest.mark.parametrize("iterations", [4, pytest.param(60, marks=pytest.mark.slow)], ids=["broken off", "completed"])
@pytest.mark.parametrize("changes", [{}, {"seed": 5}], ids=["the same form", "another form"])
def test_a_run_in_the_folders_of_an_earlier_one_begins_at_the_beginning(
    tmp_path: Path, living: bool, iterations: int, changes: dict[str, Any]
) -> None:
    first = Iterations(tmp_path, members(tmp_path))
    with contextlib.suppress(AssertionError):
        first.iterate(iterations)
    for node in () if living else first.nodes.values():
        node.close()
    second = Iterations(tmp_path, members(tmp_path, **changes))
    second.nodes = first.nodes if living else {}
    second.go()
    undisturbed = Iterations(tmp_path / "other", members(tmp_path / "other", **changes))
    undisturbed.go()
    assert len(second.outputs) == len(undisturbed.outputs)
    assert digests(tmp_path) == digests(tmp_path / "other")


@pytest.mark.exhaustive
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


@pytest.mark.slow
def test_a_form_and_two_tables_train_a_model(tmp_path: Path) -> None:
    shown = Iterations(tmp_path, patients(tmp_path)).go()
    assert shown["global_metrics"]["samples"] == 120
    assert shown["global_metrics"]["auc"] > 0.8
    assert list(shown["warnings"].values()) == ["none"]  # one epoch does not show whether the model still improves
    run = json.loads((tmp_path / REMOTE / "output" / "run" / "run.json").read_text())
    assert run["data"]["features"] == ["age", "dose"]
    assert run["data"]["values"] == ["F", "M"]
    assert run["federation"]["sites"] == ["8f0c", "9f0c"], "members' ids, in their order, where nobody names a site"


@pytest.mark.slow
def test_a_model_that_is_no_better_than_a_guess_is_a_warning_for_the_owner(tmp_path: Path) -> None:
    inputs = patients(tmp_path, features="noise, dose", evaluation="holdout", network="mlp-16")
    rng = np.random.default_rng(1)  # one for all: members with the same rows would make an interval too narrow
    for client in inputs:
        path = tmp_path / client / "base" / f"{client}.csv"
        table = pd.read_csv(path)
        table["noise"], table["dose"] = rng.normal(size=(2, len(table)))
        table["sex"] = rng.permutation(table["sex"])
        table.to_csv(path, index=False)
    said = " ".join(Iterations(tmp_path, inputs).go()["warnings"].values())
    assert "the model separates the classes no better than a guess" in said


@pytest.mark.slow
def test_a_site_with_one_class_is_a_warning_for_the_owner(tmp_path: Path) -> None:
    inputs = patients(tmp_path, evaluation="holdout")
    path = tmp_path / "8f0c" / "base" / "8f0c.csv"
    table = pd.read_csv(path)
    table[table["sex"] == "F"].to_csv(path, index=False)
    said = Iterations(tmp_path, inputs).go()["warnings"].values()
    (line,) = (line for line in said if line.startswith("1 hospital has samples of one class alone"))
    assert "8f0c" in line


@pytest.mark.slow
def test_names_and_limits_may_lie_in_a_file_of_the_members_own(tmp_path: Path) -> None:
    inputs = patients(tmp_path, evaluation="holdout")
    for client, name in (("8f0c", "north"), ("9f0c", "south")):
        site_file(tmp_path / client / "base", name=name, policy={"min_rows": 5, "max_rank": 1})
        inputs[client]["files"].append("site.json")
    with pytest.raises(FormError) as raised:
        Iterations(tmp_path, inputs).go()
    assert (raised.value.code, raised.value.field) == ("rank-refused", "max_rank")
    assert "north (member 8f0c): " in str(raised.value)
    shown = Iterations(tmp_path, {client: own | {"rank": 1} for client, own in inputs.items()}).go()
    assert set(shown["site_metrics"]) == {"north", "south"}


OTHER_RUNS: dict[str, list[Any]] = {
    "method": [{"name": "dsgd"}],
    "task": [{"name": "regression"}],
    "seed": [7],
    "preparation": [{"standardise": "site"}],
    "data": [{"features": ["id"]}, {"label": "id"}, {"missing": "drop"}],
    "federation": [{"sites": ["9f0c"]}],
}


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["fields", "whole specification"])
def test_a_site_takes_no_run_but_the_one_that_the_form_asks_for(tmp_path: Path, whole: bool) -> None:
    inputs = patients(tmp_path)
    if whole:
        table = {"reader": "csv", "file": "t.csv", "features": ["*"], "exclude": ["id"], "label": "sex"}
        spec = run_document(
            task={"name": "classification", "classes": 2},
            data={**table, "values": ["F", "M"]},
            model={"name": "mlp", "hidden": [8]},
            method=METHODS[0],
            training={"batch_size": 20},
            federation={},
        )
        inputs = {client: {"files": own["files"], "spec": spec} for client, own in inputs.items()}
    run = Iterations(tmp_path, inputs)
    try:
        joined = {client: run.ask(client, given, 1).output for client, given in run.inputs.items()}
        opened = run.ask(REMOTE, joined, 1).output["rankdad"]
        for part, value in ((part, value) for part, values in OTHER_RUNS.items() for value in values):
            whole_part = opened["run"][part] | value if part in ("data", "federation") else value
            other = {"rankdad": opened | {"run": opened["run"] | {part: whole_part}}}
            said = run.ask("8f0c", other, 2).output["rankdad"]
            assert said["stage"] == "failed", (part, value)
            assert re.search("run-differs|site-unknown|expected", said["reason"])
        assert run.ask("8f0c", {"rankdad": opened}, 2).output["rankdad"]["stage"] == "sent"
    finally:
        for node in run.nodes.values():
            node.close()


def test_a_specification_that_is_no_json_is_named_with_the_place(tmp_path: Path) -> None:
    inputs = {client: own | {"spec": "{"} for client, own in patients(tmp_path).items()}
    with pytest.raises(RankdadError) as raised:
        Iterations(tmp_path, inputs, typed=False).go(most=2)
    (line,) = str(raised.value).splitlines()
    assert line.startswith('owner: Whole specification (spec): got "{", is not JSON: ')


def test_a_form_is_taken_in_the_first_iteration_alone(tmp_path: Path) -> None:
    run = Iterations(tmp_path, patients(tmp_path))
    run.start("8f0c")
    state = run.state("8f0c").model_copy(update={"iteration": 2})
    said = run.nodes["8f0c"].advance(run.inputs["8f0c"] | {"min_rows": 1}, state).output["rankdad"]
    assert said["stage"] == "failed"
    assert said["reason"].startswith("iteration-unexpected")


@pytest.mark.exhaustive
def test_a_network_too_large_to_be_sent_whole_can_be_had_from_the_form(tmp_path: Path) -> None:
    form = {"model": {"name": "mlp", "hidden": [3000, 3000]}, "method": {"name": "rank-dad", "rank": 4}}
    with pytest.raises(RankdadError, match=r"carries at most 100.0 MiB; what fits: federation.compare_every 0 \("):
        Iterations(tmp_path, members(tmp_path, **form)).go(3)
    with pytest.raises(AssertionError, match="no end after 3"):
        Iterations(tmp_path, members(tmp_path, **form, federation={"compare_every": 0})).go(3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("network", ["linear", "mlp-8"])
def test_a_linear_model_shows_its_coefficients_where_the_platforms_regressions_do(tmp_path: Path, network: str) -> None:
    form: dict[str, Any] = {"network": network, "min_rows": 4, "epochs": 40 if network == "linear" else 1}
    shown = Iterations(tmp_path, patients(tmp_path, 240 if network == "linear" else 60, **form)).go()
    assert set(shown["coefficients"]) == ({"all sites", "8f0c", "9f0c"} if network == "linear" else {"all sites"})
    if network == "linear":
        assert list(shown["coefficients"]["all sites"]) == ["intercept", "age", "dose", "fit"]
        assert (tmp_path / REMOTE / "output" / "run" / "coefficients.csv").exists()
    else:
        assert list(shown["coefficients"]["all sites"]) == ["none"]
