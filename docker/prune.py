"""Saves scikit-learn's digits as a file, and removes unused files from an environment.

Removed are tests, C sources, stubs, and scikit-learn with its dependencies, which the image does not need.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

DIGITS = """
import sys
import numpy as np
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
np.savez_compressed(sys.argv[1], x=x.astype(np.uint8), y=y.astype(np.uint8))
"""
UNUSED = (
    *("**/tests", "torch/test", "torch/bin/*[tT]est*", "torch/bin/protoc*", "torch/include", "torch/share"),
    *("**/*.[ch]", "**/*.pyi"),
    *("sklearn", "scikit_learn*", "scipy*", "joblib*", "threadpoolctl*", "narwhals*", "cloudpickle*"),
)


def prune(environment: Path) -> None:
    """Remove unused files.

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
            path.unlink(missing_ok=True)  # its folder may be gone


if __name__ == "__main__":
    environment = Path(sys.argv[1])
    subprocess.run([environment / "bin" / "python", "-IBc", DIGITS, environment / "digits.npz"], check=True)
    prune(environment)
