"""What training takes in memory does not grow with the volumes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.volumes import write_volumes

ROOT = Path(__file__).parent.parent.parent


def trained(folder: Path, count: int, held: bool = False) -> dict[str, Any]:
    write_volumes(folder, count, 64)  # of 1 MiB each
    options = json.dumps({"side": 64, "batch_size": 4, "filters": [], "held": held})
    words = [sys.executable, "-m", "benchmarks.volumes", str(folder), '{"cache_mib": 16}', options]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_what_is_resident_does_not_grow_with_the_volumes(tmp_path: Path) -> None:
    few, many = trained(tmp_path / "few", 32), trained(tmp_path / "many", 192)
    assert many["volumes_mib"] - few["volumes_mib"] == 160
    assert many["peak_mib"] - few["peak_mib"] < 60
    held = trained(tmp_path / "many", 192, held=True)
    assert held["peak_mib"] - few["peak_mib"] > 120, "the measure sees what is held"
    assert held["weights"] == many["weights"]
