"""Which rows a model was trained on, as digests that stay at the site: predictions of them are no test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from rankdad.common.errors import UserError
from rankdad.common.preparation.moments import blocks
from rankdad.local.data import SiteData
from rankdad.local.data.file_samples import FileSamples
from rankdad.local.data.reading import Array

FILE = "training-rows.npy"  # in the folder of a site's results


def digests(inputs: Iterable[Array]) -> Array:
    """Return a digest of each sample's inputs, int64 [samples]."""
    rows = [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest() for row in inputs]
    return np.frombuffer(b"".join(rows), np.int64)


def write_trained_rows(folder: Path, data: SiteData) -> None:
    """Write down which rows the model that is kept was trained on, validation included: it chose the weights.

    Raises:
        UserError: the disk is full or broken.
    """
    split = data.splits[-1]
    seen = np.concatenate([split.train.numpy(), split.validation.numpy()])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        inputs = (row.numpy() for block in blocks(data.samples.inputs[torch.from_numpy(seen)]) for row in block)
        np.save(folder / FILE, np.sort(digests(inputs)))
    except OSError as error:
        raise UserError(f"{folder / FILE}: cannot be written: {error.strerror or error}") from None


def seen_rows(path: Path, inputs: Array | FileSamples) -> int:
    """Return how many samples a model was trained on, as far as the folder that it lies in knows.

    Args:
        path: a site's output, a run's directory with its simulated sites, or something in either.
        inputs: as they were read.
    """
    near = ([*folder.glob(FILE), *folder.glob(f"sites/*/{FILE}")] for folder in (path, *path.parents[:2]))
    known: list[Array] = []
    for file in next(filter(None, near), []):
        try:
            known.append(np.load(file, allow_pickle=False))
        except (OSError, ValueError):
            continue  # it only serves a warning
    return int(np.isin(digests(inputs), np.concatenate(known)).sum()) if known and len(inputs) else 0
