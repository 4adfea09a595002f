"""Sparse matrices: the largest entries of every chunk, and the encoding of their positions. Pure functions.

A matrix's numbers, row after row, are cut into as few chunks of at most 4096 as possible, of equal size within one
number, larger ones first. The same number of entries of each is kept, so that the plan knows a payload's size. Among
equal magnitudes the first one is kept.

Positions within a chunk are sorted and encoded as by Elias (1974) and Fano (1971), in about two bits more than the
logarithm of the distance between two: the low bits of all positions, then a bitmap whose i-th 1 is at i plus the i-th
position's high bits. The bits of all chunks follow one another, starting in a byte's lowest bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.lowrank.wire import as_received, wire_bytes

CHUNK = 4096  # as in SparseLoCo, arXiv 2508.15706


@dataclass(frozen=True)
class Entries:
    """The number of entries of a matrix to send.

    Args:
        numbers: of the matrix.
        chunks: of the matrix.
        kept: entries of each chunk.
    """

    numbers: int
    chunks: int
    kept: int

    @property
    def size(self) -> int:
        """Size of the largest chunk."""
        return math.ceil(self.numbers / self.chunks)

    @property
    def full(self) -> int:
        """Number of chunks of that size; the others have one number less."""
        return self.chunks - (self.chunks * self.size - self.numbers)

    @property
    def count(self) -> int:
        """Entries of the matrix."""
        return self.chunks * self.kept

    @property
    def low_bits(self) -> int:
        """Bits of a position that are sent directly."""
        return (self.size // self.kept).bit_length() - 1

    @property
    def high_bits(self) -> int:
        """Bits of a chunk's bitmap."""
        return self.kept + ((self.size - 1) >> self.low_bits)

    @property
    def place_bytes(self) -> int:
        """Size of all positions on the wire, in bytes."""
        return math.ceil(self.chunks * (self.kept * self.low_bits + self.high_bits) / 8)

    def payload_bytes(self, wire: str) -> int:
        """Return the size of values and positions on the wire, in bytes."""
        return wire_bytes(wire, 1, self.count) + self.place_bytes


def entries_of(shape: tuple[int, int], density: float) -> Entries:
    """Return the number of entries to send: this fraction of every chunk, at least one."""
    numbers = math.prod(shape)
    chunks = math.ceil(numbers / CHUNK)
    return Entries(numbers, chunks, max(1, round(density * numbers / chunks)))


def largest(matrix: Tensor, entries: Entries) -> tuple[Tensor, Tensor]:
    """Return the values of the largest entries, [1, chunks · kept], and their sorted positions, int64 [chunks, kept].

    Args:
        matrix: finite numbers.
        entries: to select.
    """
    cut = _cut(matrix, entries)
    sizes = _cut(matrix.abs(), entries, beyond=-1.0)  # excludes positions beyond the matrix's end
    least = sizes.topk(entries.kept, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    chosen, equal = sizes > least, sizes == least
    chosen |= equal & (equal.cumsum(dim=1) <= entries.kept - chosen.sum(dim=1, keepdim=True))
    places = chosen.nonzero()[:, 1].view(entries.chunks, entries.kept)
    return cut.gather(1, places).view(1, -1), places


def placed(values: Tensor, places: Tensor, entries: Entries, shape: tuple[int, int]) -> Tensor:
    """Return the matrix with these values at these positions, and zeros elsewhere."""
    cut = values.new_zeros(entries.chunks, entries.size)
    cut.scatter_(1, places.to(values.device), values.view_as(places))
    return torch.cat([cut[: entries.full].flatten(), cut[entries.full :, : entries.size - 1].flatten()]).view(shape)


def sparse(matrix: Tensor, entries: Entries, wire: str) -> tuple[Tensor, Tensor]:
    """Return a matrix's largest entries with zeros elsewhere, before and after the wire."""
    values, places = largest(matrix, entries)
    shape = matrix.shape[0], matrix.shape[1]
    return placed(values, places, entries, shape), placed(as_received([values], wire)[0], places, entries, shape)


def encode_places(places: Tensor, entries: Entries) -> Tensor:
    """Return the bytes of positions [chunks, kept], as a uint8 tensor on the CPU."""
    places = places.cpu()
    low = (places.unsqueeze(-1) >> torch.arange(entries.low_bits)) & 1
    high = torch.zeros(entries.chunks, entries.high_bits, dtype=torch.int64)
    high.scatter_(1, (places >> entries.low_bits) + torch.arange(entries.kept), 1)
    bits = torch.cat([low.flatten(1), high], dim=1)
    return torch.from_numpy(np.packbits(bits.numpy().astype(bool), bitorder="little"))


def decode_places(data: bytes, entries: Entries) -> Tensor:
    """Return sorted positions from bytes, int64 [chunks, kept].

    Raises:
        ValueError: they are invalid for this matrix; says why.
    """
    split, width = entries.kept * entries.low_bits, entries.kept * entries.low_bits + entries.high_bits
    flat = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if flat[entries.chunks * width :].any():
        raise ValueError("bits after the last")
    bits = torch.from_numpy(flat[: entries.chunks * width].reshape(entries.chunks, width))
    for chunk, found in enumerate(bits[:, split:].sum(dim=1).tolist()):
        if found != entries.kept:
            raise ValueError(f"{found} in chunk {chunk + 1}, expected {entries.kept}")
    high = bits[:, split:].nonzero()[:, 1].view(entries.chunks, entries.kept) - torch.arange(entries.kept)
    low = bits[:, :split].view(entries.chunks, entries.kept, entries.low_bits).long() << torch.arange(entries.low_bits)
    places = (high << entries.low_bits) + low.sum(dim=2)
    if bool((places[:, 1:] <= places[:, :-1]).any()):
        raise ValueError("repeated or unsorted ones, expected each once, from the first to the last")
    sizes = torch.full((entries.chunks,), entries.size - 1)
    sizes[: entries.full] += 1
    if bool((places[:, -1] >= sizes).any()):
        raise ValueError("one beyond its chunk's end")
    return places


def _cut(matrix: Tensor, entries: Entries, beyond: float = 0.0) -> Tensor:
    """Return the chunks of a matrix, [chunks, size], with padding of the smaller ones."""
    flat, at = matrix.reshape(-1), entries.full * entries.size
    shorter = flat[at:].view(entries.chunks - entries.full, entries.size - 1)
    return torch.cat([flat[:at].view(entries.full, entries.size), F.pad(shorter, (0, 1), value=beyond)])
