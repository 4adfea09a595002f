"""Published data sets, which are not distributed with rankdad, as npz files, which runs and the simulator read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankdad.common.data.npz import padded, whole_numbers
from rankdad.common.data.reading import Array
from rankdad.common.errors import DataError
from rankdad.simulations.datasets import ArrayDataset
from rankdad.simulations.sources import named_arrays

PARTS = ("train", "test")
UCI = "UCI Machine Learning Repository (archive.ics.uci.edu), data set"
UEA = "UEA archive of multivariate time series (timeseriesclassification.com)"
SPOKEN = "spoken-arabic-digits"


class Archive(NamedTuple):
    """The npz file of a data set, and its source."""

    file: str
    found_at: str


ARCHIVES = {
    # 70,000 handwritten digits, bytes [28, 28]
    "mnist": Archive("mnist.npz", "MNIST (LeCun, Cortes, Burges; yann.lecun.com/exdb/mnist)"),
    # 10,992 digits written with a pen, bytes from 0 to 100 [8 points, x and y]
    "pendigits": Archive("pendigits.npz", f"{UCI} 'Pen-Based Recognition of Handwritten Digits'"),
    # 360 gestures of six kinds, real numbers [51 frames, 24 places of hands and arms]
    "natops": Archive("natops.npz", f"{UEA}, data set 'NATOPS' (Song, Demirdjian, Davis 2011)"),
    # photographs of ten kinds of things, bytes [32, 32, 3 colours]
    "cifar10": Archive("cifar10_subset.npz", "CIFAR-10 (Krizhevsky 2009; www.cs.toronto.edu/~kriz/cifar.html)"),
    # 8,800 spoken digits, real numbers [4 to 93 frames, 13 cepstral coefficients]
    SPOKEN: Archive("spoken_arabic_digits.npz", f"{UCI} 'Spoken Arabic Digit'"),
}


def load(name: str, path: Path) -> ArrayDataset:
    """Read a data set's file; its test set remains the test set, and shorter series are padded.

    The file has x_train, y_train, x_test and y_test; of spoken digits, in place of x, frames (all series, concatenated)
    and len (their lengths).

    Raises:
        DataError: the file is missing or invalid.
    """
    kinds = ("frames", "len", "y") if name == SPOKEN else ("x", "y")
    names = [f"{kind}_{part}" for part in PARTS for kind in kinds]
    if not path.exists():
        source = f"create it from {ARCHIVES[name].found_at}, with the arrays {', '.join(names)}"
        raise DataError(path, f"does not exist; {source}", code="file-missing")
    arrays = named_arrays(path, names)
    if name != SPOKEN:
        return _joined(str(path), [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in PARTS], {})
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
    return _joined(str(path), [(x[:count], arrays["y_train"]), (x[count:], arrays["y_test"])], {"length": length})


def write(pool: ArrayDataset, path: Path) -> None:
    """Write all samples as the source npz reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, allow_pickle=False, x=pool.x, y=pool.y, **pool.others)


def convert(folder: Path, output: Path) -> Iterator[Path]:
    """Convert the data sets whose files a folder has, as NAME.npz, and yield these files.

    Raises:
        DataError: a file is invalid.
    """
    for name, archive in ARCHIVES.items():
        if (folder / archive.file).exists():
            write(load(name, folder / archive.file), output / f"{name}.npz")
            yield output / f"{name}.npz"


def _joined(origin: str, parts: Sequence[tuple[Array, Array]], others: dict[str, Array]) -> ArrayDataset:
    """Join training and test samples, marked by `split`.

    Args:
        origin: the file, named in errors.
        parts: inputs [n, …] and labels [n] or [n, 1], of the training set, then of the test set.
        others: further arrays of all samples.

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
        {"split": np.repeat(np.array([0, 2], np.uint8), [len(train), len(test)]), **others},
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
