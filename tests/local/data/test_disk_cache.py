"""Prepared samples on disk: unpacked once, never believed when damaged, made anew when a file changes."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

from rankdad.common.errors import DataError, UserError
from rankdad.common.preparation import in_memory
from rankdad.common.spec import RunSpec
from rankdad.local.data import nifti, read_site
from rankdad.local.data.lazy import Lazy
from rankdad.local.data.loading import Loading
from tests.volumes import SHAPE, volumes_spec, write_volumes

FILE = "samples.cache"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the volumes whose own files are read."""
    found, load = list[str](), nifti._volume

    def noted(file: Path, *args: Any) -> Any:
        found.append(file.name)
        return load(file, *args)

    monkeypatch.setattr(nifti, "_volume", noted)
    return found


def read(folder: Path, spec: RunSpec | None = None, disk_mib: int = 1, **loading: int) -> Lazy:
    chosen = Loading(disk_mib=disk_mib, **{"cache_mib": 0} | loading)
    inputs = read_site(spec or volumes_spec(), folder, 0, (), chosen, folder / "output").samples.inputs
    assert isinstance(inputs, Lazy)
    return inputs


def rewrite(file: Path, value: float) -> None:
    nibabel.Nifti1Image(np.full(SHAPE, value, np.float32), np.eye(4)).to_filename(file)


def test_files_are_read_once_by_all_runs_and_workers(tmp_path: Path, opened: list[str]) -> None:
    write_volumes(tmp_path, 9, 0)
    expected = in_memory(read(tmp_path, disk_mib=0))
    assert not (tmp_path / "output").exists()
    opened.clear()
    assert torch.equal(in_memory(read(tmp_path)), expected)
    assert len(opened) == 9
    opened.clear()
    assert torch.equal(in_memory(read(tmp_path)), expected)
    assert torch.equal(in_memory(read(tmp_path, workers=2)), expected)
    assert not opened
    (tmp_path / "output" / FILE).chmod(0o666)
    assert torch.equal(in_memory(read(tmp_path)), expected)
    assert (tmp_path / "output" / FILE).stat().st_mode & 0o077 == 0, "patients' images are for nobody else"


def test_what_does_not_fit_is_read_from_its_file(tmp_path: Path, opened: list[str]) -> None:
    shape = (64, 64, 64)  # 1 MiB each, and a head
    write_volumes(tmp_path, 4, 0, shape)
    spec = volumes_spec(data=volumes_spec().data.model_dump(mode="json") | {"shape": list(shape)})
    inputs = read(tmp_path, spec, disk_mib=3)
    opened.clear()
    in_memory(inputs)
    assert opened == ["2.nii", "3.nii.gz"]


def test_a_changed_file_is_read_anew_by_the_next_run(tmp_path: Path, opened: list[str]) -> None:
    write_volumes(tmp_path, 5, 0)
    read(tmp_path)
    rewrite(tmp_path / "2.nii", 7)
    opened.clear()
    assert torch.equal(in_memory(read(tmp_path))[2], torch.full(SHAPE, 7.0))
    assert opened == ["2.nii"]
    opened.clear()
    rewrite(tmp_path / "2.nii", 7)
    normalised = volumes_spec(data=volumes_spec().data.model_dump(mode="json") | {"normalise": "volume"})
    with pytest.raises(DataError, match=r"row 4, column image: '2\.nii' holds the same number"):
        read(tmp_path, normalised)  # read otherwise: nothing of the cache counts


def test_files_that_change_places_are_read_anew(tmp_path: Path) -> None:
    write_volumes(tmp_path, 5, 0)
    for name in ("0.nii", "2.nii"):
        os.utime(tmp_path / name, (1, 1))  # as archives are unpacked: of one size and one time
    expected = in_memory(read(tmp_path))
    (tmp_path / "0.nii").rename(tmp_path / "kept")
    (tmp_path / "2.nii").rename(tmp_path / "0.nii")
    (tmp_path / "kept").rename(tmp_path / "2.nii")
    found = in_memory(read(tmp_path))
    assert torch.equal(found[0], expected[2])
    assert torch.equal(found[2], expected[0])


def test_what_a_link_in_the_place_of_the_cache_leads_to_is_left_alone(tmp_path: Path) -> None:
    write_volumes(tmp_path, 5, 0)
    (tmp_path / "other").write_text("somebody's")
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / FILE).symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match=r"samples.cache of 0 MiB cannot be written: Too many levels of symbolic links"):
        read(tmp_path)
    assert (tmp_path / "other").read_text() == "somebody's"


@pytest.mark.parametrize("where", ["head", "voxels", "cut off", "all of it"])
def test_a_damaged_record_does_not_count(tmp_path: Path, where: str) -> None:
    write_volumes(tmp_path, 6, 0)
    inputs = read(tmp_path)
    expected, file = in_memory(inputs), tmp_path / "output" / FILE
    whole = bytearray(file.read_bytes())
    record = len(whole) // 6
    for row in range(2 if where != "all of it" else 0, 3 if where != "all of it" else 6):
        whole[row * record + (5 if where == "head" else 70)] ^= 1
    os.truncate(file, 2 * record + 80) if where == "cut off" else file.write_bytes(whole)
    assert torch.equal(in_memory(inputs), expected), "in the midst of training"
    assert torch.equal(in_memory(read(tmp_path)), expected), "at the next start"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_changes_in_the_midst_of_training_is_named(tmp_path: Path, workers: int) -> None:
    write_volumes(tmp_path, 6, 0)
    inputs, kept = read(tmp_path, disk_mib=0, workers=workers), read(tmp_path, workers=workers)
    expected = in_memory(kept)
    rewrite(tmp_path / "4.nii", 7)
    said = r"scans.csv: row 6, column image: '4\.nii' holds something else than when training began: put back"
    with pytest.raises(DataError, match=said):
        in_memory(inputs)
    assert torch.equal(in_memory(kept), expected), "what is kept is what training began with"


@pytest.mark.slow
def test_a_disk_that_is_too_small_is_told_before_anything_is_read(tmp_path: Path, opened: list[str]) -> None:
    write_volumes(tmp_path, 6, 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(
            UserError, match=r"^loading.disk_mib: .*samples.cache of 0 MiB cannot be written: .*or 0 for"
        ):
            read(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not opened
    (tmp_path / "output" / FILE).unlink()
    (tmp_path / "output" / FILE).mkdir()
    with pytest.raises(UserError, match=r"samples.cache of 0 MiB cannot be written: Is a directory"):
        read(tmp_path)
