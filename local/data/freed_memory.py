"""Memory that has been freed goes back to the system, where large arrays come and go for hours."""

from __future__ import annotations

import ctypes

LARGE = 1 << 20  # bytes of an array that is mapped by itself
M_MMAP_THRESHOLD = -3  # glibc's malloc.h


def give_back_what_is_freed() -> None:
    """Have the C library map each large array by itself from now on, so that it is gone when it is freed.

    glibc raises this bound up to 32 MiB by itself, and keeps arrays below it in a heap. There small objects that stay
    come to lie between them, and it finds no room for the next: preparing 1.2 GiB of volumes left 1.5 GiB behind, of
    which nothing was in use. Other C libraries do not know the call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
