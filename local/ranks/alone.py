"""A site of one process, with the interface of several ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.lowrank.routes import Payload
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec


class Alone:
    """The only process of a site; `local.ranks.sharing` has the counterpart for several.

    Attributes:
        rank: number of this process's part of every batch.
        size: number of parts.
    """

    rank, size = 0, 1

    def together(self) -> AbstractContextManager[None]:
        """Return a context for joint work of all ranks, which names the rank that failed."""
        return nullcontext()

    def share(self, message: bytes | None = None, *, patiently: bool = False) -> bytes | None:
        """Return rank 0's message at all ranks; None stays None.

        Args:
            message: of rank 0; ignored at other ranks.
            patiently: whether ranks may arrive minutes apart.
        """
        return message

    def pause(self, saves: bool = False, stopped_by: int = 0) -> tuple[bool, int]:
        """Return at all ranks whether they save their state before a step, and the signal that stops them there.

        Args:
            saves: of rank 0; ignored at other ranks, like the next.
            stopped_by: number of the signal; 0 for none.
        """
        return saves, stopped_by

    def replica(self, spec: RunSpec, plan: Plan, data: SiteData, replica: Replica) -> Replica:
        """Return the shared replica, whole or in rows, after checking that run, data and model are equal."""
        return replica

    def checkpoints(self, folder: Path, plan: Plan, owner: str, data: SiteData) -> Checkpoints:
        """Return the site's checkpoints in a folder."""
        return Checkpoints(folder, plan, owner, data_sha256=data.sha256())

    def pooled(self, payload: Payload, loss: float) -> tuple[Payload, float]:
        """Return the gradients of the whole batch and its loss.

        Args:
            payload: of this rank's part, in the plan's order: its share of the gradients of the batch's mean loss.
            loss: its share of that loss.
        """
        return payload, loss

    def gathered(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the rows of all ranks in order, and the position of this rank's first row; numbers may differ."""
        return rows, 0
