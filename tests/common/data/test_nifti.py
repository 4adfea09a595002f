"""Volumes that a table lists: read and scaled once, and every fault named with the table's row and the file."""

from __future__ import annotations

import struct
import sys
from itertools import permutations, product
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from nibabel.orientations import axcodes2ornt, ornt_transform

from rankdad.common.data import read_samples
from rankdad.common.spec import RunSpec
from tests.common.data.readings import labels_of
from tests.common.faults import Fault, fault
from tests.conftest import run_spec, sampled

DATA: dict[str, Any] = {
    "reader": "nifti",
    "file": "people.csv",
    "shape": [3, 4, 5],
    "label": "group",
    "values": ["control", "patient"],
}
PEOPLE = "image,group,age,site,t1,t2\na.nii,control,30,x,0,1\nsub/b.nii.gz,patient,41.5,y,1,1\n"
VOXELS = np.arange(60, dtype=np.int16).reshape(3, 4, 5)


def spec_of(task: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    return run_spec(task=task or {"name": "classification", "classes": 2}, data=DATA | changes)


def save(path: Path, voxels: np.ndarray[Any, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(path)
    return path


def write(folder: Path, people: str = PEOPLE) -> Path:
    save(folder / "a.nii", VOXELS)
    save(folder / "sub" / "b.nii.gz", VOXELS + 1.0)
    (folder / "people.csv").write_text(people)
    return folder / "people.csv"


def test_volumes_are_read_in_the_replicas_dtype_with_labels_and_keys(tmp_path: Path) -> None:
    found = read_samples(spec_of(), write(tmp_path))
    assert found.inputs.dtype == np.float32
    assert np.array_equal(found.inputs, np.stack([VOXELS, VOXELS + 1]))
    assert (labels_of(found), found.keys) == ([0, 1], ("a.nii", "sub/b.nii.gz"))
    assert read_samples(spec_of(key="site", group="group"), tmp_path / "people.csv").keys == ("x", "y")


def test_the_headers_scale_is_applied_once(tmp_path: Path) -> None:
    path, header = write(tmp_path), nibabel.Nifti1Image(VOXELS, np.eye(4)).header
    header["scl_slope"], header["scl_inter"], header["vox_offset"] = 2, 1, 352
    (tmp_path / "a.nii").write_bytes(header.binaryblock + b"\0" * 4 + VOXELS.tobytes(order="F"))
    assert np.array_equal(read_samples(spec_of(), path).inputs[0], VOXELS * 2 + 1)


@pytest.mark.parametrize("normalise", ["none", "volume"])
def test_every_volume_is_normalised_by_itself(tmp_path: Path, normalise: str) -> None:
    inputs = np.asarray(read_samples(spec_of(normalise=normalise), write(tmp_path)).inputs).reshape(2, -1)
    if normalise == "volume":
        assert np.allclose(inputs.mean(1), 0, atol=1e-6)
        assert np.allclose(inputs.std(1), 1)
    else:
        assert inputs.mean(1).tolist() == [29.5, 30.5]


@pytest.mark.parametrize(
    ("stored", "shape", "moved"),
    [((3, 4, 5, 2), [2, 3, 4, 5], True), ((3, 4, 5), [1, 3, 4, 5], True), ((3, 4, 5, 1), [3, 4, 5], False)],
)
def test_a_files_last_axis_are_the_channels(
    tmp_path: Path, stored: tuple[int, ...], shape: list[int], moved: bool
) -> None:
    path, voxels = write(tmp_path, "image,group\na.nii,control\n"), np.random.default_rng(0).normal(size=stored)
    save(tmp_path / "a.nii", voxels)
    found = read_samples(spec_of(shape=shape), path).inputs[0]
    expected = voxels.reshape(3, 4, 5, -1)
    assert np.array_equal(found, (np.moveaxis(expected, -1, 0) if moved else expected[..., 0]).astype(np.float32))


def turned(voxels: np.ndarray[Any, Any], codes: str, affine: Any = None) -> Any:
    """The same volume, stored so that its axes go where these letters say."""
    image = nibabel.Nifti1Image(voxels, np.diag([1.5, 2, 3, 1]) if affine is None else affine)
    return image.as_reoriented(ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(codes)))


SIDES = ("RL", "AP", "IS")
ORIENTATIONS = ["".join(sides) for axes in permutations(SIDES) for sides in product(*axes)]


@pytest.mark.parametrize("codes", sampled(ORIENTATIONS, 5))
def test_however_a_volume_is_stored_it_is_the_same(tmp_path: Path, codes: str) -> None:
    path, voxels = write(tmp_path, "image,group\na.nii,control\nb.nii.gz,patient\n"), VOXELS + 0.5
    turned(voxels, codes).to_filename(tmp_path / "a.nii")
    tilt = np.array([[0.96, -0.28, 0, 5], [0.28, 0.96, 0, -7], [0, 0, 1, 9], [0, 0, 0, 1]])  # by 16 degrees
    turned(np.stack([voxels], -1), codes, tilt).to_filename(tmp_path / "b.nii.gz")
    assert np.array_equal(read_samples(spec_of(), path).inputs, [voxels, voxels])
    stored = np.asarray(nibabel.Nifti1Image.from_filename(tmp_path / "a.nii").dataobj)
    (tmp_path / "people.csv").write_text("image,group\na.nii,control\n")
    found = read_samples(spec_of(orientation="stored", shape=list(stored.shape)), path)
    assert np.array_equal(np.asarray(found.inputs)[0], stored)


def test_channels_stay_with_their_volume(tmp_path: Path) -> None:
    path, voxels = write(tmp_path, "image,group\na.nii,control\n"), np.random.default_rng(0).normal(size=(3, 4, 5, 2))
    turned(voxels, "PSL").to_filename(tmp_path / "a.nii")
    found = np.asarray(read_samples(spec_of(shape=[2, 3, 4, 5]), path).inputs)[0]
    assert np.array_equal(found, np.moveaxis(voxels, -1, 0).astype(np.float32))


def forms(sform: Any, qform: Any, shape: tuple[int, ...] = (3, 4, 5)) -> nibabel.Nifti1Image:
    image = nibabel.Nifti1Image(VOXELS.reshape(shape), None)
    image.header.set_qform(np.eye(4) if qform is None else qform, 0 if qform is None else 1)
    image.header.set_sform(np.eye(4) if sform is None else sform, 0 if sform is None else 1)
    return nibabel.Nifti1Image(VOXELS.reshape(shape), None, image.header)


FLAT = np.diag([1.0, 1, 0, 1])


@pytest.mark.parametrize(
    ("image", "code", "field"),
    [
        (forms(None, None), "orientation-unknown", "data.orientation"),
        (forms(FLAT, None), "orientation-unknown", "data.orientation"),
        (forms(np.full((4, 4), np.nan), None), "orientation-unknown", "data.orientation"),
        (forms(np.diag([-1, 1, 1, 1]), np.eye(4)), "orientation-contradicts", "data.orientation"),
        (turned(VOXELS.reshape(5, 4, 3), "RAS"), "shape-mismatch", "data.shape"),
        (turned(VOXELS.reshape(5, 3, 4), "SRA"), None, ""),
        (forms(None, np.diag([-1, -1, 1, 1])), None, ""),
    ],
)
def test_what_does_not_say_how_it_is_oriented_is_refused(tmp_path: Path, image: Any, code: Any, field: str) -> None:
    path = write(tmp_path, "image,group\na.nii,control\n")
    image.to_filename(tmp_path / "a.nii")
    if code is None:
        expected = nibabel.as_closest_canonical(nibabel.Nifti1Image.from_filename(tmp_path / "a.nii")).dataobj
        assert np.array_equal(read_samples(spec_of(shape=list(expected.shape)), path).inputs[0], np.asarray(expected))
        return
    assert fault(lambda: read_samples(spec_of(), path)) == (code, field, 2)
    if field == "data.orientation":
        assert np.array_equal(read_samples(spec_of(orientation="stored"), path).inputs[0], VOXELS)


def change(name: str, edit: Any) -> Any:
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes()))


def head(**fields: float) -> bytes:
    header = nibabel.Nifti1Image(VOXELS, np.eye(4)).header
    header["vox_offset"] = 352
    for name, value in fields.items():
        header[name] = value
    return bytes(header.binaryblock)


def flipped(held: bytes) -> bytes:
    """Change the last byte of the checksum that gzip writes behind what it packs."""
    return held[:-5] + bytes([held[-5] ^ 1]) + held[-4:]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        *[
            (change("a.nii", edit), ("volume-damaged", "image", 2))
            for edit in (
                lambda held: held[:-40],
                lambda held: held[:200],
                lambda held: b"",
                lambda held: b"volume" * 100,
                lambda held: head(vox_offset=np.nan) + held[348:],
                lambda held: head(vox_offset=2e9) + held[348:],
            )
        ],
        *[
            (change("sub/b.nii.gz", edit), ("volume-damaged", "image", 3))
            for edit in (
                lambda held: held[: len(held) // 2],
                lambda held: b"\x1f\x8b" + held[2:50],
                lambda held: held[:-1],
                flipped,
            )
        ],
        (lambda f: save(f / "a.nii", VOXELS[:2]), ("shape-mismatch", "data.shape", 2)),
        (lambda f: save(f / "a.nii", np.stack([VOXELS] * 2, -1)), ("shape-mismatch", "data.shape", 2)),
        (lambda f: save(f / "a.nii", np.where(VOXELS < 2, np.nan, 0.5)), ("not-finite", "image", 2)),
        (lambda f: save(f / "a.nii", VOXELS * 1e300), ("not-finite", "image", 2)),
        (change("a.nii", lambda held: head(scl_slope=np.inf) + held[348:]), ("not-finite", "image", 2)),
        (lambda f: save(f / "a.nii", VOXELS * 1j), ("voxels-not-numbers", "image", 2)),
        (lambda f: save(f / "a.nii", np.zeros_like(VOXELS)), ("constant", "image", 2)),
        (lambda f: (f / "a.nii").unlink(), ("cell", "image", 2)),
    ],
)
def test_a_bad_file_is_named_with_the_row_that_lists_it(tmp_path: Path, damage: Any, found: Fault) -> None:
    path = write(tmp_path)
    damage(tmp_path)
    private = ("a.nii", "b.nii", str(tmp_path))
    assert fault(lambda: read_samples(spec_of(normalise="volume"), path), *private) == found


def test_extensions_of_a_header_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path)
    content = head(vox_offset=512) + b"\1\0\0\0" + struct.pack("<ii", -7, 6) + bytes(152) + VOXELS.tobytes(order="F")
    (tmp_path / "a.nii").write_bytes(content)
    assert np.array_equal(np.asarray(read_samples(spec_of(), path).inputs)[0], VOXELS)


@pytest.mark.parametrize(
    ("old", "new", "changes", "found"),
    [
        *[("a.nii", out, {}, ("cell", "image", 2)) for out in ("../a.nii", "/etc/passwd", "sub", "")],
        ("a.nii", "people.csv", {}, ("format-unexpected", "image", 2)),
        ("a.nii", "sub/./b.nii.gz", {}, ("key-repeated", "image", 3)),
        ("control", "ill", {}, ("level-unknown", "group", 2)),
        ("control", "NA", {}, ("cell", "group", 2)),
        ("image,", "scan,", {}, ("column-missing", "image", None)),
        (",y,", ",x,", {"key": "site"}, ("key-repeated", "site", 3)),
        (",y,", ",,", {"group": "site"}, ("cell", "site", 3)),
        (PEOPLE[PEOPLE.index("a.nii") :], "", {}, ("no-rows", "", None)),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, old: str, new: str, changes: dict[str, Any], found: Fault) -> None:
    path = write(tmp_path, PEOPLE.replace(old, new))
    assert fault(lambda: read_samples(spec_of(**changes), path)) == found


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "site")
    (tmp_path / "site" / "a.nii").rename(tmp_path / "secret.nii")
    (tmp_path / "site" / "a.nii").symlink_to(tmp_path / "secret.nii")
    assert fault(lambda: read_samples(spec_of(), path)) == ("cell", "image", 2)


def test_incomplete_rows_are_left_out_or_predicted_where_that_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, PEOPLE.replace("control", "NA"))
    found = read_samples(spec_of(missing="drop"), path)
    assert (found.keys, found.dropped, len(found.notes)) == (("sub/b.nii.gz",), 1, 1)
    found = read_samples(spec_of(group="site"), path, beside=())
    assert found.rows is not None
    assert (found.rows.unlabelled, len(found.notes)) == (frozenset({0}), 1)
    path.write_text("image\na.nii\n")
    assert read_samples(spec_of(group="site"), path, beside=()).labels is None


def test_without_nibabel_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nibabel", None)
    assert fault(lambda: read_samples(spec_of(), write(tmp_path))) == ("not-installed", "data.reader", None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"shape": [3, 4]}, "data.shape"),
        ({"image": "group"}, "data"),
        ({"values": ["a", "a"]}, "data"),
        ({"values": ["a"]}, "data"),
        ({"missing": "impute"}, "data.missing"),
    ],
)
def test_nonsense_in_the_schema_is_named(changes: dict[str, Any], field: str) -> None:
    assert fault(lambda: spec_of(**changes))[1].startswith(field)
