"""What the commands say and how they exit; the work behind them has tests of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from common.methods.base import pooled
from simulations.cli import mount
from tests.conftest import OPEN, run_document, write_site


def rankdad(*words: object) -> Result:
    app = typer.Typer()
    mount(app)
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pool = write_site(tmp_path / "pool", 150, 0)
    run = run_document(model={"name": "mlp", "hidden": [64, 64]}, method={"name": "rank-dad", "rank": 2})
    simulation = {"source": {"name": "npz", "path": str(pool / "data.npz")}, "policy": OPEN}
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"run": run, "simulation": simulation}))
    return path


def test_verify_exits_with_1_if_an_exact_method_is_not(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rankdad("verify", file).exit_code == 0
    monkeypatch.setattr("common.methods.dad.pooled", lambda contributions: pooled(contributions[:2]))  # one forgotten
    done = rankdad("verify", file)
    assert done.exit_code == 1
    assert "NOT EXACT" in done.output


@pytest.mark.parametrize(
    ("scaling", "said"),
    [("none", "learning rate still 0.01"), ("linear", "learning rate 0.06 instead of 0.03")],
)
def test_another_number_of_sites_says_what_it_does(file: Path, tmp_path: Path, scaling: str, said: str) -> None:
    sets = ["--set", f'run.training.lr_scaling="{scaling}"', "--set", "run.training.epochs=1"]
    done = rankdad("simulate", file, "--sites", 6, "--lockstep", "--output", tmp_path / "run", *sets)
    assert done.exit_code == 0, done.output
    assert "6 sites instead of 3: a global batch of 48 samples instead of 24" in done.output
    assert said in done.output


@pytest.mark.parametrize(("command", "said"), [("check", "32 × 11"), ("verify", "exact: equal to the pooled gradient")])
def test_columns_that_patterns_stand_for_are_those_of_the_table(command: str, said: str) -> None:
    """A regression from a table that comes with scikit-learn."""
    result = rankdad(command, Path(__file__).parents[2] / "simulations" / "specs" / "diabetes.json")
    assert result.exit_code == 0, result.exception
    assert said in result.stdout
