"""A function of the user's own as reader: only allowed code runs, and what it returns is checked like a npz file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data import read_samples, read_site
from rankdad.common.data.reading import Reading
from tests.common.data.readings import inputs_of, labels_of
from tests.common.faults import fault, refused
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


@pytest.fixture(scope="module")
def code_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code; one, since Python's packages are looked through once for a search path."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "ownreader.py").write_text(CODE)
    return folder


@pytest.fixture(autouse=True)
def _importable(code_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(code_folder))
    yield
    sys.modules.pop("ownreader", None)


def read(folder: Path, name: str = "load", task: str = "classification", tokens: Any = None, **given: Any) -> Reading:
    function = f"ownreader:{name}"
    data = {"reader": "function", "function": function, "arguments": given, "shape": [2], "tokens": tokens}
    return read_samples(run_spec(task=TASKS[task], data=data), folder, allowed=(function,))


@pytest.mark.slow
def test_what_the_function_returns_are_the_samples(tmp_path: Path) -> None:
    found = read(tmp_path, count=2, key=["a", "b"], group=[7, 8], split=[0, 2])
    assert (inputs_of(found), labels_of(found)) == ([[0, 1], [2, 3]], [0, 1])
    assert (found.keys, found.groups) == (("a", "b"), ("7", "8"))
    assert found.split is not None
    assert found.split.tolist() == [0, 2]
    assert found.inputs.dtype == np.float32
    assert [tmp_path] == sys.modules["ownreader"].RUN
    assert read(tmp_path, tokens=8).inputs.dtype == np.int64


def test_code_that_is_not_allowed_is_not_even_imported(tmp_path: Path) -> None:
    spec = run_spec(data={"reader": "function", "function": "ownreader:load", "shape": [2]})
    found = fault(lambda: read_site(spec, tmp_path, 0, ("ownreader:fail",)))
    assert found == ("factory-not-allowed", "data.function", None)
    assert "ownreader" not in sys.modules


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"x": None}, "array-missing"),
        ({"x": [[1.0, "a"]] * 4}, "array-not-numbers"),
        ({"x": [[1.0], [1.0, 2.0]]}, "not-an-array"),
        ({"y": [0, 1]}, "length-differs"),
        ({"split": [0, 1, 2, 3]}, "value-unusable"),
        ({"group": [None, "a", "b", "b"]}, "array-type"),
        ({"length": [1, 0, 2, 2]}, "length-not-for-this"),
        ({"labels": [1]}, "array-unknown"),
        ({"name": "nothing"}, "function-returned-no-arrays"),
        ({"name": "fail"}, "function-raised"),
        ({"name": "fail", "other": 1}, "function-raised"),
    ],
)
def test_every_fault_is_named_with_folder_and_function(tmp_path: Path, given: dict[str, Any], code: str) -> None:
    error = refused(lambda: read(tmp_path, **given))
    assert error.code == code
    assert str(error).startswith(f"{tmp_path} (ownreader:{given.get('name', 'load')}): ")
    assert "patient" not in error.public_message


@pytest.mark.parametrize(
    ("name", "code"), [("number", "factory-not-a-function"), ("absent", "factory-cannot-be-imported")]
)
def test_a_name_that_is_no_function_is_told(tmp_path: Path, name: str, code: str) -> None:
    assert fault(lambda: read(tmp_path, name)) == (code, "data.function", None)
