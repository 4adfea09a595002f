"""Reads volumes in NIfTI files, listed by a table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rankdad.common.data.formats import opened
from rankdad.common.data.listed import read_listed
from rankdad.common.data.reading import Array, Reading
from rankdad.common.errors import DataError, UserError
from rankdad.common.spec.images import NiftiData

ENDINGS = (".nii", ".nii.gz")
HEADERS = {348: "Nifti1Header", 540: "Nifti2Header"}  # by their size in bytes, the first field


def read_nifti(path: Path, data: NiftiData, dtype: str, *, beside: Sequence[str] | None) -> Reading:
    """Read the volumes that a table lists.

    Args:
        path: of the table.
        data: the schema.
        dtype: of the inputs, such as "float32".
        beside: columns to copy next to predictions; None to read for training.

    Raises:
        UserError: nibabel is not installed.
        DataError: data cannot be used; names the table's row, and the file.
    """
    try:
        import nibabel  # noqa: F401
    except ImportError:
        raise UserError(
            "data.reader: nifti needs nibabel, which is not installed: pip install 'rankdad[nifti]'",
            code="not-installed",
            field="data.reader",
        ) from None
    return read_listed(path, data, dtype, lambda file: _volume(file, data, dtype), beside=beside)


def _volume(file: Path, data: NiftiData, dtype: str) -> Array:
    """Return a file's voxels in the schema's shape, scaled as in the header."""
    if not file.name.lower().endswith(ENDINGS):
        raise DataError(
            file,
            f"has another name than NIfTI files, expected one that ends in {' or '.join(ENDINGS)}",
            code="format-unexpected",
        )
    expected = (*data.shape[-3:], *data.shape[:-3])  # in a file, channels are the last axis
    try:
        with np.errstate(all="ignore"), opened(file) as stream:  # overflows are reported below
            voxels = _voxels(file, stream, expected, data.orientation, dtype)
    except DataError:
        raise
    except Exception as error:  # nibabel raises many kinds of errors for damaged bytes
        words = " ".join(str(error).split())
        raise DataError(file, f"is truncated, damaged or no NIfTI file: {words!r}", code="volume-damaged") from None
    bad = voxels.size - int(np.isfinite(voxels).sum())
    if bad:
        raise DataError(file, f"holds NaN or infinity in {bad} of {voxels.size} voxels", code="not-finite")
    if data.normalise == "volume":
        mean, spread = float(voxels.mean(dtype=np.float64)), float(voxels.std(dtype=np.float64))
        if not spread:
            raise DataError(file, "holds the same number in all voxels, which cannot be normalised", code="constant")
        voxels = (voxels - mean) / spread
    return voxels.reshape(expected) if len(data.shape) == 3 else np.moveaxis(voxels.reshape(expected), -1, 0)


def _voxels(file: Path, stream: IO[bytes], expected: tuple[int, ...], orientation: str, dtype: str) -> Array:
    """Return the voxels of an open file, in the schema's orientation; header extensions are not read."""
    import nibabel
    from nibabel.arrayproxy import ArrayProxy
    from nibabel.orientations import apply_orientation

    head = stream.read(max(HEADERS))
    sizes = {order: int.from_bytes(head[:4], order) for order in ("little", "big")}
    order = next((order for order, size in sizes.items() if size in HEADERS), None)
    if order is None:
        raise ValueError("it does not begin like one")
    size = sizes[order]
    header = getattr(nibabel, HEADERS[size])(head[:size], order, check=False)
    silent = logging.Logger("nibabel")  # its warnings would not name the file
    silent.disabled = True
    header.check_fix(logger=silent)
    kind, axes = header.get_data_dtype(), tuple(map(int, header.get_data_shape()))
    if kind.kind not in "biuf":
        raise DataError(file, f"holds {kind}, expected one number a voxel", code="voxels-not-numbers")
    turns, turned = None, axes
    if orientation == "canonical":
        turns = _turns(file, header)
        three, order = (*axes, 1, 1)[:3], turns[:, 0].argsort().tolist()
        turned = (*(three[old] for old in order), *axes[3:])
    if _plain(turned) != _plain(expected):  # checked before the voxels are read
        how = " from left to right, back to front and below upwards" * (turned != axes)
        problem = f"has shape {list(turned)}{how}, expected {list(expected)}"
        raise DataError(file, problem, code="shape-mismatch", field="data.shape")
    slope = float(header["scl_slope"])
    if np.isinf(slope):  # nibabel treats NaN, which some programs write, as no scaling
        raise DataError(file, f"is scaled by {slope} (scl_slope), expected a finite number", code="not-finite")
    voxels: Array = np.asanyarray(ArrayProxy(stream, header, mmap=False), np.dtype(dtype))
    while stream.read(1 << 20):  # to the end, for gzip's checksum
        pass
    if turns is not None:
        voxels = apply_orientation(voxels.reshape(*(*axes, 1, 1)[:3], -1), turns)
    return voxels


def _turns(file: Path, header: Any) -> Array:
    """Return the target of each of a file's three axes, and whether it is flipped, for canonical orientation.

    Raises:
        DataError: its header does not define an orientation, or two different ones.
    """
    from nibabel.orientations import io_orientation

    codes = {name: int(header[f"{name}_code"]) for name in ("sform", "qform")}
    forms = {name: getattr(header, f"get_{name}")() for name, code in codes.items() if code > 0}
    instead = 'mend its header, or set data.orientation to "stored" for all sites'
    if not forms:
        problem = f"does not say how it is oriented (sform_code and qform_code are 0): {instead}"
        raise DataError(file, problem, code="orientation-unknown", field="data.orientation")
    found = {name: io_orientation(form) if np.isfinite(form).all() else np.full((3, 2), np.nan)
             for name, form in forms.items()}  # fmt: skip
    for name, turns in found.items():
        if not np.isfinite(turns).all():
            problem = f"does not give the orientation of every axis ({name}): {instead}"
            raise DataError(file, problem, code="orientation-unknown", field="data.orientation")
    first, *others = found.values()
    if not all(np.array_equal(first, other) for other in others):
        problem = f"is oriented in one way by its sform, in another by its qform: {instead}"
        raise DataError(file, problem, code="orientation-contradicts", field="data.orientation")
    return np.asarray(first)


def _plain(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without trailing axes of length 1, which files may omit."""
    return (*axes, 1, 1)[:3] + tuple(length for length in axes[3:] if length != 1)
