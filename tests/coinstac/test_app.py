"""The platform's path from form to container: what each of its rules was measured to do, and what it makes of ours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.coinstac.app import RUN, App, Mapped
from tests.coinstac.forms import MEMBER, OWNER, below, compspec, files, form, member
from tests.coinstac.platform import Platform
from tests.coinstac.typed import AppError


def owner(kind: str, typed: Any, **more: Any) -> Any:
    """What arrives of one field of the owner's when this is typed into it."""
    return form({"a": typed}, a={**OWNER, "type": kind, **more}).member("m").inputs.get("a", "nothing")


def test_what_the_upload_refuses_is_said_with_reasons() -> None:
    document = compspec()
    del document["meta"]["repository"]
    document["computation"]["containerOptions"] = {}
    with pytest.raises(AppError, match=r"upload refuses it: meta.repository must.*`containerOptions` is not allowed"):
        App(document)


@pytest.mark.parametrize(
    ("image", "there"),
    [
        ("example/a", "example/a:latest"),
        ("example/a:latest", "example/a:latest"),
        ("localhost:5055/a/name", "localhost:5055/a/name:latest"),
    ],
)
def test_an_image_without_a_tag_is_pulled_as_latest(image: str, there: str) -> None:
    app = App(compspec(image))
    assert app.image() == app.image("remote") == there
    assert app.problems() == []


@pytest.mark.parametrize("image", ["example/a:0.1.0", "localhost:5055/a:0.1.0", f"example/a@sha256:{'0' * 64}"])
def test_an_image_with_a_tag_is_not_the_one_that_is_pulled(image: str) -> None:
    app = App(compspec(image))
    with pytest.raises(AppError, match=f"No such image: {image}; what is pulled for {image} is .*:latest"):
        app.image()
    assert len(app.problems()) == 2  # for the sites and for the remote


def test_the_remotes_own_image_is_pulled_by_nobody() -> None:
    app = App(compspec("example/a", remote="example/b"))
    assert app.image() == "example/a:latest"
    with pytest.raises(AppError, match="No such image: example/b:latest"):
        app.image("remote")


def test_defaults_arrive_even_of_what_nobody_sees_and_nothing_arrives_without_one() -> None:
    waits = {"conditional": {"variable": "kind", "value": "b"}}
    inputs: dict[str, Any] = {
        "kind": {**OWNER, "type": "select", "values": ["a", "b"], "default": "a"},
        "shown": {**OWNER, "type": "number"},
        "hidden": {**OWNER, "type": "number", "default": 2.0, **waits},
    }
    assert form(**inputs).member("m").inputs == {"kind": "a", "hidden": 2}
    with pytest.raises(AppError, match="hidden is not shown to the owner: it waits for kind to be 'b'"):
        form({"hidden": 3}, **inputs)
    there_and_back = {"kind": "b", "hidden": 3}
    assert form(there_and_back, **inputs).member("m").inputs == there_and_back
    with pytest.raises(AppError, match="no input other"):
        form({"other": 1}, **inputs)


def test_a_condition_on_what_nobody_has_set_or_on_another_type_is_not_met() -> None:
    waiting = {**OWNER, "type": "string", "conditional": {"variable": "a", "value": True}}
    for one in ({**OWNER, "type": "boolean"}, {**OWNER, "type": "number", "default": 1}):
        with pytest.raises(AppError, match="waits for a to be True"):
            form({"b": "x"}, a=one, b=waiting)


@pytest.mark.parametrize(
    ("kind", "typed", "more", "arrives"),
    [
        ("string", "y", {"default": "x"}, "y"),
        ("string", "", {"default": "x"}, "nothing"),
        ("number", "0.5", {"default": 1, "min": 1, "step": 1}, 0.5),
        ("number", 1e-06, {}, 1e-06),
        ("number", "2.0", {}, 2),
        ("number", "0", {}, 0),
        ("number", "", {"default": 1}, "nothing"),
        ("number", "0,5", {"default": 1}, "nothing"),
        ("boolean", False, {"default": True}, False),
        ("select", "b", {"values": ["a", "b"]}, "b"),
        ("select", 0, {"values": [0, 1], "default": 1}, "nothing"),
        ("radio", "b", {"values": ["a", "b"], "default": "a"}, True),
        ("array", "b", {"values": ["a", "b"], "default": ["a"]}, ["a", ["a", "b"]]),
        ("array", "a", {"values": ["a", "b"], "default": ["a"]}, ["a", []]),
        ("range", 4, {"min": 1, "max": 5, "step": 1, "default": 2}, 4),
        ("range", 0, {"min": -1, "max": 1, "step": 1, "default": 1}, "nothing"),
        ("set", {0: 7}, {"default": [1, 2]}, ["7", 2]),
        ("matrix", {(0, 0): 7}, {"default": [[1, 2], [3, 4]]}, [["7", 2], [3, 4]]),
        ("object", {"a": 1.0}, {"default": {"z": 1}}, {"a": 1}),
        ("object", "[1]", {}, [1]),
        ("object", "{", {"default": {"z": 1}}, {"z": 1}),
        ("object", {}, {"default": {"z": 1}}, {}),
        ("object", "", {"default": {"z": 1}}, "nothing"),
        ("users", "u1", {}, "u1"),
        ("users", ["u1", "u2"], {"multi": True}, "nothing"),
        (
            "freesurfer",
            ["Left-Amygdala"],
            {"items": ["FreeSurfer"]},
            [{"type": "FreeSurfer", "value": ["Left-Amygdala"]}],
        ),
        ("files", ["npz"], {"items": ["npz"]}, [{"type": "npz"}]),
    ],
)
def test_what_arrives_of_what_the_owner_types(kind: str, typed: Any, more: dict[str, Any], arrives: Any) -> None:
    assert json.dumps(owner(kind, typed, **more)) == json.dumps(arrives)


@pytest.mark.parametrize(
    ("kind", "typed", "more", "why"),
    [
        ("select", "c", {"values": ["a"]}, "'c' is not offered"),
        ("select", "a", {}, "its values is missing"),
        ("range", 2, {"min": 0, "max": 5, "step": 1}, "its min is missing or 0"),
        ("array", "a", {"values": ["a"]}, "breaks without a list"),
        ("set", {0: 7}, {}, "there is no item 0"),
        ("boolean", 1, {}, "1 is not offered"),
        ("freesurfer", ["x"], {}, "the form breaks: there are no `items`"),
        ("csv", [("age", "number")], {"items": ["number"]}, "an owner's csv takes nothing"),
        ("directory", "x", {}, "an owner's directory takes nothing"),
        ("integer", 1, {}, "no type integer"),
    ],
)
def test_what_an_owner_cannot_type(kind: str, typed: Any, more: dict[str, Any], why: str) -> None:
    with pytest.raises(AppError, match=f"^a.*{why}"):
        owner(kind, typed, **more)


def test_an_owner_cannot_fill_in_for_the_members() -> None:
    with pytest.raises(AppError, match="a: it is the members' field"):
        form({"a": 3}, a={**MEMBER, "type": "number", "default": 1})


def test_what_a_container_is_sent_and_what_lies_behind_its_mounts(tmp_path: Path) -> None:
    (data,) = files(tmp_path / "of", "a.npz")
    started = member("files", data).start(tmp_path / "app")
    own = f"m/{RUN}"
    assert started.inputs == {"a": ["a.npz"]}
    assert started.state == {
        "baseDirectory": f"/input/{own}",
        "outputDirectory": f"/output/{own}",
        "cacheDirectory": "/tmp",
        "transferDirectory": f"/transfer/{own}",
        "clientId": "m",
        "iteration": 1,
        "owner": "owner",
    }
    assert started.base == tmp_path / "app/input" / own
    assert started.state_here == started.state | {
        "baseDirectory": str(started.base),
        "outputDirectory": str(tmp_path / "app/output" / own),
        "transferDirectory": str(tmp_path / "app/transfer" / own),
    }
    nobody = App(compspec()).consortium(owner=None).member("n").start(tmp_path / "app")
    assert "owner" not in nobody.state


def test_the_platforms_driver_takes_what_is_mapped(tmp_path: Path) -> None:
    mapped = member("files", files(tmp_path / "of", "a.npz"))
    platform = Platform([mapped.inputspec], tmp_path / "run", client_ids=[mapped.client_id])
    mapped.link(platform.sites[0].input)
    assert platform.inputs == [mapped.inputs]
    assert below(platform.sites[0].input) == {"a.npz"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_results_are_written_by_root_or_by_the_user_of_the_app(tmp_path: Path) -> None:
    started = App(compspec()).consortium().member("m").start(tmp_path, uid=4321)
    assert [started.writable_by(uid) for uid in (0, 4321, 1000)] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "one", "sentence"),
    [
        ("a", {**MEMBER, "type": "select", "values": ["a"], "default": "a"}, "members do not see a select, and as it"),
        ("a", {**MEMBER, "type": "freesurfer", "items": ["FreeSurfer"]}, "members do not see a freesurfer"),
        ("a", {**MEMBER, "type": "string", "default": ""}, "types into a string is lost"),
        ("a", {**MEMBER, "type": "object", "default": {}}, "cannot edit an object"),
        ("a", {**MEMBER, "type": "number", "default": 1, "step": 0.5}, "cut to a whole one: `step` is 0.5"),
        ("a", {**MEMBER, "type": "number", "default": 0.5}, "cut to a whole one: `default` is 0.5"),
        ("a", {**MEMBER, "type": "number"}, "without a default members do not see it"),
        ("a", {**MEMBER, "type": "files", "items": ["npz"]}, "without a default members do not see it"),
        ("a", {**MEMBER, "type": "files", "default": []}, "without `items` the form breaks"),
        (
            "a",
            {**MEMBER, "type": "files", "items": ["npz"], "default": [], "extensions": [["npz"]]},
            "cannot read the extensions",
        ),
        ("a", {**MEMBER, "type": "boolean", "default": True, "conditional": {}}, "hides it from the owner alone"),
        ("a", {**OWNER, "type": "files", "items": ["npz"]}, "nobody can pick anything in an owner's files"),
        ("a", {**OWNER, "type": "radio", "values": ["a"]}, "true arrives"),
        ("a", {**OWNER, "type": "array", "values": ["a"]}, "a list within the list"),
        ("a", {**OWNER, "type": "users", "multi": True}, "several users arrive as nothing"),
        ("a", {**OWNER, "type": "set"}, "nothing to type into"),
        ("a", {**OWNER, "type": "select", "values": [0, 1]}, "the choice 0 sends nothing"),
        ("a", {**OWNER, "type": "range", "min": -1, "max": 1, "step": 1}, "the choice 0 sends nothing"),
        ("fromCache", {**OWNER, "type": "string"}, "deleted when the owner types"),
    ],
)
def test_what_the_form_would_lose_is_a_problem(name: str, one: Any, sentence: str) -> None:
    assert [said for said in App(compspec(**{name: one})).problems() if said.startswith(f"input {name}: ")] != []
    assert any(sentence in said for said in App(compspec(**{name: one})).problems())


# The first form that was made for the platform passed every test, and failed at three places of the platform's path.

FIRST = compspec(
    "rankdad:0.1.0",
    reader={**OWNER, "type": "select", "values": ["npz", "csv", "freesurfer"], "default": "npz"},
    features={
        **OWNER,
        "type": "string",
        "default": "",
        "conditional": {"variable": "reader", "value": "csv"},
    },
    site={**MEMBER, "type": "string", "default": ""},
    covariates={**MEMBER, "type": "csv", "items": ["boolean", "number", "string"], "extensions": ["csv"]},
    min_rows={**MEMBER, "type": "number", "default": 10, "min": 1, "step": 1},
)


def first(folder: Path) -> Mapped:
    (folder / "people.csv").write_text("id,age,diagnosis\nP1,50,0\nP2,60,1\n")
    columns = [("age", "number"), ("diagnosis", "number")]
    saved = App(FIRST).consortium({"reader": "csv", "features": "age", "covariates": columns})
    return saved.member("a", {"site": "hospital-a", "covariates": folder / "people.csv", "min_rows": "8"})


def test_the_first_forms_image_was_never_pulled() -> None:
    with pytest.raises(AppError, match=r"No such image: rankdad:0.1.0; what is pulled for .* is rankdad:latest"):
        App(FIRST).image()
    assert "computation.dockerImage rankdad:0.1.0 is not what is pulled" in "\n".join(App(FIRST).problems())


def test_the_first_forms_site_lost_its_name(tmp_path: Path) -> None:
    mapped = first(tmp_path)
    assert mapped.inputs["site"] == ""
    assert mapped.inputs["min_rows"] == 8
    assert mapped.lost == ("site: what a member types into a string is lost, '' arrives",)
    assert "input site: what a member types into a string is lost, its default arrives" in App(FIRST).problems()


def test_the_first_forms_table_was_taken_for_a_list_of_files(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=f"ENOENT: no such file or directory, link '{tmp_path}/P1'"):
        first(tmp_path).start(tmp_path / "app")
    assert any(said.startswith("input covariates: without a default") for said in App(FIRST).problems())
