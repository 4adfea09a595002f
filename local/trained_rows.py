"""Digests of the rows that a model was trained on, kept at the site to warn about predictions of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from rankdad.common.data import SiteData
from rankdad.common.data.reading import Array
from rankdad.common.files import cannot_write, open_private
from rankdad.common.preparation import Inputs
from rankdad.common.preparation.moments import blocks

FILE = "training-rows.npy"  # in the folder of a site's results


def digests(inputs: Inputs) -> Array:
    """Return a digest of each sample's inputs, int64 [samples]."""
    each = (row.contiguous().numpy().tobytes() for block in blocks(inputs) for row in block)
    rows = [hashlib.blake2b(row, digest_size=8).digest() for row in each]
    return np.frombuffer(b"".join(rows), np.int64)


def write_trained_rows(folder: Path, data: SiteData) -> None:
    """Write the digests of the final model's training rows, including validation, which chose its weights.

    Raises:
        UserError: the disk is full or broken.
    """
    split = data.splits[-1]
    seen = np.concatenate([split.train.numpy(), split.validation.numpy()])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_private(folder / FILE) as file:
            own = digests(data.samples.inputs[torch.from_numpy(seen)]) if data.as_read is None else data.as_read[seen]
            np.save(file, np.sort(own))
    except OSError as error:
        raise cannot_write(folder / FILE, error) from None


def seen_rows(path: Path, inputs: Inputs) -> int:
    """Return how many samples a model was trained on, according to the folder with the model.

    Args:
        path: a site's output, a run's directory with its simulated sites, or something in either.
        inputs: as read.
    """
    near = ([*folder.glob(FILE), *folder.glob(f"sites/*/{FILE}")] for folder in (path, *path.parents[:2]))
    known: list[Array] = []
    for file in next(filter(None, near), []):
        if not file.is_file():
            continue
        try:
            known.append(np.load(file, allow_pickle=False))
        except (OSError, ValueError):
            continue  # this only serves a warning
    return int(np.isin(digests(inputs), np.concatenate(known)).sum()) if known and len(inputs) else 0
