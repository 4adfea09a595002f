"""Workers and memory for samples with a file each; part of a site's configuration, not of the spec."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rankdad.common.available_memory import available
from rankdad.common.documents import Part

MOST = 1 << 30  # bytes: default limit of the cache


class Loading(Part):
    """How volumes and pictures are read, in batches of any number. It does not affect the weights."""

    cache_mib: Annotated[int, Field(ge=0, le=1 << 30)] | None = None
    """Memory for samples that have been read, in MiB: as many as fit are read once, the others in each epoch; null is
    1024, or a quarter of the memory there is if that is less."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that read ahead while a batch is trained on; 0 reads in between."""
    prefetch: Annotated[int, Field(ge=1, le=1000)] = 2
    """Batches that each of them holds ready."""

    @property
    def cache_bytes(self) -> int:
        """Size of the cache in memory, in bytes."""
        if self.cache_mib is not None:
            return self.cache_mib << 20
        there = available()
        return MOST if there is None else min(MOST, there // 4)
