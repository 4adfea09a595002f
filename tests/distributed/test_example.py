"""The training loop of docs/tutorials/first-loop.md is docs/tutorials/low_rank.py, and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
EXAMPLE = TUTORIALS / "low_rank.py"


@pytest.mark.slow
def test_the_example_ends_with_equal_weights_at_both_ranks() -> None:
    code = EXAMPLE.read_text()
    assert textwrap.indent(code.rstrip("\n"), "    ") in (TUTORIALS / "first-loop.md").read_text()
    assert len(code.splitlines()) <= 40
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = re.findall(r"rank \d: accuracy ([\d.]+), weights add up to (\S+)", ended.stdout)
    assert len(said) == 2, ended.stderr
    assert all(float(accuracy) > 0.8 for accuracy, _ in said)
    assert said[0][1] == said[1][1]
