from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.platforms.flower.site import name_of, settings_place
from rankdad.remote.hosted import read_job
from tests.conftest import SITES, run_document


def test_the_command_makes_an_app_whose_code_is_imports(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(run_document(name="größer 2")))
    done = CliRunner().invoke(app, ["job", "flower", str(tmp_path / "run.json"), "-o", str(tmp_path / "job")])
    assert done.exit_code == 0, done.output
    project = tomllib.loads((tmp_path / "job" / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    assert set(config) == {"id", "run"}
    number, spec = read_job(config | {"run": json.loads(config["run"])})
    assert (number, spec.federation.sites) == (config["id"], SITES)
    assert project["project"]["dependencies"] == []
    for place in project["tool"]["flwr"]["app"]["components"].values():
        module, _, name = place.partition(":")
        lines = (tmp_path / "job" / f"{module.replace('.', '/')}.py").read_text().splitlines()
        assert [line for line in lines if line] == [
            f"from rankdad.platforms.flower.{module.split('.')[1]} import {name}",
            f'__all__ = ["{name}"]',
        ]


def test_a_node_says_where_its_settings_lie_and_a_simulation_s_are_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings_place({"rankdad": "/etc/rankdad/site.json"}) == "/etc/rankdad/site.json"
    assert settings_place({"partition-id": 0}) == ""
    monkeypatch.setenv("RANKDAD_FLOWER", str(tmp_path))
    for name in ("server", "b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name}))
    assert [name_of(settings_place({"partition-id": part})) for part in range(3)] == ["a", "b", ""]
