"""npz files of plain arrays: read and checked, every fault named with its file and row."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common.data import NpzData
from common.errors import DataError
from local.data.reading import Array, Reading


def read_npz(path: Path, data: NpzData, classes: int, dtype: str) -> Reading:
    """Read inputs, and labels and split where the file has them.

    Raises:
        DataError: unreadable file, no inputs, wrong shape, a label or split out of range.
    """
    arrays = read_arrays(path, ("x", "y", "split"))
    if "x" not in arrays:
        raise DataError(path, "has no array x, expected the inputs")
    inputs = _inputs(path, arrays["x"], data, dtype)
    limits = {"y": classes, "split": 3}
    labels, split = (
        whole_numbers(path, name, arrays[name], len(inputs), limit) if name in arrays else None
        for name, limit in limits.items()
    )
    return Reading(path, inputs, labels, split)


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


def _inputs(path: Path, array: Array, data: NpzData, dtype: str) -> Array:
    expected = data.shape
    if array.ndim == 0 or math.prod(array.shape[1:]) != math.prod(expected):
        raise DataError(path, f"x has shape {list(array.shape)}, expected [samples, {', '.join(map(str, expected))}]")
    if array.dtype.kind not in "biuf":
        raise DataError(path, f"x holds {array.dtype}, expected numbers")
    array = array.reshape(len(array), *expected)
    if data.tokens is not None:
        if array.size and not (array.min() >= 0 and array.max() < data.tokens):
            raise DataError(path, f"x holds {array.min()} to {array.max()}, expected 0 to {data.tokens - 1}")
        return array.astype(np.int64)
    numbers = array.astype(dtype)
    bad = ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
    if bad.any():
        raise DataError(path, f"x holds NaN or infinity in {int(bad.sum())} samples, first in row {int(bad.argmax())}")
    scaled: Array = numbers * np.asarray(data.scale, numbers.dtype)
    return scaled
