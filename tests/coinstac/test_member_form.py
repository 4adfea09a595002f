"""What members see of a form, what arrives of it, and how their files and tables are linked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.coinstac.app import App, Mapped
from tests.coinstac.forms import MEMBER, OWNER, below, compspec, files, form, member
from tests.coinstac.typed import AppError, Tick


def test_members_see_seven_types_and_cannot_save_without_the_others() -> None:
    kinds = "csv files directory number string boolean object select freesurfer radio range array set matrix users"
    inputs = {kind: {**MEMBER, "type": kind, "default": 1} for kind in kinds.split()}
    assert form(**inputs).shown() == ["csv", "files", "directory", "number", "string", "boolean", "object"]
    select = {**MEMBER, "type": "select", "values": ["a"], "default": "a"}
    with pytest.raises(AppError, match="members do not see b, they see a"):
        form(a=inputs["number"], b=select).member("m", {"a": 1, "b": "a"})
    with pytest.raises(AppError, match="Please set value for b: a select, which members do not see"):
        form(a=inputs["number"], b=select).member("m", {"a": 1})


def test_a_members_field_without_a_default_is_seen_once_the_owner_has_added_a_row() -> None:
    data = {**MEMBER, "type": "files", "items": ["npz"]}
    assert form(a=data).shown() == []
    assert form({"a": ["npz"]}, a=data).shown() == ["a"]
    assert form(a={**data, "default": []}).shown() == ["a"]
    folder = {**MEMBER, "type": "directory"}
    assert form(a=folder).shown() == ["a"]
    assert form(a={**folder, "order": 2}, b={**folder, "order": 1}).shown() == ["a"]
    assert form(a={**folder, "order": 2}, b={**folder, "order": 1, "group": "A"}).shown() == ["b"]
    assert form(a={**folder, "default": ""}, b={**folder, "default": ""}).shown() == ["a", "b"]


def test_a_condition_hides_nothing_from_members() -> None:
    waits = {"conditional": {"variable": "b", "value": True}}
    assert form(a={**MEMBER, "type": "number", "default": 1, **waits}, b={**OWNER, "type": "boolean"}).shown() == ["a"]


@pytest.mark.parametrize(
    ("kind", "given", "default", "arrives", "lost"),
    [
        ("number", "7", 3, 7, ""),
        ("number", "-2", 3, -2, ""),
        ("number", "0.5", 3, 0, "a: 0.5 arrives as 0"),
        ("number", "1e3", 3, 1, "a: 1e3 arrives as 1"),
        ("number", "-2.9", 3, -2, "a: -2.9 arrives as -2"),
        ("number", ".5", 3, None, "a: .5 arrives as null"),
        ("number", Tick.USE_DEFAULT, 0.5, 0.5, ""),
        ("string", "hospital-a", "", "", "a: what a member types into a string is lost, '' arrives"),
        ("string", "hospital-a", "x", "x", "a: what a member types into a string is lost, 'x' arrives"),
        ("string", Tick.USE_DEFAULT, "x", "x", ""),
        ("boolean", True, True, True, ""),
        ("boolean", False, True, False, ""),
        ("boolean", Tick.USE_DEFAULT, True, True, ""),
        ("object", Tick.USE_DEFAULT, {"b": 1}, {"b": 1}, ""),
    ],
)
def test_what_arrives_of_what_a_member_types(kind: str, given: Any, default: Any, arrives: Any, lost: str) -> None:
    mapped = member(kind, given, default=default)
    assert json.dumps(mapped.inputs) == json.dumps({"a": arrives})
    assert mapped.lost == ((lost,) if lost else ())
    assert mapped.inputspec == {"a": {"value": arrives}}


@pytest.mark.parametrize(
    ("kind", "given", "more", "why"),
    [
        ("object", {"b": 2}, {"default": {}}, "the editor fails"),
        ("number", Tick.USE_DEFAULT, {"default": 0}, "no box Use Default"),
        ("number", "", {"default": 1, "required": True}, "Please set value"),
        ("boolean", "yes", {"default": True}, "'yes' is not offered"),
        ("files", [], {}, "no file is chosen"),
        ("files", "/nowhere/a.npz", {}, "there is no file /nowhere/a.npz"),
        ("directory", "/nowhere", {}, "there is no folder /nowhere"),
    ],
)
def test_what_a_member_cannot_give(kind: str, given: Any, more: dict[str, Any], why: str) -> None:
    with pytest.raises(AppError, match=f"^a: .*{why}"):
        member(kind, given, **more)


def test_a_member_gives_everything() -> None:
    with pytest.raises(AppError, match=r"Please set value for a$"):
        form(a={**MEMBER, "type": "number", "default": 1}).member("m")


def test_the_dialog_shows_files_with_an_extension_until_it_shows_all(tmp_path: Path) -> None:
    (data,) = files(tmp_path, "a.NPZ")
    (other,) = files(tmp_path, "a.csv")
    data_field = {**MEMBER, "type": "files", "default": [], "extensions": ["npz"]}
    assert form(a=data_field).member("m", {"a": data}).inputs == {"a": ["a.NPZ"]}
    with pytest.raises(AppError, match=r"a: the dialog does not show a.csv, only npz"):
        form(a=data_field).member("m", {"a": [data, other]})
    assert form(a=data_field).member("m", {"a": other}, all_files=True).inputs == {"a": ["a.csv"]}
    assert form(a={**data_field, "extensions": [["npz"]]}).member("m", {"a": other}).inputs == {"a": ["a.csv"]}


def test_files_are_hard_linked_by_their_base_names(tmp_path: Path) -> None:
    picked = files(tmp_path / "of", "one/a.npz", "two/b.npz")
    mapped = member("files", picked)
    assert (mapped.inputs, mapped.lost, mapped.late) == ({"a": ["a.npz", "b.npz"]}, (), 0)
    started = mapped.start(tmp_path / "app")
    assert below(started.base) == {"a.npz", "b.npz"}
    assert (started.base / "b.npz").samefile(picked[1])
    twice = member("files", files(tmp_path / "of", "one/a.npz", "two/a.npz"))
    assert twice.lost == ("a.npz: 2 files have this name, one is linked",)
    assert (twice.start(tmp_path / "twice").base / "a.npz").samefile(tmp_path / "of/one/a.npz")


def test_a_link_that_is_picked_points_to_nowhere_in_a_container(tmp_path: Path) -> None:
    (data,) = files(tmp_path / "of", "a.npz")
    (data.parent / "link.npz").symlink_to(data)
    started = member("files", data.parent / "link.npz").start(tmp_path / "app")
    assert (started.base / "link.npz").is_symlink()


def test_a_directory_arrives_as_the_hosts_path_and_its_files_late_from_any_depth(tmp_path: Path) -> None:
    files(tmp_path / "data", "x.csv", "deep/er/y.npz", ".DS_Store")
    mapped = member("directory", tmp_path / "data")
    assert mapped.inputs == {"a": str(tmp_path / "data")}
    assert mapped.late == 1
    started = mapped.start(tmp_path / "app", linked=False)
    assert below(started.base) == set()
    mapped.link(started.base)
    assert below(started.base) == {"x.csv", "deep/er/y.npz"}


def test_beside_a_directory_files_from_elsewhere_are_not_linked(tmp_path: Path) -> None:
    files(tmp_path, "data/x.csv", "else/a.npz")
    inputs: dict[str, Any] = {
        "a": {**MEMBER, "type": "files", "default": [], "items": ["npz"]},
        "b": {**MEMBER, "type": "directory"},
    }
    mapped = form(**inputs).member("m", {"a": tmp_path / "else/a.npz", "b": tmp_path / "data"})
    assert mapped.lost == (f"{tmp_path}/else/a.npz is not linked, it lies outside of {tmp_path}/data",)
    assert below(mapped.start(tmp_path / "app").base) == {"x.csv"}
    assert "a member's directory beside files" in App(compspec(**inputs)).problems()[-1]


def table(folder: Path, text: str, *columns: tuple[str, str]) -> Mapped:
    folder.mkdir(exist_ok=True)
    (folder / "t.csv").write_text(text)
    field = {**MEMBER, "type": "csv", "items": ["boolean", "number", "string"]}
    return form({"a": columns}, a=field).member("m", {"a": folder / "t.csv"})


def test_a_csvs_first_column_names_files(tmp_path: Path) -> None:
    folder = tmp_path / "of"
    files(folder, "a.txt", "sub/b.txt", "c.txt")
    text = "file,age,sex,ok\na.txt,50,F,true\nsub/b.txt, 60 ,M,FALSE\nc.txt,7,,true\nd.txt,x,F,true\ne.txt,1,F,1\n"
    mapped = table(folder, text, ("age", "number"), ("sex", "string"), ("ok", "boolean"))
    people = {"a.txt": {"age": 50, "sex": "F", "ok": True}, "sub/b.txt": {"age": 60, "sex": "M", "ok": False}}
    assert mapped.inputs == {"a": people}
    assert [said.split(": ", 1)[1] for said in mapped.lost] == [
        "c.txt is left out: Could not convert  to a string",
        "d.txt is left out: Could not convert x to a number",
        "e.txt is left out: Could not convert 1 to a boolean",
    ]
    assert below(mapped.start(tmp_path / "app").base) == {"a.txt", "b.txt"}
    with pytest.raises(AppError, match="Missing fields: file of age, sex, ok"):
        table(folder, text, ("file", "string"))


def test_a_csv_of_ids_or_of_ages_names_no_files(tmp_path: Path) -> None:
    ids = table(tmp_path, "id,age\nP1,50\n007,60\n", ("age", "number"))
    assert (ids.inputs, ids.lost) == ({"a": {"P1": {"age": 50}, "7": {"age": 60}}}, ())
    with pytest.raises(AppError, match=f"ENOENT: no such file or directory, link '{tmp_path}/P1' -> '.*/P1'"):
        ids.start(tmp_path / "app")
    ages = table(tmp_path, "age,sex\n50,1\n60,0\n50,0\n", ("sex", "number"))
    assert ages.inputs == {"a": {"50": {"sex": 0}, "60": {"sex": 0}}}
    assert ages.lost == ("a: rows kept: 2 of 3, of t.csv alone",)
