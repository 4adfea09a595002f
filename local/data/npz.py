"""Plain arrays, from npz files or elsewhere: read and checked, every fault named with its array and row."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from common.columns import canonical
from common.data import NpzData
from common.errors import DataError
from common.imaging import FunctionData
from common.tasks import Classification, MultiLabel, TaskSpec
from local.data.reading import Array, Reading

NAMES = ("x", "y", "split", "key", "group", "length")


def read_npz(path: Path, data: NpzData, task: TaskSpec, dtype: str) -> Reading:
    """Read inputs, and what else of NAMES the file has.

    Raises:
        DataError: unreadable file, or naming the array and row of what cannot be used.
    """
    return samples_of(path, read_arrays(path, NAMES), data, task, dtype)


def samples_of(
    source: str | Path, arrays: Mapping[str, Array], data: NpzData | FunctionData, task: TaskSpec, dtype: str
) -> Reading:
    """Check arrays, and return them as samples.

    Args:
        source: where they come from, named in errors.
        arrays: x, and what else there is of NAMES.
        data: the schema.
        task: what the labels belong to.
        dtype: of the inputs, such as "float32".

    Raises:
        DataError: naming the array and row of what cannot be used.
    """
    if "x" not in arrays:
        raise DataError(source, "has no array x, expected the inputs")
    inputs = _inputs(source, arrays["x"], data, dtype)
    count = len(inputs)
    keys = names_in(source, "key", arrays["key"], count) if "key" in arrays else None
    if keys is not None:
        first = dict(zip(reversed(keys), range(count - 1, -1, -1), strict=True))
        for row, key in enumerate(keys):
            if first[key] != row:
                raise DataError(source, f"key holds {key!r} in row {row}, which stands in row {first[key]} too")
    return Reading(
        source,
        inputs,
        labels_in(source, "y", arrays["y"], count, task) if "y" in arrays else None,
        whole_numbers(source, "split", arrays["split"], count, 3) if "split" in arrays else None,
        keys=keys,
        groups=names_in(source, "group", arrays["group"], count) if "group" in arrays else None,
        lengths=_lengths(source, arrays["length"], count, data.shape) if "length" in arrays else None,
    )


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


def whole_numbers(source: str | Path, name: str, array: Array, count: int, limit: int, *, least: int = 0) -> Array:
    """Return an array as int64 [count], if it holds whole numbers from `least` to limit − 1.

    Raises:
        DataError: naming the first wrong row.
    """
    expected = f"expected whole numbers from {least} to {limit - 1}"
    array = _numbers(source, name, array, expected).reshape(-1)
    if len(array) != count:
        raise DataError(source, f"{name} has {len(array)} values for {count} samples")
    bad = ~((array >= least) & (array < limit) & (array == np.floor(array)))
    if bad.any():
        row = int(bad.argmax())
        raise DataError(source, f"{name} holds {array[row]} in row {row}, {expected}")
    return array.astype(np.int64)


def labels_in(source: str | Path, name: str, array: Array, count: int, task: TaskSpec) -> Array:
    """Return a task's labels: int64 [count] of classes, float64 [count] of numbers, [count, labels] of 0 and 1.

    Raises:
        DataError: naming the first wrong row.
    """
    if isinstance(task, Classification):
        return whole_numbers(source, name, array, count, task.classes)
    several = isinstance(task, MultiLabel)
    expected = "expected 0 or 1" if several else "expected finite numbers"
    shape = (count, task.outputs) if several else (count,)
    numbers = _numbers(source, name, array, expected).astype(np.float64)
    if not several and numbers.shape == (count, 1):
        numbers = numbers.reshape(count)
    if numbers.shape != shape:
        raise DataError(source, f"{name} has shape {list(array.shape)}, expected {list(shape)}")
    bad = ~np.isin(numbers, (0, 1)) if several else ~np.isfinite(numbers)
    if bad.any():
        row, *column = (int(place) for place in np.argwhere(bad)[0])
        where = f"row {row}" + "".join(f", column {place}" for place in column)
        raise DataError(source, f"{name} holds {numbers[row, *column]} in {where}, {expected}")
    return numbers


def names_in(source: str | Path, name: str, array: Array, count: int) -> tuple[str, ...]:
    """Return an array of names, which may be numbers.

    Raises:
        DataError: naming the first row without one.
    """
    if array.shape != (count,):
        raise DataError(source, f"{name} has shape {list(array.shape)}, expected [{count}]")
    cells = array.tolist()
    if not all(isinstance(cell, str | int | float) for cell in cells):
        raise DataError(source, f"{name} holds {array.dtype}, expected text or numbers")
    names = tuple(cell.strip() if isinstance(cell, str) else canonical(cell) for cell in cells)
    for row, found in enumerate(names):
        if found in ("", "nan"):
            raise DataError(source, f"{name} is missing in row {row}, expected text or a number")
    return names


def _numbers(source: str | Path, name: str, array: Array, expected: str) -> Array:
    if array.dtype.kind not in "biuf":
        raise DataError(source, f"{name} holds text or objects ({array.dtype}), {expected}")
    return array


def _lengths(source: str | Path, array: Array, count: int, shape: tuple[int, ...]) -> Array:
    if not shape:
        raise DataError(source, "has an array length, but samples of data.shape [] have no steps")
    return whole_numbers(source, "length", array, count, shape[0] + 1, least=1)


def _inputs(source: str | Path, array: Array, data: NpzData | FunctionData, dtype: str) -> Array:
    expected = data.shape
    if array.ndim == 0 or math.prod(array.shape[1:]) != math.prod(expected):
        raise DataError(source, f"x has shape {list(array.shape)}, expected [samples, {', '.join(map(str, expected))}]")
    if array.dtype.kind not in "biuf":
        raise DataError(source, f"x holds {array.dtype}, expected numbers")
    array = array.reshape(len(array), *expected)
    if data.tokens is not None:
        if array.size and not (array.min() >= 0 and array.max() < data.tokens):
            raise DataError(source, f"x holds {array.min()} to {array.max()}, expected 0 to {data.tokens - 1}")
        return array.astype(np.int64)
    numbers = array.astype(dtype)
    bad = ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
    if bad.any():
        first = int(bad.argmax())
        raise DataError(source, f"x holds NaN or infinity in {int(bad.sum())} samples, first in row {first}")
    if isinstance(data, NpzData):
        numbers *= np.asarray(data.scale, numbers.dtype)
    return numbers
