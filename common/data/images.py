"""Reads pictures from a folder per class, or listed by a table."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankdad.common.data.listed import file_within, read_listed, samples_of_files
from rankdad.common.data.reading import Array, Reading
from rankdad.common.data.tables import nearest
from rankdad.common.errors import DataError, UserError
from rankdad.common.spec.images import ImagesData
from rankdad.common.spec.table_schema import canonical

if TYPE_CHECKING:
    import PIL.Image

ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
ORIENTATION = 0x0112  # EXIF tag
ON_ITS_SIDE = (5, 6, 7, 8)  # its values that swap height and width
TRANSPARENT = ("LA", "PA", "RGBA")  # modes


def read_images(path: Path, data: ImagesData, dtype: str, *, beside: Sequence[str] | None) -> Reading:
    """Read the pictures of a folder, or those that a table lists.

    Args:
        path: of the folder or the table.
        data: the schema.
        dtype: of the inputs, such as "float32".
        beside: columns to copy next to predictions; None to read for training.

    Raises:
        UserError: Pillow is not installed.
        DataError: data cannot be used; names the file, and the table's row.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise UserError(
            "data.reader: images needs Pillow, which is not installed: pip install 'rankdad[images]'",
            code="not-installed",
            field="data.reader",
        ) from None

    def load(file: Path) -> Array:
        return _picture(file, data)

    if data.file != ".":
        return read_listed(path, data, dtype, load, beside=beside)
    if beside:
        raise UserError(
            "--keep: pictures in a folder for each class have no columns", code="no-columns", field="--keep"
        )
    found = list(_files(path, data, beside is None))
    if not found:
        raise DataError(path, "holds no pictures", code="no-pictures")
    names = tuple(name for name, _ in found)

    def fault(row: int, problem: str) -> DataError:
        return DataError(path, f"{names[row]!r} {problem}", code="picture-unusable")

    files: list[Path] = []
    for row, name in enumerate(names):
        try:
            files.append(file_within(path, name))
        except DataError as error:
            raise fault(row, error.problem) from None
    inputs = samples_of_files(path, files, data, dtype, load, fault)
    classes = [label for _, label in found]
    labels = None if None in classes else np.array(classes, np.int64)
    return Reading(path, inputs, labels, keys=names, named_by="the names of files")


def _files(folder: Path, data: ImagesData, training: bool) -> Iterator[tuple[str, int | None]]:
    """Yield each picture's path from a folder, and its class; pictures to predict may be in the folder itself."""
    entries = _entries(folder, folder)
    folders = [entry for entry in entries if entry.is_dir()]
    loose = [entry.name for entry in entries if entry not in folders]
    if loose and (training or folders):
        raise DataError(
            folder,
            f"{loose[0]!r} is not a folder, expected a sub-folder for each of data.values",
            code="folder-expected",
            field="data.values",
        )
    yield from ((name, None) for name in loose)
    for entry in folders:
        if canonical(entry.name) not in data.values:
            hint = nearest(entry.name, data.values) or f", expected one of {', '.join(data.values[:10])}"
            raise DataError(
                folder,
                f"the sub-folder {entry.name!r} is not among data.values{hint}",
                code="class-unknown",
                field="data.values",
            )
        label = data.values.index(canonical(entry.name))
        yield from ((f"{entry.name}/{file.name}", label) for file in _entries(folder, folder / entry.name))


def _entries(folder: Path, inner: Path) -> list[os.DirEntry[str]]:
    """Return the visible entries of a folder in order of names."""
    try:
        with os.scandir(inner) as found:
            return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(
            folder, f"{inner.name!r} cannot be read: {error.strerror or error}", code="cannot-read"
        ) from None


def _picture(file: Path, data: ImagesData) -> Array:
    """Return a picture's pixels [channels, height, width] from 0 to 1, in upright orientation."""
    from PIL import Image, ImageOps

    if file.suffix.lower() not in ENDINGS:
        raise DataError(
            file, f"is no picture by its name, expected one that ends in {', '.join(ENDINGS)}", code="format-unexpected"
        )
    height, width = data.size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # As a stream: given a path, Pillow 13 maps an uncompressed TIFF, and mixes up the rows of a rotated one.
            with file.open("rb") as stream, Image.open(stream, formats=FORMATS) as image:
                if getattr(image, "is_animated", False):  # counting the frames could take long
                    raise DataError(file, "holds several pictures, expected one", code="several-pictures")
                size = image.size
                if image.format != "TIFF" and image.getexif().get(ORIENTATION) in ON_ITS_SIDE:  # Pillow turns TIFFs
                    size = size[::-1]
                if size != (width, height) and not data.resize:  # checked before the pixels are read
                    own = f"{size[1]} × {size[0]}"
                    problem = f"is {own} pixels in height and width, expected {height} × {width}: set data.resize"
                    problem += " to true to scale pictures"
                    raise DataError(file, problem, code="size-mismatch", field="data.size")
                picture = _coloured(file, ImageOps.exif_transpose(image), data.mode)
            if picture.size != (width, height):
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    except DataError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(file, f"has more than {Image.MAX_IMAGE_PIXELS} pixels", code="too-large") from None
    except Exception as error:  # Pillow raises many kinds of errors for damaged bytes
        words = " ".join(str(error).split())
        raise DataError(file, f"is truncated, damaged or no picture: {words!r}", code="picture-damaged") from None
    pixels = np.asarray(picture, np.float64)
    if picture.mode != "F":
        pixels /= 255
    return np.moveaxis(np.broadcast_to(np.atleast_3d(pixels), (*data.size, data.shape[0])), -1, 0)


def _coloured(file: Path, image: PIL.Image.Image, mode: str) -> PIL.Image.Image:
    """Return a picture with 8 bits per channel, or a 16-bit one as grey numbers from 0 to 1.

    Raises:
        DataError: it is neither grey nor RGB, also by its palette, or has transparent pixels.
    """
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) / 65535).astype(np.float32))
    if image.mode in ("I", "F"):
        raise DataError(file, "has pixels of 32 bits, expected 8 or 16", code="pixels-unknown")
    if image.mode not in ("1", "L", "P", "RGB", *TRANSPARENT):
        problem = f"has pixels in {image.mode}, expected grey or RGB: convert it where its colours are known"
        raise DataError(file, problem, code="pixels-unknown")
    if image.mode in ("P", *TRANSPARENT) or "transparency" in image.info:  # palettes cannot become grey directly
        image = image.convert("RGBA")
        least, _ = image.getchannel("A").getextrema()
        if least != 255:
            raise DataError(
                file, "is transparent in places: save it on the background that is meant", code="transparent"
            )
    return image.convert("RGB" if mode == "rgb" else "L")
