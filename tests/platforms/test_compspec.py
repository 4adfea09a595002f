"""The description for the platform: as the upload wants it, and as people need it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.errors import UserError
from rankdad.platforms.coinstac.compspec import compspec
from tests.coinstac.compspec_rules import problems

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(("name", "folder"), [("compspec.json", False), ("compspec-folder.json", True)])
def test_the_files_are_what_the_form_says(name: str, folder: bool) -> None:
    again = f"make it again: rankdad schema --coinstac {'--folder' * folder} > {name}"
    assert json.loads((ROOT / name).read_text()) == compspec(folder=folder), again
    printed = CliRunner().invoke(app, ["schema", "--coinstac", *["--folder"] * folder])
    assert printed.stdout == (ROOT / name).read_text()


@pytest.mark.parametrize("folder", [False, True])
def test_the_uploads_validator_accepts_it(folder: bool) -> None:
    assert problems(compspec(folder=folder)) == []


def test_every_field_can_be_understood() -> None:
    inputs = compspec()["computation"]["input"]
    assert [field["order"] for field in inputs.values()] == list(range(len(inputs)))
    for field in inputs.values():
        assert field["label"][0].isupper()
        assert field["tooltip"].endswith(".")
        assert field["group"]


@pytest.mark.parametrize("image", ["rankdad:0.1.0", "registry.example:5000/rankdad:1", "rankdad@sha256:12"])
def test_an_image_with_a_tag_is_refused(image: str) -> None:
    with pytest.raises(UserError, match=r"expected a name without a tag: the platform appends :latest"):
        compspec(image)
    assert compspec("registry.example:5000/team/rankdad")["computation"]["dockerImage"].endswith("/rankdad")
