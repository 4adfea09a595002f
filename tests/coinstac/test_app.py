"""The platform's path from form to container: what each of its rules was measured to do, and what it makes of ours."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.coinstac.app import RUN, App, Form, Mapped
from tests.coinstac.platform import Platform
from tests.coinstac.typed import AppError, Tick

MEMBER = {"source": "member", "label": "A"}
OWNER = {"source": "owner", "label": "A"}


def compspec(image: str = "example/a", remote: str | None = None, **inputs: Any) -> dict[str, Any]:
    service = {"type": "docker", "command": ["unused"]}
    keys = ("id", "name", "description", "repository", "version")
    return {
        "meta": {**dict.fromkeys(keys, "a"), "compspecVersion": 2},
        "computation": {
            **service,
            "dockerImage": image,
            "remote": {**service, "dockerImage": remote or image},
            "input": inputs,
            "output": {},
            "display": {"type": "table"},
        },
    }


def form(typed: Mapping[str, Any] | None = None, **inputs: Any) -> Form:
    return App(compspec(**inputs)).consortium(typed)


def owner(kind: str, typed: Any, **more: Any) -> Any:
    """What arrives of one field of the owner's when this is typed into it."""
    return form({"a": typed}, a={**OWNER, "type": kind, **more}).member("m").inputs.get("a", "nothing")


def member(kind: str, given: Any, **more: Any) -> Mapped:
    """What is saved of one field of a member's."""
    return form(a={**MEMBER, "type": kind, "default": [], **more}).member("m", {"a": given})


def files(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return [folder / name for name in names]


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


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
