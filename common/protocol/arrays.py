"""Encodes numbers in messages as raw little-endian bytes, much smaller than lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankdad.common.metrics.tally_codec import MAX_SUM
from rankdad.common.tensors import raw_bytes


def numbers_in(data: bytes, dtype: torch.dtype, *shape: int) -> Tensor:
    """Decode numbers from bytes.

    Raises:
        ValueError: the size is wrong.
    """
    size = dtype.itemsize * math.prod(shape)
    if len(data) != size:
        raise ValueError(f"got {len(data)} bytes, expected {size}")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def pack_counts(rows: Sequence[Sequence[int]]) -> bytes:
    """Encode whole numbers [rows, columns] as uint32."""
    return np.asarray(rows, dtype="<u4").tobytes()


def unpack_counts(data: bytes, rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Decode whole numbers [rows, columns].

    Raises:
        ValueError: the size is wrong.
    """
    if len(data) != 4 * rows * columns:
        raise ValueError(f"got {len(data)} bytes, expected {4 * rows * columns}")
    numbers: list[list[int]] = np.frombuffer(data, dtype="<u4").reshape(rows, columns).tolist()
    return tuple(map(tuple, numbers))


def pack_sums(sums: Tensor) -> bytes:
    """Encode float64 numbers."""
    return raw_bytes(sums.double())


def unpack_sums(data: bytes, rows: int, columns: int) -> Tensor:
    """Decode float64 numbers [rows, columns].

    Raises:
        ValueError: the size is wrong, or a number is NaN or too large for a total.
    """
    sums = numbers_in(data, torch.float64, rows, columns)
    if not bool((sums.abs() <= MAX_SUM).all()):
        raise ValueError(f"a number is NaN or beyond {MAX_SUM:g}")
    return sums


@dataclass(frozen=True)
class BufferSlot:
    """One buffer of the model: its name, dtype (as torch names it) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype.itemsize * math.prod(self.shape)


def pack_buffers(buffers: Mapping[str, Tensor]) -> bytes:
    """Encode a model's buffers in order, each in its own dtype."""
    return b"".join(map(raw_bytes, buffers.values()))


def unpack_buffers(data: bytes, slots: Sequence[BufferSlot]) -> dict[str, Tensor]:
    """Decode a model's buffers by name. They may be infinite, as in an attention mask.

    Raises:
        ValueError: the size is wrong.
    """
    expected = sum(slot.size for slot in slots)
    if len(data) != expected:
        raise ValueError(f"got {len(data)} bytes, expected {expected}")
    buffers: dict[str, Tensor] = {}
    at = 0
    for slot in slots:
        part, at = data[at : at + slot.size], at + slot.size
        buffers[slot.name] = numbers_in(part, getattr(torch, slot.dtype), *slot.shape)
    return buffers
