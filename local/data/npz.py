"""npz files of plain arrays: read and checked, every fault named with its file and row."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError

Array = NDArray[Any]


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Return those of the named arrays that a file has.

    Raises:
        DataError: the file is missing, damaged, no npz file, or holds objects.
    """
    try:
        with path.open("rb") as opened:  # NumPy leaves a file open that it cannot read
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(path, "is a npy file of one array, expected a npz file")
            return {name: file[name] for name in names if name in file.files}
    except FileNotFoundError:
        raise DataError(path, "does not exist") from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(path, f"is not a readable npz file of plain arrays: {error}") from None


def whole_numbers(path: str | Path, name: str, array: Array, count: int, limit: int) -> Array:
    """Return an array as int64 [count], if it holds whole numbers from 0 to limit − 1.

    Raises:
        DataError: naming the first wrong row.
    """
    expected = f"expected whole numbers from 0 to {limit - 1}"
    if array.dtype.kind not in "biuf":
        raise DataError(path, f"{name} holds text or objects ({array.dtype}), {expected}")
    array = array.reshape(-1)
    if len(array) != count:
        raise DataError(path, f"{name} has {len(array)} values for {count} samples")
    bad = ~((array >= 0) & (array < limit) & (array == np.floor(array)))
    if bad.any():
        row = int(bad.argmax())
        raise DataError(path, f"{name} holds {array[row]} in row {row}, {expected}")
    return array.astype(np.int64)
