"""Series of the archives become npz files that runs read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.ts import convert
from rankdad.common.data.npz import read_npz
from rankdad.common.errors import DataError
from rankdad.common.spec.data import NpzData
from rankdad.common.spec.tasks import Classification

HEADER = "# Of gestures\n@problemName some\n@timeStamps false\n@univariate false\n@classLabel true 1.0 up\n@data\n"


def test_two_files_become_one_npz_with_its_test_set(tmp_path: Path) -> None:
    (tmp_path / "a.ts").write_text(HEADER + "1,2,3:-4,5e-1,6:up\n7:8:1.0\n")
    (tmp_path / "b.ts").write_text(HEADER + "1:2:up\n")
    convert([tmp_path / "a.ts", tmp_path / "b.ts"], tmp_path / "both.npz")
    found = read_npz(tmp_path / "both.npz", NpzData(shape=(3, 2)), Classification(classes=2), "float32")
    nan = np.nan
    expected = [[[1, -4], [2, 0.5], [3, 6]], [[7, 8], [nan, nan], [nan, nan]], [[1, 2], [nan, nan], [nan, nan]]]
    np.testing.assert_array_equal(found.inputs, np.array(expected, np.float32))
    assert found.labels is not None
    assert found.split is not None
    assert (found.labels.tolist(), found.split.tolist()) == ([1, 0, 1], [0, 0, 2])


@pytest.mark.parametrize(
    ("text", "line"),
    [("1,?:2,3:up\n", 7), ("1,2:3:up\n", 7), ("1:2:up\n1:up\n", 8), ("1:2:down\n", 7), ("1:nan:up\n", 7)],
)
def test_what_is_no_series_is_named_by_its_line(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "a.ts").write_text(HEADER + text)
    with pytest.raises(DataError) as caught:
        convert([tmp_path / "a.ts"], tmp_path / "a.npz")
    assert (caught.value.code, f"line {line}" in str(caught.value)) == ("line-malformed", True)
