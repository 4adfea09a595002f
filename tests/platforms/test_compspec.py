"""The description for the platform: as the upload wants it, as people need it, and as the spec model has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.documents import validate
from common.spec import RunSpec
from platforms.coinstac.compspec import compspec
from platforms.coinstac.fields import FIELDS
from platforms.coinstac.inputs import read
from tests.coinstac.compspec_rules import problems

SHOWN = [field for field in FIELDS if not field.fixed]


def test_the_file_is_what_the_spec_model_says() -> None:
    file = Path(__file__).parent.parent.parent / "compspec.json"
    assert json.loads(file.read_text()) == compspec(), "make it again: rankdad schema --coinstac > compspec.json"


def test_the_uploads_validator_accepts_it() -> None:
    assert problems(compspec()) == []


def test_every_field_can_be_understood() -> None:
    inputs = compspec()["computation"]["input"]
    assert [field["order"] for field in inputs.values()] == list(range(len(inputs)))
    for field in inputs.values():
        assert field["label"][0].isupper()
        assert field["tooltip"].endswith(".")
        assert field["group"]
    assert {field["type"] for field in inputs.values()} >= {"files", "freesurfer", "csv", "select", "number", "boolean"}


def test_a_form_that_nobody_has_touched_is_a_run() -> None:
    filled = read(FIELDS, {field.variable: field.initial for field in SHOWN} | {"site": "hospital-a"})
    assert not filled.problems
    assert validate(RunSpec, filled.run) == validate(RunSpec, read(FIELDS, {"site": "hospital-a"}).run)


@pytest.mark.parametrize("field", [field for field in SHOWN if field.choices], ids=lambda field: field.variable)
def test_every_choice_of_the_form_is_one_of_the_spec(field: Any) -> None:
    table = {"features": "age", "label": "sex", "values": "F, M", "regions": ["Left-Amygdala"]}
    if field.when is not None:
        table[field.when[0]] = field.when[1][0]
    for choice in field.choices:
        filled = read(FIELDS, {"site": "hospital-a", **table, field.variable: choice})
        assert not filled.problems
        at: Any = filled.run
        for key in field.path.split("."):
            at = at[key]
        assert at == choice
