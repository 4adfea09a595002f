"""A site of one process: what several ranks share, it has by itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.lowrank.routes import Payload
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec


class Alone:
    """The one process of a site; `local.ranks.sharing` has what several do in its place.

    Attributes:
        rank: of this process.
        size: how many there are.
    """

    rank, size = 0, 1

    def together(self) -> AbstractContextManager[None]:
        """Return a context for what all ranks do together, which says which rank it was if one could not go on."""
        return nullcontext()

    def share(self, message: bytes | None = None, *, patiently: bool = False) -> bytes | None:
        """Return rank 0's message at all ranks; none is None.

        Args:
            message: of rank 0; what the others hand in is ignored.
            patiently: whether they may come to this minutes apart.
        """
        return message

    def replica(self, spec: RunSpec, plan: Plan, data: SiteData, replica: Replica) -> Replica:
        """Return the replica that all ranks have, or have rows of, if they have the same run, data and model."""
        return replica

    def pooled(self, payload: Payload, loss: float) -> tuple[Payload, float]:
        """Return the gradients of the whole batch and its loss.

        Args:
            payload: of this rank's part, in the plan's order: its share of the gradients of the batch's mean loss.
            loss: its share of that loss.
        """
        return payload, loss

    def gathered(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the rows of all ranks, in their order, and where this rank's begin; their numbers may differ."""
        return rows, 0
