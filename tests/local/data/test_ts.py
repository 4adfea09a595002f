"""The archives' text files of time series: what is read, and by which line what is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.documents import validate
from rankdad.common.errors import DataError, SpecError
from rankdad.common.spec.data import TsData
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec
from rankdad.local.data import read_samples, read_site
from rankdad.local.data.reading import Reading
from rankdad.local.data.ts import parse, read_ts
from rankdad.simulations.archives import Uea
from tests.conftest import examples, run_spec

SCHEMA: dict[str, Any] = {"reader": "ts", "file": "a.ts", "shape": [3, 2], "values": ["up", 1]}
HEADER = """# Of gestures

@problemName some
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength false
@classLabel true 1.0 up
@data
"""
CASES = "1,2,3:-4,5e-1,6:up\n7:8:1\n"
TWO, NUMBER = Classification(classes=2), Regression(name="regression")


def read(folder: Path, text: str | bytes, task: TaskSpec = TWO, *, training: bool = True, **changes: Any) -> Reading:
    (folder / "a.ts").write_bytes(text.encode() if isinstance(text, str) else text)
    return read_ts(folder, validate(TsData, SCHEMA | changes), task, "float32", training=training)


def test_series_of_several_lengths_are_padded(tmp_path: Path) -> None:
    found = read(tmp_path, HEADER + CASES)
    nan = np.nan
    expected = [[[1, -4], [2, 0.5], [3, 6]], [[7, 8], [nan, nan], [nan, nan]]]
    np.testing.assert_array_equal(found.inputs, np.array(expected, np.float32))
    assert found.inputs.dtype == np.float32
    assert found.labels is not None
    assert (found.labels.tolist(), found.split) == ([0, 1], None)


def test_a_second_file_is_the_test_set_of_a_site(tmp_path: Path) -> None:
    (tmp_path / "b.ts").write_text(HEADER.replace("1.0 up", "up") + "1:2:up\n")
    (tmp_path / "a.ts").write_text(HEADER + CASES * 2)
    data = SCHEMA | {"test_file": "b.ts"}
    spec = run_spec(task={"name": "classification", "classes": 2}, data=data, model={"name": "gru", "hidden": [2]})
    (split,) = read_site(spec, tmp_path, 0).splits
    assert (split.test.tolist(), len(split.train) + len(split.validation)) == ([4], 4)
    assert len(read_samples(spec, tmp_path / "b.ts", beside=()).inputs) == 1


def test_headers_are_read_in_any_case_and_dimensions_counted_where_they_are_not_said(tmp_path: Path) -> None:
    lines = [line for line in HEADER.upper().splitlines() if "DIMENSIONS" not in line]
    text = b"\xef\xbb\xbf" + "\r\n".join([*lines, CASES.upper()]).encode()
    assert read(tmp_path, text, values=["UP", 1]).inputs.shape == (2, 3, 2)
    (tmp_path / "a.ts").write_text("@univariate true\n@classLabel true a\n@data\n1,2:a\n")
    assert parse(tmp_path / "a.ts").series[0].tolist() == [[1], [2]]


def test_labels_are_numbers_or_are_not_there(tmp_path: Path) -> None:
    numbers = HEADER.replace("@classLabel true 1.0 up", "@targetlabel true") + "1:2:-3.5\n"
    labels = read(tmp_path, numbers, NUMBER, values=[]).labels
    assert labels is not None
    assert labels.tolist() == [-3.5]
    none = HEADER.replace("true 1.0 up", "false") + "1:2\n"
    assert read(tmp_path, none, training=False).labels is None
    with pytest.raises(DataError, match=r"a\.ts: has no labels, expected @classLabel true"):
        read(tmp_path, none)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("@timeStamps false", "@timeStamps true", "line 4: @timeStamps is true, expected false"),
        ("@univariate false", "@univariate no", "line 6: @univariate is 'no', expected true or false"),
        ("@dimensions 2", "@dimensions two", "line 7: @dimensions is 'two', expected a whole number from 1"),
        ("@dimensions 2", "@dimensions 3", "line 11: has 2 dimensions, and a label behind them, expected 3"),
        ("1.0 up", "", "line 9: @classLabel is true and names no classes"),
        ("1.0 up", "1 up down", "a.ts: @classLabel names 'down', expected classes among 'up', '1'"),
        ("@classLabel", "@targetLabel true\n@classLabel", "line 9: @targetLabel is true, and so is @classLabel"),
        ("@classLabel true 1.0 up", "@targetLabel true", "line 11: has the label 'up', expected a finite number"),
        ("@missing false", "@missing false\n@MISSING true", "line 6: '@missing' stands there twice"),
        ("@data\n", "", "line 10: holds '1,2,3:-4,5e-1,6:up', expected a line of the header, or @data"),
        ("@data\n" + CASES, "", "a.ts: has no line @data"),
        (CASES, "", "a.ts: has no series behind its line @data"),
        (":up\n", ":down\n", "line 11: has the label 'down', expected one of @classLabel: '1', 'up'"),
        (":up\n", "\n", "line 11: has the label '-4,5e-1,6', expected one of"),
        ("7:8:1", "7:1", "line 12: has 1 dimensions, and a label behind them, expected 2"),
        ("7:8:1", "7,7:8:1", "line 12: dimension 2 has 1 values, expected 2, as dimension 1 has"),
        ("7:8:1", "7,7,7,7:8,8,8,8:1", "line 12: has 4 frames of 2 dimensions, expected at most 3 of 2"),
        ("7:8:1", "7,?:8,9:1", "line 12: value 2 of dimension 1 is missing"),
        ("7:8:1", "7::1", "line 12: value 1 of dimension 2 is missing"),
        ("7:8:1", "7:NaN:1", "line 12: value 1 of dimension 2 is missing"),
        ("7:8:1", "7:x:1", "line 12: value 1 of dimension 2 is 'x', expected a finite number"),
        ("7:8:1", "7:1_0:1", "line 12: value 1 of dimension 2 is '1_0', expected a finite number"),
        ("7:8:1", "7:-inf:1", "line 12: value 1 of dimension 2 is '-inf', expected a finite number"),
        ("7:8:1", "7:1e50:1", "a.ts: x holds NaN or infinity in 1 samples, first in row 1"),
        ("up\n7", "\xff\n7", "line 11: is not text in UTF-8"),
    ],
)
def test_what_is_not_read_is_named_by_its_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in HEADER + CASES
    with pytest.raises(DataError) as error:
        read(tmp_path, (HEADER + CASES).replace(old, new, 1).encode("latin-1"))
    assert said in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "a.ts"))


def test_what_series_hold_is_told_to_nobody_else(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, HEADER + "7:secret:1\n")
    assert not re.search(r"\d|secret", error.value.public_message)


def test_schemas_go_with_tasks_and_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has classes, expected @targetLabel true"):
        read(tmp_path, HEADER + CASES, NUMBER, values=[])
    with pytest.raises(DataError, match="has numbers as labels, expected @classLabel true"):
        read(tmp_path, HEADER.replace("classLabel true 1.0 up", "targetLabel true") + "1:2:3\n")
    with pytest.raises(DataError, match=r"c\.ts: does not exist"):
        read(tmp_path, HEADER + CASES, test_file="c.ts")
    for changes, said in (
        ({"values": ["a", 1, "1.0"]}, "values: 1 stands there more than once"),
        ({"test_file": "a.ts"}, "test_file: a.ts is the file to train on"),
        ({"shape": [3]}, "shape"),
        ({"values": ["a"]}, "values: got 1, expected one for each of 3 task.classes"),
    ):
        with pytest.raises(SpecError, match=said):
            run_spec(data=SCHEMA | changes, model={"name": "gru", "hidden": [2]})


NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
FILES = st.integers(1, 3).flatmap(
    lambda dimensions: st.lists(
        st.tuples(
            st.integers(1, 4).flatmap(
                lambda frames: st.lists(
                    st.lists(NUMBERS, min_size=frames, max_size=frames), min_size=dimensions, max_size=dimensions
                )
            ),
            st.sampled_from(["a", "2"]),
        ),
        min_size=1,
        max_size=4,
    )
)


@settings(max_examples=examples(30))
@given(FILES)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, cases: list[tuple[Any, str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "written.ts"
    lines = [":".join([*(",".join(map(str, own)) for own in series), label]) for series, label in cases]
    path.write_text("\n".join(["@classLabel true a 2", "@data", *lines]))
    pool = Uea(name="uea", path=str(path)).load()
    assert pool.y.tolist() == [["a", "2"].index(label) for _, label in cases]
    for x, length, (series, _) in zip(pool.x, pool.others["length"], cases, strict=True):
        assert x[:length].T.tolist() == series
        assert not x[length:].any()


def test_the_simulator_deals_out_both_of_the_archives_files(tmp_path: Path) -> None:
    (tmp_path / "X_TRAIN.ts").write_text(HEADER + CASES)
    (tmp_path / "X_TEST.ts").write_text(HEADER.replace("1.0 up", "up 1") + "1,2,3,4:1,2,3,4:up\n")
    pool = Uea(name="uea", path=str(tmp_path / "X_TRAIN.ts")).load()
    assert pool.x.shape == (3, 4, 2)
    assert [pool.y.tolist(), pool.marks().tolist(), pool.others["length"].tolist()] == [[1, 0, 1], [0, 0, 2], [3, 1, 4]]
    (tmp_path / "X_TEST.ts").write_text(HEADER.replace("s 2", "s 1") + "1:up\n")
    with pytest.raises(DataError, match=r"X_TEST\.ts: line 11: has 1 frames of 1 dimensions, expected at most 3 of 2"):
        Uea(name="uea", path=str(tmp_path / "X_TRAIN.ts")).load()
    with pytest.raises(DataError, match=r"Y_TRAIN\.ts: does not exist; pass the file's place with --data"):
        Uea(name="uea", path=str(tmp_path / "Y_TRAIN.ts")).load()
