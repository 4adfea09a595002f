"""Series of the UEA and UCR archives (.ts) as a npz file, which runs and the simulator read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankdad.common.data.npz import padded
from rankdad.common.data.reading import Array
from rankdad.common.errors import DataError


class Series(NamedTuple):
    """A file's series [time, dimensions], their labels as text, and the classes of its header; none of numbers."""

    series: list[Array]
    labels: list[str]
    classes: list[str]


def convert(files: Sequence[Path], output: Path) -> dict[str, Array]:
    """Write a npz file of the series of one file, or of those to train on and those to test.

    Returns:
        The file's arrays: x [n, frames, dimensions], length, y (places of classes, or numbers), and split of two files.

    Raises:
        DataError: naming file and line of what is no series of numbers, or has no label.
    """
    read = [parse(file) for file in files]
    series = [one for own in read for one in own.series]
    x, length = padded(series, max(map(len, series)), "float32")
    places = {name: place for place, name in enumerate(read[0].classes)}
    labels = [label for own in read for label in own.labels]
    arrays = {"x": x, "length": length, "y": np.array([places[one] if places else float(one) for one in labels])}
    if len(read) == 2:
        arrays["split"] = np.repeat(np.array([0, 2], np.uint8), [len(own.series) for own in read])
    np.savez_compressed(output, allow_pickle=False, **arrays)
    return arrays


def parse(path: Path) -> Series:
    """Read a file: a header up to @data, then lines of dimensions parted by colons, with the label behind them.

    Raises:
        DataError: naming file and line.
    """
    found, lines = Series([], [], []), _lines(path)
    for line, text in lines:
        key, *values = text.split()
        if key.lower() == "@classlabel" and values[:1] == ["true"]:
            found.classes.extend(values[1:])
        if key.lower() == "@timestamps" and values[:1] == ["true"]:
            raise _wrong(path, line, "@timeStamps is true, expected false: only values at equal steps of time are read")
        if key.lower() == "@data":
            break
    for line, text in lines:
        *dimensions, label = text.split(":")
        try:
            series: Array = np.array([[float(value) for value in one.split(",")] for one in dimensions]).T
        except ValueError:
            raise _wrong(path, line, "expected as many numbers in each dimension, without gaps") from None
        if not np.isfinite(series).all() or series.shape[1:] != (found.series or [series])[0].shape[1:]:
            raise _wrong(path, line, "expected finite numbers, and as many dimensions as in the first line")
        if label not in found.classes and (found.classes or not re.fullmatch(r"[-+]?\d+(\.\d+)?", label)):
            raise _wrong(path, line, f"has the label {label!r}, expected one of @classLabel, or a number without it")
        found.series.append(series)
        found.labels.append(label)
    if not found.series:
        raise DataError(path, "has no series behind its line @data", code="no-rows")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for line, text in enumerate(path.read_text("utf-8-sig").splitlines(), 1):
        if text.strip() and not text.startswith("#"):
            yield line, text.strip()


def _wrong(path: Path, line: int, problem: str) -> DataError:
    return DataError(path, problem, place=f"line {line}", code="line-malformed")
