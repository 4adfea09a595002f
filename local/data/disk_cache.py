"""Prepared samples on disk, in one file of the site's: reading them takes no unpacking, and no address space."""

from __future__ import annotations

import hashlib
import math
import os
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rankdad.common.errors import UserError
from rankdad.local.data.reading import Array

FILE = "samples.cache"  # in the folder of a site's results
HEAD = 64  # bytes before a record's numbers: a digest of what they are made of, and their checksum
NOT_ELSEWHERE = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)  # what a link leads to is not cut off
PIECE = 1 << 26  # bytes after which what is written goes to the disk: it is memory until then


class DiskCache:
    """Records of one size in a file, a sample each; what is torn or damaged does not count.

    It is read and not mapped: a file that somebody shortens would end the process, and a limit on the address space
    would count it. The processes that share a site write the same records.

    Args:
        folder: of the file, which is made or taken over.
        made_of: a digest of what each sample is made of, for as many as there is room for; see `digest`.
        shape: of each.
        dtype: of each.

    Raises:
        UserError: the file cannot be written, or the disk has too little room.
    """

    def __init__(
        self, folder: Path, made_of: Sequence[bytes], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> None:
        self._path, self._made_of, self._shape, self._dtype = folder / FILE, made_of, shape, dtype
        self._record = HEAD + math.prod(shape) * dtype.itemsize
        self._unwritten, self._size = 0, len(made_of) * self._record
        size = self._size
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | NOT_ELSEWHERE, 0o600)
            weakref.finalize(self, os.close, self._file)
            if hasattr(os, "fchmod"):
                os.fchmod(self._file, 0o600)  # one that was there, too: it holds patients' samples
            if os.fstat(self._file).st_size != size:
                os.ftruncate(self._file, size)
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, size)  # a full disk is told before hours of reading
        except OSError as error:
            raise self._unusable(error) from None

    def get(self, row: int) -> Array | None:
        """Return a sample; None where there is no whole record of it that is made of the same."""
        if row >= len(self._made_of):
            return None
        head, found = bytearray(HEAD), np.empty(self._shape, self._dtype)
        parts = [memoryview(head), found.reshape(-1).view(np.uint8).data]
        try:
            if os.preadv(self._file, parts, row * self._record) != self._record:
                return None
        except OSError:  # a broken disk: the sample's own file is there
            return None
        return found if head == _head(self._made_of[row], found) else None

    def put(self, row: int, sample: Array) -> None:
        """Keep a sample, if there is room for it.

        Raises:
            UserError: it cannot be written.
        """
        if row >= len(self._made_of):
            return
        whole = np.ascontiguousarray(sample, self._dtype).reshape(-1)
        parts = [memoryview(_head(self._made_of[row], whole)), whole.view(np.uint8).data]
        try:
            written = os.pwritev(self._file, parts, row * self._record)
            self._unwritten += written
            if self._unwritten >= PIECE:
                os.fsync(self._file)
                self._unwritten = 0
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> UserError:
        return UserError(
            f"loading.disk_mib: {self._path} of {self._size / 2**20:,.0f} MiB cannot be written: "
            f"{error.strerror or error}: make room, or set a smaller size, or 0 for none",
            code="cannot-write",
            field="loading.disk_mib",
        )


def checksum(sample: Array) -> int:
    """Return what tells a sample's bytes from others."""
    return zlib.crc32(np.ascontiguousarray(sample).reshape(-1).view(np.uint8).data)


def digest(*made_of: object) -> bytes:
    """Return a digest of 32 bytes of what a sample is made of."""
    return hashlib.sha256(repr(made_of).encode()).digest()


def _head(made_of: bytes, sample: Array) -> bytes:
    return (made_of + checksum(sample).to_bytes(4, "little")).ljust(HEAD, b"\0")
