"""Reading a site's file: every fault is named, and splits do not overlap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankdad.common.data import SiteData, read_samples, read_site, split_samples
from rankdad.common.errors import DataError
from rankdad.common.preparation import in_memory
from tests.conftest import part_of, run_spec, write_site

PARTS = ("train", "validation", "test")


def sizes(data: SiteData) -> list[int]:
    return [len(part_of(data, name)) for name in PARTS]


def test_splits_are_whole_disjoint_and_seeded(tmp_path: Path) -> None:
    spec = run_spec(training={"validation": 0.2, "test": 0.3})
    folder = write_site(tmp_path, 100, 0, x=np.arange(600.0).reshape(100, 6))
    data = read_site(spec, folder, 0)
    assert sizes(data) == [50, 20, 30]
    first = [row for name in PARTS for row in in_memory(part_of(data, name).inputs)[:, 0].tolist()]
    assert sorted(first) == [float(6 * row) for row in range(100)]
    again, other = read_site(spec, folder, 0), read_site(spec, folder, 1)
    assert torch.equal(again.splits[0].test, data.splits[0].test)
    assert not torch.equal(other.splits[0].test, data.splits[0].test)


def test_the_files_own_split_decides(tmp_path: Path) -> None:
    split = np.array([0] * 60 + [2] * 40)
    data = read_site(run_spec(training={"validation": 0.25}), write_site(tmp_path, 100, 0, split=split), 0)
    assert sizes(data) == [45, 15, 40]
    split[:10] = 1
    data = read_site(run_spec(), write_site(tmp_path, 100, 0, split=split), 0)
    assert sizes(data) == [50, 10, 40]


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"x": np.zeros((10, 5))}, "shape-differs"),
        ({"x": np.where(np.arange(60).reshape(10, 6) == 12, np.nan, 0.0)}, "not-finite"),
        ({"split": np.full(10, 3)}, "value-unusable"),
        ({"split": np.full(10, 2)}, "too-few-samples"),
        ({"x": np.zeros((0, 6)), "y": np.zeros(0)}, "too-few-samples"),
    ],
)
def test_a_fault_is_named_with_its_file(tmp_path: Path, arrays: dict[str, Any], code: str) -> None:
    """Those of single arrays: tests/common/data/test_npz.py."""
    folder = write_site(tmp_path, 10, 0, **arrays)
    with pytest.raises(DataError) as error:
        read_site(run_spec(), folder, 0)
    assert error.value.code == code
    assert str(folder / "data.npz") in str(error.value)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    codes = list[str]()
    for content in (None, b"PK\x03\x04 not an archive"):
        if content is not None:
            (tmp_path / "data.npz").write_bytes(content)
        with pytest.raises(DataError) as error:
            read_site(run_spec(), tmp_path, 0)
        codes.append(error.value.code)
    assert codes == ["file-missing", "npz-unreadable"]


def test_tokens_stay_whole_numbers_within_their_range(tmp_path: Path) -> None:
    spec = run_spec(data={"shape": [6], "tokens": 5})
    folder = write_site(tmp_path, 20, 0, x=np.full((20, 6), 4))
    assert read_site(spec, folder, 0).samples.inputs.dtype == torch.int64
    write_site(tmp_path, 20, 0, x=np.full((20, 6), 5))
    with pytest.raises(DataError) as error:
        read_site(spec, folder, 0)
    assert error.value.code == "value-unusable"


def test_a_reading_can_be_split_again(tmp_path: Path) -> None:
    spec = run_spec(training={"validation": 0.25})
    path = write_site(tmp_path, 100, 0, split=np.array([0] * 60 + [2] * 40)) / "data.npz"
    reading = read_samples(spec, path)
    first, again = split_samples(spec, reading, 0), split_samples(spec, reading, 0)
    assert sizes(again) == [45, 15, 40]
    assert torch.equal(first.splits[0].train, again.splits[0].train)
    (own,), (elsewhere,) = again.splits, split_samples(spec, reading, 1).splits
    assert torch.equal(elsewhere.test, own.test)
    assert not torch.equal(elsewhere.train, own.train)
