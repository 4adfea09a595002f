"""Samples that are read when they are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankdad.common.data.file_samples import FileSamples
from rankdad.common.data.reading import Array
from rankdad.common.errors import DataError
from rankdad.common.loading import Loading


def samples(folder: Path) -> FileSamples:
    """Return three samples, whose files lie in a folder."""

    def read(row: int) -> Array:
        try:
            return np.load(folder / f"{row}.npy", allow_pickle=False)  # type: ignore[no-any-return]
        except OSError:
            raise DataError(folder / f"{row}.npy", "cannot be read", code="picture-damaged") from None

    def fault(row: int, problem: str) -> DataError:
        return DataError(folder / f"{row}.npy", problem, code="picture-unusable", row=row)

    for row in range(3):
        np.save(folder / f"{row}.npy", np.full(4, row, np.float32))
    return FileSamples(folder, read, (3, 4), np.dtype("float32"), fault)


@pytest.mark.parametrize(
    "change", [lambda path: path.unlink(), lambda path: np.save(path, np.zeros(4, np.float32))], ids=["gone", "other"]
)
def test_a_file_that_changes_while_a_run_trains_is_waited_for(tmp_path: Path, change: Callable[[Path], None]) -> None:
    found = samples(tmp_path).checked(Loading(cache_mib=0))
    kept = (path := tmp_path / "1.npy").read_bytes()
    change(path)
    with pytest.raises(DataError) as caught:
        found.take([0, 1])[1]
    assert (caught.value.code, caught.value.is_recoverable) == ("sample-changed", True)
    path.write_bytes(kept)
    assert found[1].tolist() == [1.0] * 4


def test_a_file_that_is_missing_from_the_start_is_not_waited_for(tmp_path: Path) -> None:
    found = samples(tmp_path)
    (tmp_path / "2.npy").unlink()
    with pytest.raises(DataError) as caught:
        found.checked(Loading(cache_mib=0))
    assert (caught.value.code, caught.value.is_recoverable) == ("picture-damaged", False)
