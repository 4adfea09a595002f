"""Removes from an environment what no command of the project uses, which is half a gigabyte."""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

UNUSED = (
    *("torch/test", "torch/include", "torch/share", "torch/bin/*test*", "torch/bin/*Test*"),
    *("torch/bin/protoc*", "**/*.a", "**/*.h", "**/*.pxd", "**/*.pyi"),
    # scikit-learn brings data sets, a few files; nothing computes with it or with what it needs
    *("scipy", "scipy-*", "scipy.libs", "scikit_learn*", "joblib*", "threadpoolctl*", "narwhals*", "cloudpickle*"),
    # figures are PNG: fontTools is for PDF and PostScript
    *("fontTools", "fonttools*", "matplotlib/mpl-data/sample_data", "matplotlib/mpl-data/fonts/afm"),
    *("matplotlib/mpl-data/fonts/pdfcorefonts", "matplotlib/mpl-data/images", "mpl_toolkits"),
    *("pillow.libs/libavif*", "PIL/_avif*", "pygments/lexers/[a-z]*.py"),
    *("matplotlib/mpl-data/fonts/ttf/cm*", "matplotlib/mpl-data/fonts/ttf/STIX*", "numpy/f2py"),
)
DATA_SETS = frozenset({"digits.csv.gz", "diabetes_data_raw.csv.gz", "diabetes_target.csv.gz", "breast_cancer.csv"})


def prune(environment: Path) -> None:
    """Remove what is not used, tests among it, and all commands but Python.

    Args:
        environment: a virtual environment; its modules are not compiled yet.
    """
    (packages,) = environment.glob("lib/python3.*/site-packages")
    unused = [path for pattern in UNUSED for path in packages.glob(pattern)]
    unused += [path for path in packages.glob("*/**/tests") if path.is_dir()]
    unused += [path for path in (environment / "bin").iterdir() if not path.name.startswith("python")]
    kept = {packages / "sklearn" / "datasets" / "data" / name for name in DATA_SETS}
    unused += [path for path in (packages / "sklearn").rglob("*") if path.is_file() and path not in kept]
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it was in a folder that is gone
    for library in packages.glob("**/*.so*"):
        if "torch" not in library.parts and library.is_file() and not library.is_symlink():
            drop_symbols(library)
    (packages / "sklearn" / "__init__.py").write_text('"""Of scikit-learn this image has data sets alone."""\n')


def drop_symbols(library: Path) -> None:
    """Cut off what a library's last loaded segment is followed by: names for debuggers and linkers, never loaded.

    Source: the ELF-64 specification, file header and program header. Without sections a loader still finds all.
    """
    data = bytearray(library.read_bytes())
    if data[:5] != b"\x7fELF\x02":
        return
    (headers,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = (struct.unpack_from("<8xQ16xQ", data, headers + number * size) for number in range(count))
    end = max(start + length for start, length in segments)
    struct.pack_into("<Q", data, 40, 0)  # where the sections are described, and how many there are
    struct.pack_into("<HHH", data, 58, 0, 0, 0)
    library.write_bytes(data[:end])


if __name__ == "__main__":
    prune(Path(sys.argv[1]))
