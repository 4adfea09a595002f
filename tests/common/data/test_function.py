"""A function of the user's own as reader: only allowed code runs, and what it returns is checked like a npz file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data import read_samples, read_site
from rankdad.common.data.reading import Reading
from rankdad.common.errors import DataError, PolicyError, SpecError
from tests.conftest import run_spec

CODE = """
import numpy as np
RUN = []

def load(folder, count=4, **arrays):
    RUN.append(folder)
    found = {"x": np.arange(2.0 * count).reshape(count, 2), "y": np.arange(count) % 3}
    return {name: array for name, array in (found | arrays).items() if array is not None}

def fail(folder):
    raise KeyError("patient 17")

def nothing(folder):
    return [1]

number = 1
"""
TASKS = {
    "classification": {"name": "classification", "classes": 3},
    "regression": {"name": "regression"},
    "multi-label": {"name": "multi-label", "labels": 2},
}


@pytest.fixture(autouse=True)
def _code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "ownreader.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("ownreader", None)


def read(folder: Path, name: str = "load", task: str = "classification", tokens: Any = None, **given: Any) -> Reading:
    function = f"ownreader:{name}"
    data = {"reader": "function", "function": function, "arguments": given, "shape": [2], "tokens": tokens}
    return read_samples(run_spec(task=TASKS[task], data=data), folder, allowed=(function,))


def test_what_the_function_returns_are_the_samples(tmp_path: Path) -> None:
    found = read(tmp_path, count=2, key=["a", "b"], group=[7, 8], split=[0, 2])
    assert np.asarray(found.inputs).tolist() == [[0, 1], [2, 3]]
    assert found.inputs.dtype == np.float32
    assert (found.keys, found.groups) == (("a", "b"), ("7", "8"))
    arrays = (found.labels, found.split)
    assert [(a.dtype.name, a.tolist()) for a in arrays if a is not None] == [
        ("int64", [0, 1]),
        ("int64", [0, 2]),
    ]
    assert [tmp_path] == sys.modules["ownreader"].RUN
    assert read(tmp_path, tokens=8).inputs.dtype == np.int64


@pytest.mark.parametrize(
    ("task", "y"), [("regression", [0.5, -2.0]), ("regression", [[0.5], [2]]), ("multi-label", [[0, 1], [1, 1]])]
)
def test_labels_of_every_task(tmp_path: Path, task: str, y: list[Any]) -> None:
    labels = read(tmp_path, task=task, count=2, y=y).labels
    assert labels is not None
    assert labels.dtype == np.float64
    assert labels.tolist() == (np.ravel(y).tolist() if task == "regression" else y)


def test_code_that_is_not_allowed_is_not_even_imported(tmp_path: Path) -> None:
    data = {"reader": "function", "function": "ownreader:load", "shape": [2]}
    with pytest.raises(PolicyError, match=r"data\.function: ownreader:load is not allowed here: read its code, then"):
        read_site(run_spec(data=data), tmp_path, 0, ("ownreader:fail",))
    assert "ownreader" not in sys.modules


BAD: list[tuple[dict[str, Any], str]] = [
    ({"x": None}, "has no array x"),
    ({"x": [[1.0, "a"]] * 4}, "x holds <U32, expected numbers"),
    ({"x": [[1.0], [1.0, 2.0]]}, "x is no array: 'ValueError"),
    ({"y": [0, 1]}, "y has 2 values for 4 samples"),
    ({"y": [0, 1, 3, 0]}, "y holds 3 in row 2, expected whole numbers from 0 to 2"),
    ({"task": "regression", "y": [0.0, 1.0, float("nan"), 0.0]}, "y holds nan in row 2, expected finite numbers"),
    ({"task": "regression", "y": [[0.0, 1.0]] * 4}, "y has 8 values for 4 samples"),
    ({"task": "multi-label", "y": [[0, 1]] * 3 + [[0, 2]]}, r"y holds 2 in row 3, place \[1\], expected 0 or 1"),
    ({"task": "multi-label", "y": [0, 1, 0, 1]}, r"y has shape \[4\], expected \[4, 2\]"),
    ({"split": [0, 1, 2, 3]}, "split holds 3 in row 3, expected whole numbers from 0 to 2"),
    ({"key": ["a", "b", "a", "c"]}, "key holds 'a' in row 2 and in row 0"),
    ({"key": [1, 2]}, r"key has shape \[2\], expected one text or number for each sample"),
    ({"group": ["a", " ", "b", "b"]}, "group is missing in row 1"),
    ({"group": [None, "a", "b", "b"]}, "group holds object, expected text or numbers"),
    ({"length": [1, 0, 2, 2]}, "has an array length, expected one only of series"),
    ({"labels": [1]}, "the function returned an array 'labels', expected one of x, y, split, key, group, length"),
    ({"name": "nothing"}, "the function returned list, expected a dict of arrays"),
    ({"name": "fail"}, "the function raised .*KeyError.*patient 17"),
    ({"name": "fail", "other": 1}, "the function raised .*TypeError.*other"),
]


@pytest.mark.parametrize(("given", "said"), BAD)
def test_every_fault_is_named_with_folder_and_function(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said) as error:
        read(tmp_path, **given)
    assert str(error.value).startswith(f"{tmp_path} (ownreader:{given.get('name', 'load')}): ")
    assert "patient" not in error.value.public_message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("number", "ownreader:number is int, expected a function"),
        ("absent", "ownreader:absent cannot be imported: AttributeError"),
    ],
)
def test_a_name_that_is_no_function_is_told(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(SpecError, match=rf"data\.function: {said}"):
        read(tmp_path, name)
