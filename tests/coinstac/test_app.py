"""The platform's path from form to container: what each of its rules was measured to do, and what it makes of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.coinstac.app import App
from tests.coinstac.forms import MEMBER, OWNER, below, compspec, files, form, member
from tests.coinstac.platform import Platform
from tests.coinstac.typed import AppError, Tick

FOLDER = {**MEMBER, "type": "directory", "default": ""}


def test_what_the_upload_refuses_is_said_with_reasons() -> None:
    document = compspec()
    del document["meta"]["repository"]
    document["computation"]["containerOptions"] = {}
    with pytest.raises(AppError, match=r"upload refuses it: meta.repository must.*`containerOptions` is not allowed"):
        App(document)


@pytest.mark.parametrize(
    ("image", "remote", "problems"),
    [
        ("localhost:5055/a/name", None, 0),
        ("example/a:latest", None, 0),
        ("example/a:0.1.0", None, 2),  # for the sites and for the remote
        (f"example/a@sha256:{'0' * 64}", None, 2),
        ("example/a", "example/b", 1),
    ],
)
def test_an_image_is_pulled_as_latest_and_that_of_the_sites_alone(
    image: str, remote: str | None, problems: int
) -> None:
    found = App(compspec(image, remote)).problems()
    assert len(found) == problems
    assert all("is not what is pulled" in one for one in found)


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
    with pytest.raises(AppError, match="a: it is the members' field"):
        form({"a": 3}, a={**MEMBER, "type": "number", "default": 1})


@pytest.mark.parametrize(
    ("kind", "typed", "more", "arrives"),
    [
        ("string", "y", {"default": "x"}, "y"),
        ("string", "", {"default": "x"}, "nothing"),
        ("number", "0.5", {"default": 1, "min": 1, "step": 1}, 0.5),
        ("number", "2.0", {}, 2),
        ("number", "0", {}, 0),
        ("number", "0,5", {"default": 1}, "nothing"),
        ("select", "b", {"values": ["a", "b"]}, "b"),
        ("select", 0, {"values": [0, 1], "default": 1}, "nothing"),
        ("object", {"a": 1.0}, {"default": {"z": 1}}, {"a": 1}),
        ("object", "{", {"default": {"z": 1}}, {"z": 1}),
        ("object", {}, {"default": {"z": 1}}, {}),
        ("object", "", {"default": {"z": 1}}, "nothing"),
    ],
)
def test_what_arrives_of_what_the_owner_types(kind: str, typed: Any, more: dict[str, Any], arrives: Any) -> None:
    found = form({"a": typed}, a={**OWNER, "type": kind, **more}).member("m").inputs.get("a", "nothing")
    assert json.dumps(found) == json.dumps(arrives)


@pytest.mark.parametrize(
    ("given", "default", "arrives", "lost"),
    [
        ("-2", 3, -2, ()),
        ("0.5", 3, 0, ("a: 0.5 arrives as 0",)),
        ("1e3", 3, 1, ("a: 1e3 arrives as 1",)),
        (".5", 3, None, ("a: .5 arrives as null",)),
        (Tick.USE_DEFAULT, 0.5, 0.5, ()),
    ],
)
def test_what_arrives_of_what_a_member_types(given: Any, default: Any, arrives: Any, lost: tuple[str, ...]) -> None:
    mapped = member("number", given, default=default)
    assert (json.dumps(mapped.inputs), mapped.lost) == (json.dumps({"a": arrives}), lost)
    assert mapped.inputspec == {"a": {"value": arrives}}


@pytest.mark.parametrize(
    ("kind", "given", "more", "why"),
    [
        ("number", Tick.USE_DEFAULT, {"default": 0}, "no box Use Default"),
        ("number", "", {"default": 1, "required": True}, "Please set value"),
        ("files", [], {}, "no file is chosen"),
        ("files", "/nowhere/a.npz", {}, "there is no file /nowhere/a.npz"),
        ("directory", "/nowhere", {}, "there is no folder /nowhere"),
    ],
)
def test_what_a_member_cannot_give(kind: str, given: Any, more: dict[str, Any], why: str) -> None:
    with pytest.raises(AppError, match=f"^a: .*{why}"):
        member(kind, given, **more)


def test_members_see_what_has_a_default_or_a_row_and_give_all_of_it() -> None:
    data = {**MEMBER, "type": "files", "items": ["npz"]}
    waits = {"conditional": {"variable": "b", "value": True}}
    assert form(a=data).shown() == []
    assert form(a={**data, "default": [], **waits}, b=FOLDER).shown() == ["a", "b"]
    hidden = {**MEMBER, "type": "select", "values": ["a"], "default": "a"}
    number = {**MEMBER, "type": "number", "default": 1}
    with pytest.raises(AppError, match="members do not see b, they see a"):
        form(a=number, b=hidden).member("m", {"a": 1, "b": "a"})
    with pytest.raises(AppError, match="Please set value for b: a select, which members do not see"):
        form(a=number, b=hidden).member("m", {"a": 1})


def test_files_are_hard_linked_by_their_base_names(tmp_path: Path) -> None:
    picked = files(tmp_path / "of", "one/a.npz", "two/b.npz")
    mapped = member("files", picked)
    assert (mapped.inputs, mapped.lost) == ({"a": ["a.npz", "b.npz"]}, ())
    platform = Platform([mapped.inputspec], tmp_path / "run", client_ids=["m"])
    mapped.link(base := platform.sites[0].input)
    assert platform.inputs == [mapped.inputs]
    assert below(base) == {"a.npz", "b.npz"}
    assert (base / "b.npz").samefile(picked[1])
    twice = member("files", files(tmp_path / "of", "one/a.npz", "two/a.npz"))
    assert twice.lost == ("a.npz: 2 files have this name, one is linked",)
    (other,) = files(tmp_path, "a.csv")
    with pytest.raises(AppError, match=r"a: the dialog does not show a.csv, only npz"):
        member("files", other, extensions=["npz"])


def test_a_directory_arrives_as_the_hosts_path_and_its_files_from_any_depth(tmp_path: Path) -> None:
    files(tmp_path, "data/x.csv", "data/deep/er/y.npz", "data/.DS_Store", "else/a.npz")
    mapped = member("directory", tmp_path / "data")
    assert mapped.inputs == {"a": str(tmp_path / "data")}
    mapped.link(tmp_path / "base")
    assert below(tmp_path / "base") == {"x.csv", "deep/er/y.npz"}
    inputs: dict[str, Any] = {"a": {**MEMBER, "type": "files", "default": [], "items": ["npz"]}, "b": FOLDER}
    mapped = form(**inputs).member("m", {"a": tmp_path / "else/a.npz", "b": tmp_path / "data"})
    assert mapped.lost == (f"{tmp_path}/else/a.npz is not linked, it lies outside of {tmp_path}/data",)
    assert "a member's directory beside files" in App(compspec(**inputs)).problems()[-1]


@pytest.mark.parametrize(
    ("name", "one", "sentence"),
    [
        ("a", {**MEMBER, "type": "string", "default": ""}, "of type string nothing arrives"),
        ("a", {**MEMBER, "type": "object", "default": {}}, "of type object nothing arrives"),
        ("a", {**MEMBER, "type": "number", "default": 1, "step": 0.5}, "cut to a whole one: `step` is 0.5"),
        ("a", {**MEMBER, "type": "number"}, "without a default members do not see it"),
        ("a", {**MEMBER, "type": "files", "default": []}, "without `items` the form breaks"),
        ("a", {**MEMBER, "type": "files", "default": [], "extensions": [["npz"]]}, "cannot read the extensions"),
        ("a", {**MEMBER, "type": "number", "default": 1, "conditional": {}}, "hides it from the owner alone"),
        ("a", {**OWNER, "type": "files", "items": ["npz"]}, "nobody can pick anything in an owner's files"),
        ("a", {**OWNER, "type": "select", "values": [0, 1]}, "the choice 0 sends nothing"),
        ("fromCache", {**OWNER, "type": "string"}, "deleted when the owner types"),
    ],
)
def test_what_the_form_would_lose_is_a_problem(name: str, one: Any, sentence: str) -> None:
    assert any(said.startswith(f"input {name}: ") for said in App(compspec(**{name: one})).problems())
    assert any(sentence in said for said in App(compspec(**{name: one})).problems())
