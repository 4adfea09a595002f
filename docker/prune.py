"""Removes from an environment what no program runs: tests, sources in C, stubs, scikit-learn except a few tables."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNUSED = (
    *("**/tests", "torch/test", "torch/bin/*[tT]est*", "torch/bin/protoc*", "torch/include", "torch/share"),
    *("**/*.[ch]", "**/*.pyi"),
    # nothing computes with scikit-learn, nor with what it needs
    *("scikit_learn-*", "scipy*", "joblib*", "threadpoolctl*", "narwhals*", "cloudpickle*"),
)
TABLES = frozenset({"digits.csv.gz", "diabetes_data_raw.csv.gz", "diabetes_target.csv.gz", "breast_cancer.csv"})


def prune(environment: Path) -> None:
    """Remove what is not used.

    Args:
        environment: a virtual environment.
    """
    (packages,) = environment.glob("lib/python3.*/site-packages")
    sklearn = packages / "sklearn"
    unused = [path for pattern in UNUSED for path in packages.glob(pattern)]
    unused += [path for path in sklearn.rglob("*") if path.is_file() and path.name not in TABLES]
    unused += [path for path in (environment / "bin").iterdir() if not path.name.startswith("python")]
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it was in a folder that is gone
    (sklearn / "__init__.py").write_text('"""Of scikit-learn this image has tables alone."""\n')


if __name__ == "__main__":
    prune(Path(sys.argv[1]))
