"""The wheel in an environment of its own, in a folder with packages that have the names of our subpackages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from a clone: what is not committed is not in it."""
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)], check=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"rankdad", f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert "rankdad/simulations/specs/digits.json" in names
    assert not [name for name in names if "benchmark" in name]


def test_it_runs_beside_packages_that_have_our_rooms_names(wheel: Path, tmp_path: Path) -> None:
    """What rankdad needs is taken from where it lies: it is rankdad that is installed afresh."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    here = tmp_path / "here"
    for name in ("local", "remote", "simulations", "platforms"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("raise SystemExit('the package of the user ran')\n")
    (here / "common.py").write_text("raise SystemExit('the package of the user ran')\n")

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    code = "import rankdad, sys; print(rankdad.__file__, 'torch' in sys.modules, rankdad.spi.__module__)"
    assert run(python, "-c", code).stdout.split() == [
        str(packages / "rankdad" / "__init__.py"),
        "False",
        "rankdad.common.lowrank.reduction.spi",
    ]
    times = [run(python, "-X", "importtime", "-c", "import rankdad").stderr for _ in range(3)]
    taken = [int(re.findall(r"(\d+) \| +rankdad$", text, flags=re.MULTILINE)[-1]) for text in times]
    assert min(taken) < 200_000, f"{taken} microseconds"
    spec = str(packages / "rankdad" / "simulations" / "specs" / "digits.json")
    summary = run(str(Path(python).parent / "rankdad"), "simulate", spec, "--set", "run.training.epochs=1", "--json")
    assert json.loads(summary.stdout)["epochs"] == 1
