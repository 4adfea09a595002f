"""A power cut at the aggregator, at any moment: weights and tables are those of an undisturbed run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NO_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not there, which makes the shim")


@NO_COMPILER
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cuts", "seed"), [(6, 1), pytest.param(50, 0, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_what_was_not_synced_when_the_power_went_is_made_again(tmp_path: Path, cuts: int, seed: int) -> None:
    shim = tmp_path / "power_cut.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, HERE / "power_cut.c", "-ldl", "-pthread"], check=True)
    own = {"POWER_CUT_FOLDER": f"{tmp_path}/cut", "POWER_CUT_LOG": f"{tmp_path}/log", "LD_PRELOAD": str(shim)}
    command = [sys.executable, "-m", "tests.simulations.power_cuts", str(tmp_path / "work"), str(cuts), str(seed)]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("as undisturbed") == cuts
