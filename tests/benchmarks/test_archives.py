from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.archives import ARCHIVES, SPOKEN, convert, load
from rankdad.common.data import read_samples
from rankdad.common.documents import validate
from rankdad.common.errors import DataError
from rankdad.simulations.site_folders import write_sites
from rankdad.simulations.spec import SimulationFile
from tests.conftest import SHARED, run_document

LABELS: dict[str, Any] = {"y_train": np.array([[0], [1], [2]], np.uint8), "y_test": np.array([1, 0], np.uint8)}
PLAIN = LABELS | {"x_train": np.zeros((3, 4, 4), np.uint8), "x_test": np.ones((2, 4, 4), np.uint8)}
SERIES = LABELS | {
    "frames_train": np.arange(14, dtype=np.float16).reshape(7, 2),
    "len_train": np.array([2, 4, 1], np.int16),
    "frames_test": -np.arange(8, dtype=np.float16).reshape(4, 2),
    "len_test": np.array([3, 1], np.int16),
}


@pytest.mark.parametrize("source", ["mnist", "pendigits", "natops", "cifar10"])
def test_training_and_test_sets_stay_apart(source: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "it.npz", **PLAIN)
    pool = load(source, tmp_path / "it.npz")
    assert pool.marks().tolist() == [0, 0, 0, 2, 2]
    assert (pool.x.mean(axis=(1, 2)).tolist(), pool.y.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 2, 1, 0])


def test_series_end_to_end_are_padded(tmp_path: Path) -> None:
    np.savez(tmp_path / ARCHIVES[SPOKEN].file, **SERIES)
    (converted,) = convert(tmp_path, tmp_path / "converted")
    source = {"name": "npz", "path": str(converted)}
    run = run_document(data={"shape": [4, 2]}, federation={"sites": ["a"]}, model={"name": "gru", "hidden": [2]})
    file = validate(SimulationFile, {"run": run, "simulation": {"source": source}})
    (config,) = write_sites(file, tmp_path / "sites", "http://127.0.0.1:0").values()
    found = read_samples(file.run, Path(config.data) / "data.npz")
    assert found.labels is not None
    assert found.split is not None
    expected = {  # by label and split, which no two share
        (label, 2 * test): series
        for test, part in enumerate(("train", "test"))
        for label, series in zip(
            SERIES[f"y_{part}"].reshape(-1),
            np.split(SERIES[f"frames_{part}"], np.cumsum(SERIES[f"len_{part}"])[:-1]),
            strict=True,
        )
    }
    assert len(found.inputs) == len(expected)
    for x, label, mark in zip(found.inputs, found.labels, found.split, strict=True):
        series = expected[label, mark]
        assert x[: len(series)].tolist() == series.tolist()
        assert np.isnan(x[len(series) :]).all()


@pytest.mark.parametrize(
    ("source", "changes", "said"),
    [
        ("mnist", {"y_test": np.zeros(3)}, "y_test has 3 labels for 2 samples"),
        ("mnist", {"x_test": np.zeros((2, 5))}, "x_train has shape [3, 4, 4], x_test [2, 5], expected samples of"),
        ("mnist", {"x_test": None}, "has no array x_test, expected x_train, y_train, x_test, y_test"),
        (
            *(SPOKEN, {"len_train": np.array([2, 4, 2])}),
            "len_train adds up to 8 frames, expected the 7 of frames_train",
        ),
        (
            SPOKEN,
            {"len_test": np.array([4, 0])},
            "len_test holds 0 in row 1, expected whole numbers",
        ),
        (SPOKEN, {"y_train": np.zeros(4)}, "y_train has 4 labels for 3 samples"),
        (
            *(SPOKEN, {"frames_test": np.zeros((4, 3))}),
            "has frames_train [7, 2] and frames_test [4, 3], expected as many features of each",
        ),
        (SPOKEN, {"frames_test": np.full((4, 2), "a")}, "frames_test holds <U1, expected numbers"),
        (SPOKEN, {name: array[:0] for name, array in SERIES.items()}, "has no series"),
    ],
)
def test_what_is_no_such_archive_is_refused(source: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    arrays = (SERIES if source == SPOKEN else PLAIN) | changes
    np.savez(tmp_path / "it.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(DataError) as error:
        load(source, tmp_path / "it.npz")
    assert said in str(error.value)
    assert str(tmp_path / "it.npz") in str(error.value)


@pytest.mark.parametrize("source", ARCHIVES)
def test_a_file_that_is_not_there_can_be_had_somewhere(source: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load(source, tmp_path / "none.npz")
    said = str(error.value)
    assert said.startswith(f"{tmp_path / 'none.npz'}: does not exist; create it from")
    assert f"{ARCHIVES[source].found_at}, with the arrays " in said


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("source", "shape", "counts"),
    [
        ("pendigits", (8, 2), (7494, 3498)),
        ("natops", (51, 24), (180, 180)),
        (SPOKEN, (93, 13), (6600, 2200)),
        ("cifar10", (32, 32, 3), (10_000, 1000)),
    ],
)
def test_the_published_files_are_read(source: str, shape: tuple[int, ...], counts: tuple[int, int]) -> None:
    path = SHARED / ARCHIVES[source].file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    pool = load(source, path)
    assert pool.x.shape == (sum(counts), *shape)
    assert np.bincount(pool.marks()).tolist() == [counts[0], 0, counts[1]]
    if source == SPOKEN:
        assert pool.x.dtype == np.float32
        assert (pool.others["length"].min(), pool.others["length"].max()) == (4, 93)
