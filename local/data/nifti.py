"""Volumes in NIfTI files, and a table that lists them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rankdad.common.errors import DataError, UserError
from rankdad.common.spec.images import NiftiData
from rankdad.local.data.listed import read_listed
from rankdad.local.data.reading import Array, Reading

ENDINGS = (".nii", ".nii.gz")


def read_nifti(path: Path, data: NiftiData, dtype: str, *, beside: Sequence[str] | None) -> Reading:
    """Read the volumes that a table lists.

    Args:
        path: of the table.
        data: the schema.
        dtype: of the inputs, such as "float32".
        beside: columns that predictions are to stand beside; None where the samples are to be trained on.

    Raises:
        UserError: nibabel is not installed.
        DataError: naming the table's row, and the file, of what cannot be used.
    """
    try:
        import nibabel  # noqa: F401
    except ImportError:
        raise UserError(
            "data.reader: nifti needs nibabel, which is not installed: pip install 'rankdad[nifti]'"
        ) from None
    return read_listed(path, data, dtype, lambda file: _volume(file, data, dtype), beside=beside)


def _volume(file: Path, data: NiftiData, dtype: str) -> Array:
    """Return a file's voxels in the schema's shape, scaled once, as the header says."""
    import nibabel

    if not file.name.lower().endswith(ENDINGS):
        raise DataError(file, f"has another name than NIfTI files, expected one that ends in {' or '.join(ENDINGS)}")
    try:
        with np.errstate(all="ignore"):  # what does not fit into the dtype is told below
            image = nibabel.load(file, mmap=False)
            if not isinstance(image, nibabel.Nifti1Image):
                raise DataError(file, "is no NIfTI file")
            kind, axes = image.get_data_dtype(), tuple(map(int, image.shape))
            if kind.kind not in "biuf":
                raise DataError(file, f"holds {kind}, expected one number a voxel")
            expected = (*data.shape[-3:], *data.shape[:-3])  # a file's channels are its last axis
            if _plain(axes) != _plain(expected):  # before the voxels are read
                raise DataError(file, f"has shape {list(axes)}, expected {list(expected)}")
            voxels: Array = image.get_fdata(caching="unchanged", dtype=np.dtype(dtype).type)
    except DataError:
        raise
    except Exception as error:  # damaged bytes make nibabel raise errors of many kinds
        words = " ".join(str(error).split())
        raise DataError(file, f"is truncated, damaged or no NIfTI file: {words!r}") from None
    bad = voxels.size - int(np.isfinite(voxels).sum())
    if bad:
        raise DataError(file, f"holds NaN or infinity in {bad} of {voxels.size} voxels")
    if data.normalise == "volume":
        mean, spread = float(voxels.mean(dtype=np.float64)), float(voxels.std(dtype=np.float64))
        if not spread:
            raise DataError(file, "holds the same number in all voxels, which cannot be normalised")
        voxels = (voxels - mean) / spread
    return voxels.reshape(expected) if len(data.shape) == 3 else np.moveaxis(voxels.reshape(expected), -1, 0)


def _plain(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without what files write or leave out: axes of length 1 behind the three of space."""
    return (*axes, 1, 1)[:3] + tuple(length for length in axes[3:] if length != 1)
