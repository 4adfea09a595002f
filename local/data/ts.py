"""Text files of the UEA and UCR archives of time series (.ts): a header, then a series and its label on each line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from rankdad.common.errors import DataError
from rankdad.common.spec.data import TsData
from rankdad.common.spec.table_schema import canonical
from rankdad.common.spec.tasks import TaskSpec
from rankdad.local.data.formats import check_fits, check_text
from rankdad.local.data.npz import padded, samples_of
from rankdad.local.data.reading import MISSING, Array, Reading, is_folder, number, shown

BOM = b"\xef\xbb\xbf"
Lines = Iterator[tuple[int, bytes]]


@dataclass(frozen=True, eq=False)
class TsFile:
    """What a file holds.

    Args:
        path: of the file.
        series: float64 [time, dimensions] each.
        labels: as they stand there; None where the header promises none.
        classes: that the header names, in its order; None where labels are numbers.
        lines: on which each series stands, from 1.
    """

    path: Path
    series: tuple[Array, ...]
    labels: tuple[str, ...] | None
    classes: tuple[str, ...] | None
    lines: tuple[int, ...]

    def error(self, row: int, problem: str) -> DataError:
        """Return the error that names a series."""
        return DataError(self.path, problem, place=f"line {self.lines[row]}", code="value-unusable")


def read_ts(path: Path, data: TsData, task: TaskSpec, dtype: str, *, training: bool = True) -> Reading:
    """Read series of one length or of several, padded by frames of NaN.

    Args:
        path: the folder of the schema's files, or one file in the place of both.
        data: the schema.
        task: what is predicted.
        dtype: of the inputs, such as "float32".
        training: whether the samples are to be trained on; for predictions labels may be missing.

    Raises:
        DataError: naming file and line of what cannot be used.
    """
    names = [data.file] if data.test_file is None else [data.file, data.test_file]
    files = [parse(file) for file in ([path / name for name in names] if is_folder(path) else [path])]
    for file in files:
        if training and file.labels is None:
            expected = "@classLabel true and the classes" if data.values else "@targetLabel true"
            raise DataError(
                file.path,
                f"has no labels, expected {expected} in its header, and one behind every series",
                code="labels-missing",
            )
    return samples_of(files[0].path, arrays_of(files, data.values, data.shape, dtype), data, task, dtype)


def arrays_of(files: Sequence[TsFile], classes: Sequence[str], shape: tuple[int, int], dtype: str) -> dict[str, Array]:
    """Return the arrays that a npz file would have: x, length, y if all files have labels, and split of two files.

    Args:
        files: of all samples; or of those to train on, then of those to test.
        classes: in the order of their numbers; none where labels are numbers.
        shape: of a sample: frames, at least those of the longest series, and dimensions.
        dtype: of x.

    Raises:
        DataError: a series does not fit the shape, or a label the classes.
    """
    for file in files:
        for row, (frames, dimensions) in enumerate(one.shape for one in file.series):
            if dimensions != shape[1] or frames > shape[0]:
                found = f"has {frames} frames of {dimensions} dimensions"
                raise file.error(row, f"{found}, expected at most {shape[0]} of {shape[1]}: a sample's shape")
    labels = [_labels(file, classes) for file in files]
    series = list(chain.from_iterable(file.series for file in files))
    size = len(series) * math.prod(shape) * np.dtype(dtype).itemsize
    check_fits(files[0].path, f"its samples of shape {list(shape)}", size)
    x, length = padded(series, shape[0], dtype)
    arrays = {"x": x, "length": length}
    if len(files) > 1:
        arrays["split"] = np.repeat(np.array([0, 2], np.uint8), [len(file.series) for file in files])
    known = [own for own in labels if own is not None]
    return arrays | ({"y": np.concatenate(known)} if len(known) == len(files) else {})


def _labels(file: TsFile, classes: Sequence[str]) -> Array | None:
    """Return labels as numbers, of classes by their places."""
    if file.labels is None:
        return None
    if not classes:
        if file.classes is not None:
            raise DataError(
                file.path,
                "has classes, expected @targetLabel true and a number behind every series",
                code="labels-not-numbers",
            )
        return np.array([float(label) for label in file.labels])
    if file.classes is None:
        raise DataError(
            file.path,
            "has numbers as labels, expected @classLabel true and the classes in its header",
            code="labels-not-classes",
        )
    for name in file.classes:
        if name not in classes:
            raise DataError(
                file.path,
                f"@classLabel names {shown(name)}, expected classes among {_some(classes)}",
                code="classes-unknown",
            )
    places = {name: place for place, name in enumerate(classes)}
    return np.array([places[label] for label in file.labels], np.int64)


def parse(path: Path) -> TsFile:
    """Read a file.

    What the header says of lengths and of missing values is told by the series themselves, and passed over.

    Raises:
        DataError: naming the line of what is no series, or not of a kind that is read here.
    """
    check_text(path, "text in the archives' format")
    series, labels, lines = list[Array](), list[str](), list[int]()
    try:
        with path.open("rb") as file:
            held = _held(file)
            header = _header(path, held)
            dimensions = header.dimensions
            for line, text in held:
                one, label = _case(path, line, text, header, dimensions)
                dimensions = one.shape[1]
                series.append(one)
                labels.append(label)
                lines.append(line)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    if not series:
        raise DataError(path, "has no series behind its line @data", code="no-rows")
    labelled = header.numbers or header.classes is not None
    return TsFile(path, tuple(series), tuple(labels) if labelled else None, header.classes, tuple(lines))


def _held(file: Iterable[bytes]) -> Lines:
    """Yield lines with their numbers from 1, but for empty ones and comments."""
    for line, text in enumerate(file, 1):
        text = (text.removeprefix(BOM) if line == 1 else text).strip()
        if text and not text.startswith(b"#"):
            yield line, text


@dataclass(frozen=True)
class _Header:
    """What is said of the series.

    Args:
        dimensions: of each; None where it is not said.
        classes: of which each has one; None for none.
        numbers: whether each has a number instead.
    """

    dimensions: int | None
    classes: tuple[str, ...] | None
    numbers: bool


def _header(path: Path, held: Lines) -> _Header:
    """Read the lines up to @data."""
    said: dict[str, tuple[int, str]] = {}
    for line, content in held:
        text = _text(path, line, content)
        key, _, value = text.replace("\t", " ").partition(" ")
        key = key.lower()
        if not key.startswith("@"):
            raise _wrong(path, line, f"holds {shown(text)}, expected a line of the header, or @data before the series")
        if key == "@data":
            return _meaning(path, said)
        if key in said:
            raise _wrong(path, line, f"{shown(key)} stands there twice")
        said[key] = line, value.strip()
    raise DataError(path, "has no line @data, expected one between the header and the series", code="no-data-section")


def _meaning(path: Path, said: Mapping[str, tuple[int, str]]) -> _Header:
    flags: dict[str, bool] = {}
    for key in ("@timestamps", "@univariate", "@classlabel", "@targetlabel"):
        line, value = said.get(key, (0, "false"))
        flag = value.partition(" ")[0].lower()
        if flag not in ("true", "false"):
            raise _wrong(path, line, f"{key} is {shown(flag)}, expected true or false")
        flags[key] = flag == "true"
    if flags["@timestamps"]:
        problem = "@timeStamps is true, expected false: only values at equal steps of time are read"
        raise _wrong(path, said["@timestamps"][0], problem)
    if flags["@classlabel"] and flags["@targetlabel"]:
        raise _wrong(path, said["@targetlabel"][0], "@targetLabel is true, and so is @classLabel, expected one of them")
    dimensions = 1 if flags["@univariate"] else None
    for key in ("@dimension", "@dimensions"):
        line, value = said.get(key, (0, ""))
        if line and not re.fullmatch("[1-9][0-9]{0,8}", value):
            raise _wrong(path, line, f"{key} is {shown(value)}, expected a whole number from 1")
        dimensions = int(value) if line else dimensions
    classes: tuple[str, ...] | None = None
    if flags["@classlabel"]:
        line, value = said["@classlabel"]
        classes = tuple(dict.fromkeys(canonical(name) for name in value.split()[1:]))
        if not classes:
            raise _wrong(path, line, "@classLabel is true and names no classes, expected them behind it")
    return _Header(dimensions, classes, flags["@targetlabel"])


def _case(path: Path, line: int, text: bytes, header: _Header, dimensions: int | None) -> tuple[Array, str]:
    """Return a line's series [time, dimensions] and its label; "" where there is none."""
    parts, label = text.split(b":"), ""
    if header.numbers or header.classes is not None:
        label = _label(path, line, parts.pop(), header)
    if not parts or len(parts) != (dimensions or len(parts)):
        behind = ", and a label behind them" if label else ""
        raise _wrong(path, line, f"has {len(parts)} dimensions{behind}, expected {dimensions or 'at least one'}")
    texts = [part.split(b",") for part in parts]
    for place, own in enumerate(texts):
        if len(own) != len(texts[0]):
            found = f"dimension {place + 1} has {len(own)} values"
            raise _wrong(path, line, f"{found}, expected {len(texts[0])}, as dimension 1 has")
    try:
        values = np.array([list(map(float, own)) for own in texts])
    except ValueError:
        raise _no_number(path, line, texts) from None
    if not np.isfinite(values).all() or any(b"_" in part for part in parts):  # which float passes over
        raise _no_number(path, line, texts)
    return values.T, label


def _label(path: Path, line: int, content: bytes, header: _Header) -> str:
    text = _text(path, line, content).strip()
    if header.classes is None:
        if not math.isfinite(number(text)):
            raise _wrong(path, line, f"has the label {shown(text)}, expected a finite number")
        return text
    if canonical(text) not in header.classes:
        raise _wrong(path, line, f"has the label {shown(text)}, expected one of @classLabel: {_some(header.classes)}")
    return canonical(text)


def _no_number(path: Path, line: int, texts: Sequence[Sequence[bytes]]) -> DataError:
    """Return the error that names a series' first value that is no finite number."""
    for dimension, own in enumerate(texts, 1):
        for place, content in enumerate(own, 1):
            text = content.strip().decode("ascii", "backslashreplace")
            where = f"value {place} of dimension {dimension}"
            if text == "?" or text.lower() in MISSING:
                return _wrong(path, line, f"{where} is missing: fill it in, or leave the series out")
            if not math.isfinite(number(text)):
                return _wrong(path, line, f"{where} is {shown(text)}, expected a finite number")
    raise AssertionError("all values are finite numbers")


def _text(path: Path, line: int, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _wrong(path, line, "is not text in UTF-8") from None


def _wrong(path: Path, line: int, problem: str) -> DataError:
    return DataError(path, problem, place=f"line {line}", code="line-malformed")


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:10])) + ", …" * (len(names) > 10)
