"""Samples with a file each, read when they are used, with a cache of limited size."""

from __future__ import annotations

import math
import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rankdad.common.data.formats import check_fits
from rankdad.common.data.reading import Array
from rankdad.common.errors import DataError
from rankdad.common.loading import Loading


class Cache:
    """Memory for the first samples of a source; each is kept when it has been read.

    Processes that are forked later share it. The cached samples do not change, because an epoch uses each once.

    Args:
        slots: number of samples.
        shape: of each.
        dtype: of each.
    """

    def __init__(self, slots: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        size = slots * math.prod(shape) * dtype.itemsize
        # Anonymous shared memory: not limited by a container's small /dev/shm, and allocated when it is used.
        self._kept = np.frombuffer(mmap.mmap(-1, max(1, size)), dtype, size // dtype.itemsize).reshape(slots, *shape)
        self._known = np.frombuffer(mmap.mmap(-1, max(1, slots)), np.uint8, slots)

    def get(self, row: int) -> Array | None:
        """Return a cached sample, or None."""
        return self._kept[row] if row < len(self._known) and self._known[row] else None

    def put(self, row: int, sample: Array) -> None:
        """Cache a sample if there is room."""
        if row < len(self._known):
            self._kept[row] = sample
            self._known[row] = 1


@dataclass(frozen=True, eq=False)
class FileSamples:
    """Inputs [samples, *shape], each read when it is used.

    Args:
        source: of the list of samples, for errors.
        read: returns a sample by its position; raises a DataError that names its file.
        shape: [samples, *shape].
        dtype: of the inputs.
        fault: returns an error that names a sample's file, given the problem.
        cache: of read samples; None for no cache.
        checksums: of the samples when they were first read, uint32 [samples]; None if not all have been read.
    """

    source: str | Path
    read: Callable[[int], Array]
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fault: Callable[[int, str], DataError]
    cache: Cache | None = None
    checksums: Array | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Array:
        found = None if self.cache is None else self.cache.get(row)
        if found is None:
            found = self._from_its_file(row)
            if self.cache is not None:
                self.cache.put(row, found)
        return found

    def _from_its_file(self, row: int) -> Array:
        """Return a sample; once all have been read, one that is another or cannot be read is worth waiting for."""
        if self.checksums is None:
            return self._read(row)
        try:
            found = self._read(row)
        except DataError as error:
            fault = error
        else:
            if _checksum(found) == self.checksums[row]:
                return found
            fault = self.fault(row, "has changed")
        problem = f"{fault.problem}: restore it as it was when training began"
        raise DataError(fault.path, problem, code="sample-changed", field=fault.field, row=fault.row)

    def _read(self, row: int) -> Array:
        return np.array(self.read(row), self.dtype, order="C")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        """Return all samples as one array."""
        return np.stack(list(self))

    def take(self, rows: Sequence[int]) -> FileSamples:
        """Return some of the samples, with their cache."""
        return replace(
            self,
            read=lambda place: self[rows[place]],
            shape=(len(rows), *self.shape[1:]),
            fault=lambda place, problem: self.fault(rows[place], problem),
            cache=None,
            checksums=None if self.checksums is None else self.checksums[list(rows)],
        )

    @property
    def sample_bytes(self) -> int:
        """Memory of one sample, in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def cached(self, loading: Loading) -> FileSamples:
        """Return the samples with a cache in memory.

        Raises:
            DataError: the cache does not fit into memory.
        """
        slots = min(len(self), loading.cache_bytes // max(1, self.sample_bytes))
        what = f"a cache of {slots} samples (loading.cache_mib)"
        check_fits(self.source, what, (slots + 1) * self.sample_bytes)
        return replace(self, cache=Cache(slots, self.shape[1:], self.dtype))

    def checked(self, loading: Loading) -> FileSamples:
        """Return the samples with a cache after reading each once, so that errors come before training.

        Raises:
            DataError: a sample cannot be used, or the cache does not fit into memory.
        """
        found, checksums = self.cached(loading), np.zeros(len(self), np.uint32)
        for row in range(len(self)):
            checksums[row] = _checksum(found[row])
        return replace(found, checksums=checksums)


def _checksum(sample: Array) -> int:
    """Return a checksum of a sample's bytes."""
    return zlib.crc32(np.ascontiguousarray(sample).reshape(-1).view(np.uint8).data)


def joined(parts: list[FileSamples]) -> FileSamples:
    """Concatenate the samples of several sources; each keeps its cache."""
    places = [(part, row) for part in parts for row in range(len(part))]

    def read(place: int) -> Array:
        part, row = places[place]
        return part[row]

    def fault(place: int, problem: str) -> DataError:
        part, row = places[place]
        return part.fault(row, problem)

    first = parts[0]
    return FileSamples(first.source, read, (len(places), *first.shape[1:]), first.dtype, fault)
