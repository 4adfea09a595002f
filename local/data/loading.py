"""How a site reads samples of a file each: its own affair, neither hashed nor sent."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rankdad.common.documents import Part


class Loading(Part):
    """How volumes and pictures are read: batch by batch, however large they all are. No weight depends on it."""

    cache_mib: Annotated[int, Field(ge=0, le=1 << 30)] = 1024
    """Memory for samples that have been read, in MiB: as many as fit are read once, the others in each epoch."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that read ahead while a batch is trained on; 0 reads in between."""
    prefetch: Annotated[int, Field(ge=1, le=1000)] = 2
    """Batches that each of them holds ready."""
