"""npz files: labels of every task, keys, groups and series of unequal length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data.npz import read_npz
from rankdad.common.data.reading import Reading
from rankdad.common.errors import DataError
from rankdad.common.spec.data import NpzData
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec

NUMBER, LABELS, CLASSES = (
    Regression(name="regression"),
    MultiLabel(name="multi-label", labels=2),
    Classification(classes=3),
)
SERIES = np.arange(24.0).reshape(4, 3, 2)


def read(folder: Path, task: TaskSpec = CLASSES, *, training: bool = True, **arrays: Any) -> Reading:
    data = NpzData(shape=(3, 2), scale=0.5)
    np.savez(folder / "data.npz", **({"x": SERIES} | arrays))
    return read_npz(folder / "data.npz", data, task, "float32", training=training)


def test_labels_are_those_of_the_task(tmp_path: Path) -> None:
    cases: list[tuple[TaskSpec, Any, Any, str]] = [
        (CLASSES, [0, 1, 2.0, 1], [0, 1, 2, 1], "int64"),
        (NUMBER, np.array([[1], [2], [3], [4]], np.int8), [1, 2, 3, 4], "float64"),
        (NUMBER, [0.1, -2, 3, 4e300], [0.1, -2, 3, 4e300], "float64"),
        (LABELS, [[True, False]] * 4, [[1, 0]] * 4, "float64"),
        (MultiLabel(name="multi-label", labels=1), [1, 0, 0, 1], [[1], [0], [0], [1]], "float64"),
    ]
    for task, y, expected, dtype in cases:
        labels = read(tmp_path, task, y=y).labels
        assert labels is not None
        assert labels.tolist() == expected
        assert labels.dtype == dtype


def test_for_a_prediction_labels_may_be_missing(tmp_path: Path) -> None:
    found = read(tmp_path, NUMBER, training=False, y=[1.0, np.nan, 2.0, 3.0])
    assert found.labels is None
    assert "y holds NaN; labels are not used" in found.notes[0]
    assert read(tmp_path, NUMBER).labels is None


@pytest.mark.parametrize("key", [["s1", " s2", "s3", "07"], np.array([b"s1", b"s2", b"s3", b"07"])])
def test_keys_and_groups_are_texts(tmp_path: Path, key: Any) -> None:
    found = read(tmp_path, key=key, group=[1.0, 2.0, 1.0, 2.5])
    assert found.keys == ("s1", "s2", "s3", "07")
    assert found.groups == ("1", "2", "1", "2.5")
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
BAD: list[tuple[TaskSpec, dict[str, Any], str]] = [
    (NUMBER, {"y": [1, 2, np.nan, 3]}, "y holds nan in row 2, expected finite numbers"),
    (NUMBER, {"y": [1, 2, 3, -np.inf]}, "y holds -inf in row 3, expected finite numbers"),
    (NUMBER, {"y": [1.0, 2, 3]}, "y has 3 values for 4 samples"),
    (NUMBER, {"y": ["1"] * 4}, r"y holds text or objects \(<U1\), expected finite numbers"),
    (NUMBER, {"y": np.ones((4, 2))}, "y has 8 values for 4 samples"),
    (LABELS, {"y": [[0, 1], [1, 1], [0, 2], [0, 0]]}, r"y holds 2 in row 2, place \[1\], expected 0 or 1"),
    (LABELS, {"y": [[0, 1], [np.nan, 1], [0, 0], [0, 0]]}, r"y holds nan in row 1, place \[0\]"),
    (LABELS, {"y": np.zeros(4)}, r"y has shape \[4\], expected \[4, 2\]"),
    (LABELS, {"y": np.zeros((2, 4))}, r"y has shape \[2, 4\], expected \[4, 2\]"),
    (LABELS, {"y": [["0", "1"]] * 4}, "y holds text or objects"),
    (CLASSES, {"y": [0, 1, 3, 1]}, "y holds 3 in row 2, expected whole numbers from 0 to 2"),
    (CLASSES, {"key": ["a", "b", "01", "01"]}, "key holds '01' in row 3 and in row 2"),
    (CLASSES, {"key": ["a", "b", "", "c"]}, "key is missing in row 2"),
    (CLASSES, {"key": ["a", "b"]}, r"key has shape \[2\], expected one text or number for each sample"),
    (CLASSES, {"key": np.zeros((4, 2))}, r"key has shape \[4, 2\]"),
    (CLASSES, {"key": np.zeros(4, complex)}, "key holds complex128, expected text or numbers"),
    (CLASSES, {"key": np.array([b"\xe4"] * 4)}, "key holds bytes that are not ASCII"),
    (CLASSES, {"key": np.array([None] * 4)}, "not a readable npz file of plain arrays"),
    (CLASSES, {"group": [1, 2, np.nan, 1]}, "group is missing in row 2"),
    (CLASSES, {"length": [3, 0, 1, 1]}, "length holds 0 in row 1, expected whole numbers from 1 to 3"),
    (CLASSES, {"length": [3, 1, 4, 1]}, "length holds 4 in row 2"),
    (CLASSES, {"length": [3, 1, 1.5, 1]}, "length holds 1.5 in row 2"),
    (CLASSES, {"length": [3, 1]}, "length has 2 values for 4 samples"),
    (CLASSES, {"x": HOLED, "length": [3, 2, 1, 1]}, "x holds NaN or infinity in 1 samples, first in row 1"),
    (CLASSES, {"x": SERIES * 1e300}, "x holds NaN or infinity in 4 samples, first in row 0"),
]


@pytest.mark.parametrize(("task", "arrays", "said"), BAD)
def test_every_fault_is_named_and_no_value_is_told(
    tmp_path: Path, task: TaskSpec, arrays: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=rf"data\.npz: .*{said}") as error:
        read(tmp_path, task, **arrays)
    assert not any(f"holds {cell} in row" in error.value.public_message for cell in ("'01'", "2", "3", "1.5"))


@pytest.mark.parametrize("data", [NpzData(shape=(6,)), NpzData(shape=(3, 2), tokens=30)])
def test_only_series_of_real_numbers_have_lengths(tmp_path: Path, data: NpzData) -> None:
    np.savez(tmp_path / "data.npz", x=SERIES, length=[1, 2, 3, 3])
    with pytest.raises(DataError, match="has an array length, expected one only of series of real numbers"):
        read_npz(tmp_path / "data.npz", data, CLASSES, "float32")
