"""Pictures in sub-folders or listed by a table: what their pixels become, and every fault with the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rankdad.common.data import read_samples, read_site
from rankdad.common.spec import RunSpec
from tests.common.data.readings import labels_of, two_classes
from tests.common.faults import Fault, fault, refused
from tests.conftest import run_spec

DATA: dict[str, Any] = {"reader": "images", "size": [4, 6], "values": ["cat", "dog"]}
TABLE: dict[str, Any] = {"file": "all.csv", "label": "animal"}
RED = np.full((4, 6, 3), (255, 0, 51), np.uint8)
AS_READ = np.array([1, 0, 0.2])[:, None, None] * np.ones((4, 6))
GREY16 = (np.arange(24, dtype=np.uint16) * 2849).reshape(4, 6)  # up to 65527


def spec_of(**changes: Any) -> RunSpec:
    return two_classes(DATA | changes)


def save(path: Path, pixels: np.ndarray[Any, Any] = RED, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def write(folder: Path) -> Path:
    save(folder / "dog" / "1.png")
    save(folder / "cat" / "b.bmp", RED * 0)
    save(folder / "cat" / "a.TIF")
    (folder / "cat" / ".DS_Store").write_bytes(b"hidden")
    return folder


def first(folder: Path, **changes: Any) -> Any:
    return np.asarray(read_samples(spec_of(**changes), folder).inputs)[0]


def larger(pixels: np.ndarray[Any, Any], times: int) -> np.ndarray[Any, Any]:
    return np.repeat(np.repeat(pixels, times, 0), times, 1)


def test_a_sub_folder_is_a_class(tmp_path: Path) -> None:
    found = read_samples(spec_of(), write(tmp_path))
    assert (found.keys, found.named_by) == (("cat/a.TIF", "cat/b.bmp", "dog/1.png"), "the names of files")
    assert labels_of(found) == [0, 0, 1]
    assert (found.inputs.dtype.name, found.inputs.shape) == ("float32", (3, *spec_of().data.shape))
    assert np.allclose(found.inputs[2], AS_READ)
    assert len(read_site(spec_of(), tmp_path, 0).splits[0].train) == 2


def test_a_table_lists_pictures_with_labels_of_any_task(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "all.csv").write_text("image,animal,id,weight\ndog/1.png,dog,17,12.5\ncat/b.bmp,cat,16,3\n")
    found = read_samples(spec_of(**TABLE, key="id"), tmp_path / "all.csv")
    assert (found.keys, labels_of(found), found.named_by) == (("17", "16"), [1, 0], "the column id")
    assert read_samples(spec_of(**TABLE), tmp_path / "all.csv").named_by == "the column image"
    weights = run_spec(task={"name": "regression"}, data=DATA | TABLE | {"label": "weight", "values": []})
    assert labels_of(read_samples(weights, tmp_path / "all.csv")) == [12.5, 3]


@pytest.mark.parametrize("mode", ["grey", "rgb"])
@pytest.mark.parametrize(
    ("pixels", "grey"),
    [
        (GREY16, GREY16 / 65535),
        ((GREY16 // 257).astype(np.uint8), (GREY16 // 257) / 255),
        (GREY16 > 9999, GREY16 > 9999),
        (np.dstack([GREY16 // 257] * 3 + [GREY16 * 0 + 255]).astype(np.uint8), (GREY16 // 257) / 255),
    ],
    ids=["16 bits", "8 bits", "1 bit", "an alpha channel"],
)
def test_pixels_are_from_0_to_1_whatever_the_file_holds(tmp_path: Path, mode: str, pixels: Any, grey: Any) -> None:
    save(tmp_path / "cat" / "1.png", pixels)
    found = first(tmp_path, mode=mode)
    assert found.shape == (1 if mode == "grey" else 3, 4, 6)
    assert np.allclose(found, grey, atol=1e-6)


def test_other_sizes_are_scaled_only_where_the_schema_says_so(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png", larger(RED, 3))
    assert fault(lambda: first(tmp_path)) == ("size-mismatch", "data.size", None)
    assert np.allclose(first(tmp_path, resize=True), AS_READ)
    save(tmp_path / "cat" / "1.png", larger(GREY16, 3))
    found = first(tmp_path, resize=True, mode="grey")[0]
    assert np.allclose(found[1:-1, 1:-1], (GREY16 / 65535)[1:-1, 1:-1], atol=0.02)


@pytest.mark.parametrize("orientation", range(9))  # 0 is none of EXIF's
def test_a_picture_is_upright_as_its_exif_says(tmp_path: Path, orientation: int) -> None:
    upright = larger(GREY16 // 257, 8).astype(np.uint8)
    # EXIF 2.32, 4.6.4.A: where row 0 and column 0 of what is stored are in the picture, (top or bottom, left or right)
    stored = [upright, upright, upright[:, ::-1], np.rot90(upright, 2), upright[::-1]]
    stored += [upright.T, np.rot90(upright), np.rot90(upright, 2).T, np.rot90(upright, -1)]
    picture = Image.fromarray(np.ascontiguousarray(stored[orientation]))
    exif = picture.getexif()
    exif[0x0112] = orientation
    (tmp_path / "cat").mkdir()
    for ending in ("jpg", "png", "tif"):
        picture.save(tmp_path / "cat" / f"1.{ending}", exif=exif, quality=100)
    for found in np.asarray(read_samples(spec_of(mode="grey", size=[32, 48]), tmp_path).inputs):
        np.testing.assert_allclose(found[0], upright / 255, atol=0.02)


PALETTE = Image.fromarray(RED).quantize(4)
CLEAR = Image.fromarray(np.dstack([RED, np.full((4, 6), 255, np.uint8)]))
CLEAR.putpixel((2, 1), (255, 0, 51, 0))


@pytest.mark.parametrize(
    ("picture", "options", "ending", "code"),
    [
        (PALETTE, {}, "png", None),
        (PALETTE.convert("PA"), {}, "tif", None),
        (Image.fromarray(RED).convert("YCbCr"), {}, "tif", "pixels-unknown"),
        (Image.fromarray(RED).convert("CMYK"), {}, "jpg", "pixels-unknown"),
        (CLEAR, {}, "png", "transparent"),
        (CLEAR.convert("LA"), {}, "png", "transparent"),
        (Image.fromarray(RED), {"transparency": (255, 0, 51)}, "png", "transparent"),
        (Image.fromarray(RED), {"transparency": (1, 2, 3)}, "png", None),
        (PALETTE, {"transparency": PALETTE.getpixel((0, 0))}, "png", "transparent"),
        (Image.fromarray(np.ones((4, 6), np.int32)), {}, "tif", "pixels-unknown"),
    ],
)
def test_colours_are_those_that_are_seen_or_refused(
    tmp_path: Path, picture: Image.Image, options: dict[str, Any], ending: str, code: str | None
) -> None:
    (tmp_path / "cat").mkdir()
    picture.save(tmp_path / "cat" / f"1.{ending}", **options)
    if code is None:
        assert np.allclose(first(tmp_path), AS_READ)
    else:
        error = refused(lambda: first(tmp_path))
        assert (error.code, error.file) == (code, str(tmp_path))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda f: cut(save(f / "dog" / "1.png")), "picture-damaged"),
        (lambda f: cut(save(f / "dog" / "1.jpg")), "picture-damaged"),
        (lambda f: cut(f / "cat" / "b.bmp"), "picture-damaged"),
        (lambda f: (f / "dog" / "1.png").write_bytes(b""), "picture-damaged"),
        (lambda f: save(f / "dog" / "1.gif"), "format-unexpected"),
        (lambda f: save(f / "dog" / "1.gif").rename(f / "dog" / "2.png"), "picture-damaged"),
        (lambda f: save(f / "dog" / "1.tif", save_all=True, append_images=[Image.fromarray(RED)]), "several-pictures"),
        (lambda f: save(f / "dog" / "1.tif", np.ones((4, 6), np.float32)), "pixels-unknown"),
        (lambda f: (f / "cat" / "more").mkdir(), "picture-unusable"),
        (lambda f: (f / "cta").mkdir(), "class-unknown"),
        (lambda f: (f / "all.csv").touch(), "folder-expected"),
        (lambda f: (f / "cat" / "x.png").symlink_to(__file__), "picture-unusable"),
        (lambda f: f.rename(f.with_name("gone")), "cannot-read"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, damage: Any, code: str) -> None:
    folder = write(tmp_path / "site")
    damage(folder)
    error = refused(lambda: read_site(spec_of(), folder, 0))
    assert error.code == code
    assert str(error).startswith(f"{folder}: ")
    assert not any(name in error.public_message for name in ("1.png", "b.bmp", str(tmp_path)))


def test_a_picture_that_unpacks_to_too_many_pixels_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "cat" / "1.png", np.zeros((90, 90), np.uint8))
    for limit in (5000, 3000):  # Pillow warns beyond one limit, and raises beyond its double
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert fault(lambda: first(tmp_path, resize=True))[0] == "too-large"


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("dog/1.png,dog", ("picture-damaged", "image", 3)),
        ("dog/1.png,bird", ("level-unknown", "animal", 3)),
        ("../x.png,dog", ("cell", "image", 3)),
    ],
)
def test_a_bad_row_is_named_with_its_file(tmp_path: Path, row: str, found: Fault) -> None:
    write(tmp_path)
    cut(tmp_path / "dog" / "1.png")
    (tmp_path / "all.csv").write_text(f"image,animal\ncat/a.TIF,cat\n{row}\n")
    assert fault(lambda: read_samples(spec_of(**TABLE), tmp_path / "all.csv")) == found


def test_pictures_without_a_class_are_for_predictions(tmp_path: Path) -> None:
    save(tmp_path / "1.png")
    found = read_samples(spec_of(), tmp_path, beside=())
    assert (found.keys, found.labels) == (("1.png",), None)
    (tmp_path / "1.png").unlink()
    assert fault(lambda: read_samples(spec_of(), tmp_path, beside=()))[0] == "no-pictures"


def test_without_pillow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert fault(lambda: read_samples(spec_of(), write(tmp_path))) == ("not-installed", "data.reader", None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"values": []}, "data"),
        ({"group": "family"}, "data"),
        ({"file": "../all.csv"}, "data.file"),
        ({"size": [4]}, "data.size[1]"),
        ({"label": ["a", "b"]}, "data"),
    ],
)
def test_nonsense_in_the_schema_is_named(changes: dict[str, Any], field: str) -> None:
    assert fault(lambda: spec_of(**changes))[1] == field
