"""A power cut at the aggregator, at any moment: weights and tables are those of an undisturbed run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulations.power_cuts import operations

HERE = Path(__file__).parent
REMOVE = """
import pathlib, sys
for number in range(300):
    path = pathlib.Path(sys.argv[1], str(number))
    path.write_text("a")
    path.unlink()
"""
NO_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not there, which makes the shim")


def shimmed(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python command with the shim; it writes the log of what is done below `cut`."""
    shim = folder / "power_cut.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, HERE / "power_cut.c", "-ldl", "-pthread"], check=True)
    own = {"POWER_CUT_FOLDER": f"{folder}/cut", "POWER_CUT_LOG": f"{folder}/log", "LD_PRELOAD": str(shim)}
    env = os.environ | own
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)


@NO_COMPILER
def test_no_file_has_the_number_of_a_removed_one(tmp_path: Path) -> None:
    """Else plan.json took over what a removed journal held, which no disk does, and was not UTF-8 text."""
    folder, log = tmp_path / "cut", tmp_path / "log"
    folder.mkdir()
    done = shimmed(tmp_path, "-c", REMOVE, str(folder))
    assert done.returncode == 0, done.stderr
    written = [one.inode for one in operations(log, log.stat().st_size) if one.kind == "W"]
    assert len(written) == len({*written}) == 300


@NO_COMPILER
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cuts", "seed"), [(6, 1), pytest.param(50, 0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_what_was_not_synced_when_the_power_went_is_made_again(tmp_path: Path, cuts: int, seed: int) -> None:
    done = shimmed(tmp_path, "-m", "tests.simulations.power_cuts", str(tmp_path / "work"), str(cuts), str(seed))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("as undisturbed") == cuts
