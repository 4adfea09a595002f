"""The rules for a compspec: a good document passes, and each single fault is named."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from tests.coinstac.compspec_rules import problems, refused

ABSENT = object()


def described(order: int, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "label": "A",
        "tooltip": "What A is",
        "group": "Model",
        "source": "owner",
        "order": order,
        "type": kind,
    } | more


GOOD: dict[str, Any] = {
    "meta": {
        "id": "a",
        "name": "A",
        "description": "It computes a",
        "repository": "https://example.org/a",
        "version": "v1",
        "compspecVersion": 2,
        "tags": ["further"],
    },
    "computation": {
        "type": "docker",
        "dockerImage": "example/a",
        "command": ["unused"],
        "remote": {"type": "docker", "dockerImage": "example/a", "command": ["unused"]},
        "input": {
            "method": described(0, "select", values=["dsgd", "rank-dad"], default="rank-dad"),
            "rank": described(
                1, "number", min=1, max=64, step=1, default=4, conditional={"variable": "method", "value": "rank-dad"}
            ),
            "rate": described(2, "number", min=0, step=0.1, default=0.3),
            "patience": described(4, "number", conditional={"variable": "method", "value": "dsgd"}),
            "data": described(5, "files", source="member", extensions=["csv"], default=[]),
        },
        "output": {"auc": {"label": "AUC", "type": "number"}},
        "display": {"type": "table"},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    *folders, last = path.split(".")
    place = document
    for folder in folders:
        place = place[folder]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return document


def test_a_good_document() -> None:
    assert problems(GOOD) == []
    assert problems(changed("computation.remote", ABSENT)) == []
    assert problems(changed("computation.display", [{"type": "string"}, {"type": "box_plot"}])) == []
    assert problems(changed("computation.input.folder", described(9, "directory", source="member", default=""))) == []


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("meta.version", 1, "meta.version must be a string"),
        ("meta.name", "", "meta.name must be a string"),
        ("meta.repository", ABSENT, "meta.repository must be a string"),
        ("meta.author", "A", "meta: `author` is not allowed"),
        ("meta", "a", "meta must be an object"),
        ("local", {}, "the document: `local` is not allowed"),
        ("computation.containerOptions", {}, "computation: `containerOptions` is not allowed"),
        ("computation.command", [], "computation.command must be a list"),
        ("computation.display", ABSENT, "computation.display is missing"),
        ("computation.input", ABSENT, "computation.input is missing"),
        ("computation.remote", None, "computation.remote must be an object"),
        ("computation.remote.dockerImage", ABSENT, "computation.remote.dockerImage must be a string"),
        ("computation.remote.shmSize", 1, "computation.remote: `shmSize` is not allowed"),
    ],
)
def test_what_the_upload_refuses(path: str, value: Any, sentence: str) -> None:
    (found,) = refused(changed(path, value))
    assert found.startswith(sentence)
    assert found in problems(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("meta.compspecVersion", ABSENT, "meta.compspecVersion must be 2"),
        ("computation.type", "singularity", 'computation.type must be "docker"'),
        ("computation.remote.type", "singularity", 'computation.remote.type must be "docker"'),
        ("computation.display", {"type": "pie"}, "computation.display must be objects"),
        ("computation.output", [], "computation.output must be an object"),
        ("computation.input", None, "computation.input must be an object"),
    ],
)
def test_what_the_upload_takes_and_the_platform_cannot_use(path: str, value: Any, sentence: str) -> None:
    assert refused(changed(path, value)) == []
    (found,) = problems(changed(path, value))
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rank.type", "integer", "no type 'integer' is known here"),
        ("rank.source", "site", "`source` must be"),
        ("rank.label", ABSENT, "`label` must be a string"),
        ("rank.tooltip", "", "`tooltip` must be a string"),
        ("rank.group", ABSENT, "`group` must be a string"),
        ("rank.order", ABSENT, "`order` must be a number"),
        ("rank.order", 0, "`order` 0 is that of method"),
        ("rank.defaultValue", 4, "`defaultValue` is ignored"),
        ("rank.placeholder", "4", "`placeholder` is not allowed"),
        ("rank.default", 65, "the default 65 is not possible"),
        ("rank.default", 1.5, "the default 1.5 is not possible"),
        ("rank.default", "4", "the default '4' is not possible"),
        ("rank.default", True, "the default True is not possible"),
        ("rank.min", 100, "`min` is larger than `max`"),
        ("rank.step", 0, "`step` must be larger than 0"),
        ("rank.max", "64", "must be numbers"),
        ("rank.conditional", {"variable": "kind", "value": "rank-dad"}, "names no other input: 'kind'"),
        ("rank.conditional", {"variable": "rank", "value": 1}, "names no other input: 'rank'"),
        ("rank.conditional", {"variable": "method", "value": "edad"}, "waits for 'edad', which method cannot be"),
        ("rank.conditional", {"variable": "method"}, "must have `variable` and `value` alone"),
        ("patience.conditional", {"variable": "rate", "value": -1}, "waits for -1"),
        ("patience.conditional", {"variable": "data", "value": "a.csv"}, "which data cannot be"),
        ("method.values", ABSENT, "`values` must be a list"),
        ("method.values", ["dsgd", "dsgd", "rank-dad"], "has something twice"),
        ("data.values", [1], "`values` means nothing for the type files"),
        ("data.max", 1, "`max` means nothing for the type files"),
        ("data.default", "a.csv", "the default 'a.csv' is not possible"),
        ("rate", "number", "input rate must be an object"),
    ],
)
def test_what_the_form_cannot_show(path: str, value: Any, words: str) -> None:
    found = problems(changed(f"computation.input.{path}", value))
    name = path.split(".")[0]
    assert re.search(re.escape(words), found[0])
    assert found[0].startswith(f"input {name}")
    assert len(found) == 1


def test_anything_may_be_judged() -> None:
    documents: list[Any] = [None, [], {}, {"meta": None, "computation": []}, changed("computation.input.rank.type", [])]
    for document in [*documents, changed("computation.display", {"type": {}})]:
        assert problems(document)
