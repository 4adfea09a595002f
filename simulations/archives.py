"""Published data sets, which are not distributed with rankdad; errors name their sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from rankdad.common.data.npz import padded, read_arrays, whole_numbers
from rankdad.common.data.reading import Array
from rankdad.common.documents import Part
from rankdad.common.errors import DataError
from rankdad.simulations.datasets import ArrayDataset

PARTS = ("train", "test")
UCI = "UCI Machine Learning Repository (archive.ics.uci.edu), data set"
UEA = "UEA archive of multivariate time series (timeseriesclassification.com)"
FOLDER = "../shared/data"
FOUND_AT = {  # file and source of each data set
    "mnist": ("mnist.npz", "MNIST (LeCun, Cortes, Burges; yann.lecun.com/exdb/mnist)"),
    "pendigits": ("pendigits.npz", f"{UCI} 'Pen-Based Recognition of Handwritten Digits'"),
    "natops": ("natops.npz", f"{UEA}, data set 'NATOPS' (Song, Demirdjian, Davis 2011)"),
    "cifar10": ("cifar10_subset.npz", "CIFAR-10 (Krizhevsky 2009; www.cs.toronto.edu/~kriz/cifar.html)"),
    "spoken-arabic-digits": ("spoken_arabic_digits.npz", f"{UCI} 'Spoken Arabic Digit'"),
}


class Archive(Part):
    """Training and test samples in a npz file with x_train, y_train, x_test and y_test.

    mnist: 70,000 handwritten digits, bytes [28, 28]. pendigits: 10,992 digits written with a pen, bytes from 0 to 100
    [8 points, x and y]. natops: 360 gestures of six kinds, real numbers [51 frames, 24 places of hands and arms].
    cifar10: photographs of ten kinds of things, bytes [32, 32, 3 colours].
    """

    name: Literal["mnist", "pendigits", "natops", "cifar10"]
    path: str | None = None
    """The file; null is the data set's own name in ../shared/data."""

    @property
    def file(self) -> Path:
        """Path of the file."""
        return Path(FOLDER, FOUND_AT[self.name][0]) if self.path is None else Path(self.path)

    @property
    def found_at(self) -> str:
        """Source of the data set."""
        return FOUND_AT[self.name][1]

    def load(self) -> ArrayDataset:
        """Read the file; its test set remains the test set.

        Raises:
            DataError: the file is missing or invalid.
        """
        arrays = self._arrays("x", "y")
        return joined(str(self.file), [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in PARTS])

    def _arrays(self, *kinds: str) -> dict[str, Array]:
        names = [f"{kind}_{part}" for part in PARTS for kind in kinds]
        return named_arrays(self.file, names, self.found_at)


class SpokenArabicDigits(Archive):
    """8,800 spoken digits, real numbers [4 to 93 frames, 13 cepstral coefficients].

    The npz file has frames_train (the concatenated frames of all series), len_train (the series' lengths), y_train, and
    the same arrays for test.
    """

    name: Literal["spoken-arabic-digits"]  # type: ignore[assignment]

    def load(self) -> ArrayDataset:
        """Read the file, padding every series to the longest; its test set remains the test set.

        Raises:
            DataError: the file is missing or invalid.
        """
        path, arrays = self.file, self._arrays("frames", "len", "y")
        widths = [arrays[f"frames_{part}"].shape[1:] for part in PARTS]
        if len(widths[0]) != 1 or widths[0] != widths[1]:
            shapes = " and ".join(f"frames_{part} {list(arrays[f'frames_{part}'].shape)}" for part in PARTS)
            raise DataError(
                path, f"has {shapes}, expected as many features of each: [frames, features]", code="shape-differs"
            )
        series = [s for part in PARTS for s in _cut(path, part, arrays[f"frames_{part}"], arrays[f"len_{part}"])]
        if not series:
            raise DataError(path, "has no series", code="no-rows")
        x, length = padded(series, max(map(len, series)), "float32")
        count = arrays["len_train"].size
        both = joined(str(path), [(x[:count], arrays["y_train"]), (x[count:], arrays["y_test"])])
        return replace(both, others={**both.others, "length": length})


def named_arrays(path: Path, names: Sequence[str], found_at: str = "") -> dict[str, Array]:
    """Read required arrays of a npz file.

    Args:
        path: the file.
        names: names of the arrays.
        found_at: source of the data set, for the error about a missing file.

    Raises:
        DataError: the file is missing, not a npz file, or lacks an array.
    """
    if not path.exists():
        source = f"; create it from {found_at}, with the arrays {', '.join(names)}" if found_at else ""
        raise DataError(path, f"does not exist; pass the file with --data{source}", code="file-missing")
    arrays = read_arrays(path, names)
    missing = [name for name in names if name not in arrays or not arrays[name].ndim]
    if missing:
        raise DataError(path, f"has no array {missing[0]}, expected {', '.join(names)}", code="array-missing")
    return arrays


def joined(origin: str, parts: Sequence[tuple[Array, Array]]) -> ArrayDataset:
    """Join training and test samples, marked by `split`.

    Args:
        origin: the file, named in errors.
        parts: inputs [n, …] and labels [n] or [n, 1], of the training set, then of the test set.

    Raises:
        DataError: the parts' inputs differ in shape, or have other numbers of labels.
    """
    for part, (x, y) in zip(PARTS, parts, strict=True):
        if y.size != len(x):
            raise DataError(origin, f"y_{part} has {y.size} labels for {len(x)} samples", code="length-differs")
    (train, _), (test, _) = parts
    if train.shape[1:] != test.shape[1:]:
        shapes = f"x_train has shape {list(train.shape)}, x_test {list(test.shape)}"
        raise DataError(origin, f"{shapes}, expected samples of the same shape", code="shape-differs")
    return ArrayDataset(
        origin,
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y.reshape(-1) for _, y in parts]),
        {"split": np.repeat(np.array([0, 2], np.uint8), [len(train), len(test)])},
    )


def _cut(path: Path, part: str, frames: Array, lengths: Array) -> list[Array]:
    """Split concatenated frames into series [time, features]."""
    if frames.dtype.kind not in "biuf":
        raise DataError(path, f"frames_{part} holds {frames.dtype}, expected numbers", code="array-not-numbers")
    lengths = whole_numbers(path, f"len_{part}", lengths, lengths.size, len(frames) + 1, least=1)
    if lengths.sum() != len(frames):
        raise DataError(
            path,
            f"len_{part} adds up to {lengths.sum()} frames, expected the {len(frames)} of frames_{part}",
            code="length-differs",
        )
    return np.split(frames, np.cumsum(lengths)[:-1]) if len(frames) else []
