"""Python with the methods of the benchmarks, as `python -m benchmarks` has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def with_plugins(*words: str) -> None:
    """Run Python with these words, and see that it ends well."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks" / "plugins")))
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
