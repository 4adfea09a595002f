"""Removes from an environment what no command of the project uses, which is half a gigabyte."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNUSED = (
    *("torch/test", "torch/include", "torch/share", "torch/bin/*test*", "torch/bin/*Test*"),
    *("torch/bin/protoc*", "**/*.a", "**/*.h", "**/*.pxd", "**/*.pyi"),
    # scikit-learn brings the digits, one file; nothing computes with it or with what it needs
    *("scipy", "scipy-*", "scipy.libs", "scikit_learn*", "joblib*", "threadpoolctl*", "narwhals*", "cloudpickle*"),
)
DIGITS = "sklearn/datasets/data/digits.csv.gz"


def prune(environment: Path) -> None:
    """Remove what is not used, tests among it, and all commands but Python.

    Args:
        environment: a virtual environment; its modules are not compiled yet.
    """
    (packages,) = environment.glob("lib/python3.*/site-packages")
    unused = [path for pattern in UNUSED for path in packages.glob(pattern)]
    unused += [path for path in packages.glob("*/**/tests") if path.is_dir()]
    unused += [path for path in (environment / "bin").iterdir() if not path.name.startswith("python")]
    unused += [path for path in (packages / "sklearn").rglob("*") if path.is_file() and path != packages / DIGITS]
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it was in a folder that is gone
    (packages / "sklearn" / "__init__.py").write_text('"""Of scikit-learn this image has the digits alone."""\n')


if __name__ == "__main__":
    prune(Path(sys.argv[1]))
