"""npz files: labels of every task, keys, groups and series of unequal length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data.npz import read_npz
from rankdad.common.data.reading import Reading
from rankdad.common.spec.data import NpzData
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec
from tests.common.data.readings import labels_of
from tests.common.faults import Fault, fault

CLASSES, NUMBER = Classification(classes=3), Regression(name="regression")
LABELS = MultiLabel(name="multi-label", labels=2)
SERIES = np.arange(24.0).reshape(4, 3, 2)


def read(folder: Path, task: TaskSpec = CLASSES, *, training: bool = True, **arrays: Any) -> Reading:
    data = NpzData(shape=(3, 2), scale=0.5)
    np.savez(folder / "data.npz", **({"x": SERIES} | arrays))
    return read_npz(folder / "data.npz", data, task, "float32", training=training)


@pytest.mark.parametrize(
    ("task", "y", "expected", "dtype"),
    [
        (CLASSES, [0, 1, 2.0, 1], [0, 1, 2, 1], "int64"),
        (NUMBER, np.array([[1], [2], [3], [4]], np.int8), [1, 2, 3, 4], "float64"),
        (NUMBER, [0.1, -2, 3, 4e300], [0.1, -2, 3, 4e300], "float64"),
        (LABELS, [[True, False]] * 4, [[1, 0]] * 4, "float64"),
        (MultiLabel(name="multi-label", labels=1), [1, 0, 0, 1], [[1], [0], [0], [1]], "float64"),
    ],
)
def test_labels_are_those_of_the_task(tmp_path: Path, task: TaskSpec, y: Any, expected: Any, dtype: str) -> None:
    found = read(tmp_path, task, y=y)
    assert labels_of(found) == expected
    assert found.labels is not None
    assert found.labels.dtype == dtype


def test_for_a_prediction_labels_may_be_missing(tmp_path: Path) -> None:
    found = read(tmp_path, NUMBER, training=False, y=[1.0, np.nan, 2.0, 3.0])
    assert (found.labels, len(found.notes)) == (None, 1)
    assert read(tmp_path, NUMBER).labels is None


@pytest.mark.parametrize("key", [["s1", " s2", "s3", "07"], np.array([b"s1", b"s2", b"s3", b"07"])])
def test_keys_and_groups_are_texts(tmp_path: Path, key: Any) -> None:
    found = read(tmp_path, key=key, group=[1.0, 2.0, 1.0, 2.5])
    assert (found.keys, found.groups) == (("s1", "s2", "s3", "07"), ("1", "2", "1", "2.5"))
    assert read(tmp_path).keys is None


def test_frames_beyond_a_series_end_are_nan_whatever_stands_there(tmp_path: Path) -> None:
    x = SERIES.copy()
    x[1, 1:], x[3, 2, 0] = [[np.nan, np.inf], [1e300, 1]], np.nan
    found = read(tmp_path, x=x, length=[3, 1, 3, 2]).inputs
    expected = SERIES * 0.5
    expected[1, 1:] = expected[3, 2] = np.nan
    assert found.dtype == np.float32
    assert np.array_equal(found, expected, equal_nan=True)


HOLED = np.where(np.arange(24).reshape(4, 3, 2) == 7, np.nan, SERIES)
VALUE, LENGTH, SHAPE = (("value-unusable", "", None), ("length-differs", "", None), ("shape-differs", "", None))


@pytest.mark.parametrize(
    ("task", "arrays", "found"),
    [
        *[(NUMBER, {"y": [1, 2, 3, value]}, VALUE) for value in (np.nan, -np.inf)],
        *[(NUMBER, {"y": y}, LENGTH) for y in ([1.0, 2, 3], np.ones((4, 2)))],
        (NUMBER, {"y": ["1"] * 4}, ("array-not-numbers", "", None)),
        *[(LABELS, {"y": [[0, 1], [value, 1], [0, 0], [0, 0]]}, VALUE) for value in (2, np.nan)],
        *[(LABELS, {"y": np.zeros(shape)}, SHAPE) for shape in (4, (2, 4))],
        (LABELS, {"y": [["0", "1"]] * 4}, ("array-not-numbers", "", None)),
        (CLASSES, {"y": [0, 1, 3, 1]}, VALUE),
        (CLASSES, {"key": ["a", "b", "01", "01"]}, ("key-repeated", "key", 3)),
        (CLASSES, {"key": ["a", "b", "", "c"]}, ("key-missing", "key", 2)),
        (CLASSES, {"key": ["a", "b\0c", "d", "e"]}, ("not-text", "key", 1)),
        *[(CLASSES, {"key": key}, SHAPE) for key in (["a", "b"], np.zeros((4, 2)))],
        (CLASSES, {"key": np.zeros(4, complex)}, ("array-type", "", None)),
        (CLASSES, {"key": np.array([b"\xe4"] * 4)}, ("not-ascii", "", None)),
        (CLASSES, {"key": np.array([None] * 4)}, ("npz-unreadable", "", None)),
        (CLASSES, {"group": [1, 2, np.nan, 1]}, ("key-missing", "group", 2)),
        *[(CLASSES, {"length": [3, 1, value, 1]}, VALUE) for value in (0, 4, 1.5)],
        (CLASSES, {"length": [3, 1]}, LENGTH),
        (CLASSES, {"x": HOLED, "length": [3, 2, 1, 1]}, ("not-finite", "", None)),
        (CLASSES, {"x": SERIES * 1e300}, ("not-finite", "", None)),
    ],
)
def test_every_fault_is_named_and_no_value_is_told(
    tmp_path: Path, task: TaskSpec, arrays: dict[str, Any], found: Fault
) -> None:
    values = [f"holds {cell} in row" for cell in ("'01'", "2", "3", "1.5")]
    assert fault(lambda: read(tmp_path, task, **arrays), *values) == found


@pytest.mark.parametrize("data", [NpzData(shape=(6,)), NpzData(shape=(3, 2), tokens=30)])
def test_only_series_of_real_numbers_have_lengths(tmp_path: Path, data: NpzData) -> None:
    np.savez(tmp_path / "data.npz", x=SERIES, length=[1, 2, 3, 3])
    found = fault(lambda: read_npz(tmp_path / "data.npz", data, CLASSES, "float32"))
    assert found == ("length-not-for-this", "", None)
