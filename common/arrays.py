"""Numbers inside control messages, as raw bytes: as a list they would take many times their size when they come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

LARGEST_SUM = 1e300  # of one site: a thousand sites' add up to a finite number


def pack_counts(rows: Sequence[Sequence[int]]) -> bytes:
    """Return whole numbers [rows, columns] as uint32."""
    return np.asarray(rows, dtype="<u4").tobytes()


def unpack_counts(data: bytes, rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Return whole numbers [rows, columns].

    Raises:
        ValueError: the size is wrong.
    """
    if len(data) != 4 * rows * columns:
        raise ValueError(f"got {len(data)} bytes, expected {4 * rows * columns}")
    numbers: list[list[int]] = np.frombuffer(data, dtype="<u4").reshape(rows, columns).tolist()
    return tuple(map(tuple, numbers))


def pack_sums(sums: Tensor) -> bytes:
    """Return float64 numbers as bytes."""
    return sums.detach().cpu().double().contiguous().numpy().tobytes()


def unpack_sums(data: bytes, rows: int, columns: int) -> Tensor:
    """Return float64 numbers [rows, columns].

    Raises:
        ValueError: the size is wrong, or a number is NaN or too large to be added up.
    """
    if len(data) != 8 * rows * columns:
        raise ValueError(f"got {len(data)} bytes, expected {8 * rows * columns}")
    sums = torch.frombuffer(bytearray(data), dtype=torch.float64).reshape(rows, columns)
    if not bool((sums.abs() <= LARGEST_SUM).all()):
        raise ValueError(f"a number is NaN or beyond {LARGEST_SUM:g}")
    return sums
