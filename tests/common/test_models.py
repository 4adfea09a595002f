"""Packages of the user's own that have the name of one of ours: theirs runs, and ours does not change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankdad.common.errors import SpecError
from rankdad.common.models import build_model
from tests.conftest import run_spec

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("common", "local", "remote", "simulations", "platforms")


def test_a_factory_in_our_own_package_is_said_to_be_ours() -> None:
    with pytest.raises(SpecError, match="rankdad is this program's own package: give yours another name") as error:
        build_model(run_spec(model={"name": "factory", "factory": "rankdad.models:make"}), ["rankdad.models:make"])
    assert error.value.field == "model.factory"


@pytest.mark.slow
def test_folders_of_the_users_are_in_nobodys_way(tmp_path: Path) -> None:
    """The working directory is searched first by `python -m`, and its `common.py` is the user's business."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('the package of the user ran')\n")
    for command in (["-m", "rankdad", "check", "--help"], ["-c", "import rankdad; rankdad.spi"]):
        environment = {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "the user ran" not in done.stdout + done.stderr
