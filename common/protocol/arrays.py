"""Numbers inside messages, as raw bytes, little-endian: as a list they would take many times their size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MAX_SUM = 1e300  # of one site: a thousand sites' add up to a finite number


def raw_bytes(numbers: Tensor) -> bytes:
    """Return a tensor's numbers as bytes."""
    return numbers.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def numbers_in(data: bytes, dtype: torch.dtype, *shape: int) -> Tensor:
    """Return the numbers that bytes are.

    Raises:
        ValueError: the size is wrong.
    """
    size = dtype.itemsize * math.prod(shape)
    if len(data) != size:
        raise ValueError(f"got {len(data)} bytes, expected {size}")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


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
    return raw_bytes(sums.double())


def unpack_sums(data: bytes, rows: int, columns: int) -> Tensor:
    """Return float64 numbers [rows, columns].

    Raises:
        ValueError: the size is wrong, or a number is NaN or too large to be added up.
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
    """Return a model's buffers as raw numbers, each in its own dtype, in their order."""
    return b"".join(map(raw_bytes, buffers.values()))


def unpack_buffers(data: bytes, slots: Sequence[BufferSlot]) -> dict[str, Tensor]:
    """Return a model's buffers by name. They may hold infinity, as a mask of attention does.

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
