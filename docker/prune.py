"""Removes from an environment what no program runs: tests, sources in C, stubs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNUSED = (
    *("**/tests", "torch/test", "torch/bin/*[tT]est*", "torch/bin/protoc*", "torch/include", "torch/share"),
    *("**/*.[ch]", "**/*.pyi"),
)


def prune(environment: Path) -> None:
    """Remove what is not used.

    Args:
        environment: a virtual environment.
    """
    (packages,) = environment.glob("lib/python3.*/site-packages")
    unused = [path for pattern in UNUSED for path in packages.glob(pattern)]
    unused += [path for path in (environment / "bin").iterdir() if not path.name.startswith("python")]
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it was in a folder that is gone


if __name__ == "__main__":
    prune(Path(sys.argv[1]))
