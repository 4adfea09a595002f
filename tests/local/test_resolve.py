"""`rankdad resolve`: a run that names its columns already is written as it is."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from rankdad.common.spec import RunSpec
from rankdad.local.cli import mount
from tests.conftest import run_document


def test_a_run_without_patterns_is_written_for_whoever_goes_on_with_it(tmp_path: Path) -> None:
    """It was an error, and no file was there for the next command."""
    app = typer.Typer()
    mount(app)
    (tmp_path / "run.json").write_text(json.dumps({"run": run_document()}))
    words = ["resolve", str(tmp_path / "run.json"), str(tmp_path), "--output", str(tmp_path / "out.json")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert RunSpec.read(tmp_path / "out.json") == RunSpec.read(tmp_path / "run.json")
