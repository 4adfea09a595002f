"""Packages of the user's own that have the name of one of ours: one sentence instead of a wrong import."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from common.errors import SpecError
from common.models import build_model
from tests.conftest import run_spec

ROOT = Path(__file__).parent.parent.parent
ADVICE = "is rankdad's own package: give yours another name"


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with packages of our names, none of which may run."""
    importlib.import_module("rankdad")  # as in the command, all packages of ours are there
    for name in ("common", "local", "remote", "simulations"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "models.py"):
            (tmp_path / name / file).write_text("raise SystemExit('the package of the user ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


@pytest.mark.parametrize("factory", ["common:make", "local.models:make", "simulations.nets.small:make", "rankdad:make"])
def test_a_factory_of_our_name_is_said_to_be_ours(users: Path, factory: str) -> None:
    with pytest.raises(SpecError, match=ADVICE) as error:
        build_model(run_spec(model={"name": "factory", "factory": factory}), [factory])
    assert error.value.field == "model.factory"


@pytest.mark.parametrize("line", ["from common import blocks", "import local.blocks", "from remote.nets import Net"])
def test_so_is_a_package_that_a_factory_imports(users: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setitem(sys.modules, "mine", ModuleType("mine"))
    monkeypatch.delitem(sys.modules, "mine")
    (users / "mine.py").write_text(f"{line}\n")
    with pytest.raises(SpecError, match=ADVICE):
        build_model(run_spec(model={"name": "factory", "factory": "mine:make"}), ["mine:make"])


@pytest.mark.parametrize(
    ("name", "arguments", "path"),
    [
        ("common", ("-m", "rankdad"), ""),  # `python -m` looks in the working directory first
        ("simulations", ("-m", "rankdad"), ""),
        ("local", ("-P", "-c", "import rankdad"), "."),  # as the console script, with PYTHONPATH
    ],
)
def test_no_command_starts_with_a_package_that_is_not_ours(
    tmp_path: Path, name: str, arguments: tuple[str, ...], path: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('the package of the user ran')\n")
    (tmp_path / "remote").mkdir(exist_ok=True)  # a mere folder is in nobody's way
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (path, str(ROOT))))}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(
        f"error: {tmp_path / name / '__init__.py'} has the name of rankdad's own package {name}"
    )
    assert done.stderr.count("\n") == 1
