"""Reads plain arrays, from npz files or a user-defined function. Errors name array and row."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from rankdad.common.data.formats import HEAD, check_fits, format_of
from rankdad.common.data.reading import (
    LOST_DIGITS,
    MISSING,
    PLACE,
    Array,
    Reading,
    fingerprints,
    has_lost_digits,
    shown,
)
from rankdad.common.errors import DataError, RankdadError, one_line
from rankdad.common.files import check_file, open_file
from rankdad.common.spec.data import NpzData
from rankdad.common.spec.images import FunctionData
from rankdad.common.spec.table_schema import composed
from rankdad.common.spec.tasks import Classification, MultiLabel, TaskSpec
from rankdad.common.user_code import resolve

ArrayData = NpzData | FunctionData
NAMES = ("x", "y", "split", "key", "group", "length")


def read_npz(path: Path, data: NpzData, task: TaskSpec, dtype: str, *, training: bool = True) -> Reading:
    """Read inputs, and if present labels, split, keys, groups and lengths of series.

    Args:
        path: of the file.
        data: the schema.
        task: what is predicted.
        dtype: of the inputs, such as "float32".
        training: whether to read for training; for predictions, labels may be NaN.

    Raises:
        DataError: the file is unreadable, has no inputs or wrong shapes, or a value is out of range.
    """
    return samples_of(path, read_arrays(path, NAMES), data, task, dtype, training=training)


def samples_of(
    path: str | Path,
    arrays: Mapping[str, Array],
    data: ArrayData,
    task: TaskSpec,
    dtype: str,
    *,
    training: bool = True,
) -> Reading:
    """Check arrays, and return them as samples.

    Args:
        path: of the arrays, for errors.
        arrays: x, and optionally others of NAMES.
        data: the schema.
        task: what is predicted.
        dtype: of the inputs, such as "float32".
        training: whether to read for training; for predictions, labels may be NaN.

    Raises:
        DataError: there are no inputs, a shape is wrong, or a value is out of range.
    """
    if "x" not in arrays:
        raise DataError(path, "has no array x, expected the inputs", code="array-missing")
    inputs = _inputs(path, arrays["x"], data, dtype, arrays.get("length"))
    count, labels = len(inputs), arrays.get("y")
    notes: tuple[str, ...] = ()
    if labels is not None and not training and labels.dtype.kind == "f" and np.isnan(labels).any():
        labels, notes = None, (f"{path}: y holds NaN; labels are not used",)
    if labels is not None:
        labels = labels_in(path, "y", labels, count, task)
    split = whole_numbers(path, "split", arrays["split"], count, 3) if "split" in arrays else None
    keys = _texts(path, "key", arrays["key"], count) if "key" in arrays else None
    groups = _texts(path, "group", arrays["group"], count) if "group" in arrays else None
    if keys is not None:
        _check_distinct(path, keys)
    return Reading(
        path,
        inputs,
        labels,
        split,
        keys,
        groups,
        notes=notes,
        named_by=next((f"the array {name}" for name in ("group", "key") if name in arrays), PLACE),
        stands=lambda: {"samples": fingerprints(arrays["x"])} if training and data.tokens is None else {},
    )


def read_function(path: Path, data: FunctionData, task: TaskSpec, dtype: str, allowed: Collection[str] = ()) -> Reading:
    """Call the schema's function with a folder, and check what it returns.

    Args:
        path: the site's folder.
        data: the schema.
        task: what is predicted.
        dtype: of the inputs, such as "float32".
        allowed: names of functions that the caller allows.

    Raises:
        PolicyError: the function is not allowed.
        SpecError: it cannot be imported.
        DataError: it raised an error, or returned unusable arrays; names array and row.
    """
    function, source = resolve(data.function, allowed, "data.function"), f"{path} ({data.function})"
    try:
        returned = function(path, **data.arguments)
    except RankdadError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(
            source, f"the function raised {one_line(error)!r}", code="function-raised"
        ) from error  # quoted, because it may reveal samples
    if not isinstance(returned, Mapping):
        raise DataError(
            source,
            f"the function returned {type(returned).__name__}, expected a dict of arrays",
            code="function-returned-no-arrays",
        )
    arrays: dict[str, Array] = {}
    for name, array in returned.items():
        if name not in NAMES:
            raise DataError(
                source,
                f"the function returned an array {name!r}, expected one of {', '.join(NAMES)}",
                code="array-unknown",
            )
        try:
            arrays[name] = np.asarray(array)
        except (ValueError, TypeError, RuntimeError) as error:
            raise DataError(source, f"{name} is no array: {one_line(error)!r}", code="not-an-array") from None
    return samples_of(source, arrays, data, task, dtype)


def padded(series: Sequence[Array], frames: int, dtype: str) -> tuple[Array, Array]:
    """Pad series [time, features] with 0 to one array [n, frames, features]; return it with lengths [n]."""
    length = np.array([len(one) for one in series])
    x = np.zeros((len(series), frames, series[0].shape[1]), dtype)
    with np.errstate(over="ignore"):  # infinite values are refused later
        x[np.arange(frames) < length[:, None]] = np.concatenate(series)
    return x, length


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Return the named arrays that a file has.

    Raises:
        DataError: the file is missing, damaged, no npz file, or holds objects; an array has another size than it
            states; or they do not fit into memory.
    """
    check_file(path)
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = {name: info for name in names if (info := archive.NameToInfo.get(f"{name}.npy"))}
            check_fits(path, "its arrays", sum(info.file_size for info in members.values()))
            return {name: _array(archive, info) for name, info in members.items()}
    except DataError:
        raise
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    except Exception as error:  # zipfile, zlib and NumPy raise many kinds of errors for damaged bytes
        why = _what(path) or one_line(error)
        raise DataError(path, f"is not a readable npz file of plain arrays: {why}", code="npz-unreadable") from None


def _what(path: Path) -> str | None:
    """Describe a file that is no zip archive."""
    with open_file(path) as file:
        meaning = format_of(file.read(HEAD))
        meaning = None if zipfile.is_zipfile(file) else meaning
    return meaning and f"it is {meaning}"


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as member:
        found: Array = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):  # reading to the end also verifies the checksum
            raise ValueError(f"{info.filename} is longer than its shape {list(found.shape)} says")
    return found


def whole_numbers(path: str | Path, name: str, array: Array, count: int, limit: int, *, least: int = 0) -> Array:
    """Return an array of whole numbers from `least` to `limit` − 1 as int64 [count].

    Raises:
        DataError: naming the first wrong row.
    """
    expected = f"expected whole numbers from {least} to {limit - 1}"
    array = _column(path, name, array, count, expected)
    _check_rows(path, name, array, (array >= least) & (array < limit) & (array == np.floor(array)), expected)
    return array.astype(np.int64)


def numbers(path: str | Path, name: str, array: Array, count: int) -> Array:
    """Return an array of finite numbers as float64 [count].

    Raises:
        DataError: naming the first wrong row.
    """
    expected = "expected finite numbers"
    array = _column(path, name, array, count, expected)
    _check_rows(path, name, array, np.isfinite(array), expected)
    return array.astype(np.float64)


def _column(path: str | Path, name: str, array: Array, count: int, expected: str) -> Array:
    if array.dtype.kind not in "biuf":
        raise DataError(path, f"{name} holds text or objects ({array.dtype}), {expected}", code="array-not-numbers")
    array = array.reshape(-1)
    if len(array) != count:
        raise DataError(path, f"{name} has {len(array)} values for {count} samples", code="length-differs")
    return array


def _check_rows(path: str | Path, name: str, array: Array, good: Array, expected: str) -> None:
    if not good.all():
        row, *place = np.argwhere(~good)[0].tolist()
        where = f"row {row}, place {place}" if place else f"row {row}"
        raise DataError(path, f"{name} holds {array[(row, *place)]} in {where}, {expected}", code="value-unusable")


def labels_in(path: str | Path, name: str, array: Array, count: int, task: TaskSpec) -> Array:
    """Return a task's labels: int64 [count] of classes, float64 [count] of numbers, [count, labels] of 0 and 1.

    Raises:
        DataError: naming the first wrong row.
    """
    if isinstance(task, Classification):
        return whole_numbers(path, name, array, count, task.classes)
    if not isinstance(task, MultiLabel):
        return numbers(path, name, array, count)
    expected = "expected 0 or 1"
    if array.dtype.kind not in "biuf":
        raise DataError(path, f"{name} holds text or objects ({array.dtype}), {expected}", code="array-not-numbers")
    if array.shape != (count, task.labels) and not (task.labels == 1 and array.shape == (count,)):
        raise DataError(
            path, f"{name} has shape {list(array.shape)}, expected [{count}, {task.labels}]", code="shape-differs"
        )
    array = array.reshape(count, task.labels)
    _check_rows(path, name, array, (array == 0) | (array == 1), expected)
    return array.astype(np.float64)


def _texts(path: str | Path, name: str, array: Array, count: int) -> tuple[str, ...]:
    """Return an array of names as text.

    Raises:
        DataError: the number of names is wrong, or one is missing or no text.
    """
    if array.dtype.kind not in "biufUS":
        raise DataError(path, f"{name} holds {array.dtype}, expected text or numbers", code="array-type")
    if array.shape not in ((count,), (count, 1)):
        raise DataError(
            path,
            f"{name} has shape {list(array.shape)}, expected one text or number for each sample",
            code="shape-differs",
        )
    try:
        cells = array.reshape(-1).astype(np.str_ if array.dtype.kind in "US" else array.dtype).tolist()
    except UnicodeDecodeError:
        raise DataError(path, f"{name} holds bytes that are not ASCII, expected text", code="not-ascii") from None
    whole = (int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells)
    texts = tuple(composed(str(cell).strip()) for cell in whole)
    for row, (text, cell) in enumerate(zip(texts, cells, strict=True)):
        if text.lower() in MISSING:
            raise DataError(path, f"{name} is missing in row {row}", code="key-missing", field=name, row=row)
        if "\0" in text:
            problem = f"{name} holds the character NUL in row {row}, which no text has"
            raise DataError(path, problem, code="not-text", field=name, row=row)
        if has_lost_digits(text, cell):
            problem = f"{name} holds {shown(text)} in row {row}, {LOST_DIGITS}"
            raise DataError(path, problem, code="identifier-rounded", field=name, row=row)
    return texts


def _check_distinct(path: str | Path, keys: Sequence[str]) -> None:
    rows: dict[str, int] = {}
    for row, text in enumerate(keys):
        before = rows.setdefault(text, row)
        if before != row:
            problem = f"key holds {shown(text)} in row {row} and in row {before}"
            raise DataError(path, problem, code="key-repeated", field="key", row=row)


def _inputs(path: str | Path, array: Array, data: ArrayData, dtype: str, lengths: Array | None) -> Array:
    expected = data.shape
    if array.ndim == 0 or math.prod(array.shape[1:]) != math.prod(expected):
        raise DataError(
            path,
            f"x has shape {list(array.shape)}, expected [samples, {', '.join(map(str, expected))}]",
            code="shape-differs",
        )
    if array.dtype.kind not in "biuf":
        raise DataError(path, f"x holds {array.dtype}, expected numbers", code="array-not-numbers")
    array = array.reshape(len(array), *expected)
    if lengths is not None and (len(expected) != 2 or data.tokens is not None):
        raise DataError(
            path,
            "has an array length, expected one only of series of real numbers, [time, features]",
            code="length-not-for-this",
        )
    if data.tokens is not None:
        whole = (array >= 0) & (array < data.tokens) & (array == np.floor(array))
        _check_rows(path, "x", array, whole, f"expected whole numbers from 0 to {data.tokens - 1}")
        return array.astype(np.int64)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite values are refused below
        values = array.astype(dtype)
    beyond = np.zeros(values.shape[:2] if lengths is not None else len(values), bool)
    if lengths is not None:
        lengths = whole_numbers(path, "length", lengths, len(values), expected[0] + 1, least=1)
        beyond = np.arange(expected[0]) >= lengths[:, None]
        values[beyond] = 0
    bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if bad.any():
        raise DataError(
            path,
            f"x holds NaN or infinity in {int(bad.sum())} samples, first in row {int(bad.argmax())}",
            code="not-finite",
        )
    if isinstance(data, NpzData):
        values *= np.asarray(data.scale, values.dtype)
    values[beyond] = np.nan
    return values
