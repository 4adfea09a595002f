"""Digests of samples, as `common.run.replica.weights_sha256` makes them of tensors; inputs need not fit in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rankdad.common.preparation import Inputs
from rankdad.common.preparation.moments import blocks

INPUTS = "inputs"


def digests(inputs: Inputs, sets: Sequence[Tensor], beside: Sequence[Mapping[str, Tensor]]) -> tuple[str, ...]:
    """Return the sha256 of each set of samples: names, dtypes, shapes and raw bytes of its tensors, in order of name.

    Args:
        inputs: of all samples, read once.
        sets: rows of the samples, each ascending, int64.
        beside: tensors of each set that are not its inputs, by name.
    """
    made = [hashlib.sha256() for _ in sets]
    for digest, rows, tensors in zip(made, sets, beside, strict=True):
        for name in sorted(name for name in tensors if name < INPUTS):
            _add(digest, name, tensors[name])
        digest.update(f"{INPUTS} {inputs.dtype} {(len(rows), *inputs.shape[1:])};".encode())
    begin = 0
    for block in blocks(inputs):
        for digest, rows in zip(made, sets, strict=True):
            first, last = torch.searchsorted(rows, torch.tensor([begin, begin + len(block)])).tolist()
            digest.update(_bytes(block[rows[first:last] - begin]))
        begin += len(block)
    for digest, tensors in zip(made, beside, strict=True):
        for name in sorted(name for name in tensors if name > INPUTS):
            _add(digest, name, tensors[name])
    return tuple(digest.hexdigest() for digest in made)


def _add(digest: hashlib._Hash, name: str, value: Tensor) -> None:
    digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
    digest.update(_bytes(value))


def _bytes(value: Tensor) -> memoryview:
    found: memoryview = value.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return found
