"""The exchange of a step between ranks: gathered by all, or reduced along a tree.

**Gathering**: every rank receives the rows of all others, and adds them up in the same order. This takes one
collective, in which each of S ranks receives S - 1 messages of m bytes.

**Tree**: ranks 2i + 1 and 2i + 2 are the children of rank i. It concatenates its rows and theirs, reduces them, and
sends the result up; the root's result goes down the same way. A rank sends and receives at most 3 m, for any number of
ranks, in 2 log2 S exchanges that depend on one another. The residuals of every level's reduction enter the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rankdad.common.collectives import all_gather_equal, all_gather_rows, receive, send
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.routes import Payload
from rankdad.common.methods import Contribution, Method, MethodState
from rankdad.common.methods.base import Aggregated, SiteStep, pooled
from rankdad.distributed.agreement import reaching
from rankdad.distributed.messages import Layout, Message, Status


@dataclass(frozen=True)
class Node:
    """The work of a rank on several ranks' parts: `method.combine` or `method.aggregate`.

    Args:
        method: of the ranks.
        state: of this rank as a node; with gathering the same at all ranks.
        total: weight of all ranks.
        seed: of this node and step.
        failed: called with an error; returns the status for all ranks.
    """

    method: Method
    state: MethodState
    total: float
    seed: int
    failed: Callable[[Exception], Status]

    def combined(self, parts: Sequence[Message], *, whole: bool) -> tuple[Message, MethodState]:
        """Combine several ranks' parts; return the result and the node's new state.

        Args:
            parts: of ranks, or of subtrees.
            whole: whether these are all ranks.
        """
        status, weight = max(part.status for part in parts), sum(part.weight for part in parts)
        used = frozenset[str]().union(*(part.used for part in parts))
        if status != Status.FINE:
            return Message(status, weight), self.state
        contributions = [Contribution(part.weight, part.payload) for part in parts]
        if whole:
            payload, state = self.method.aggregate(0, contributions, self.state, self.seed)
        else:
            payload, state = self.method.combine(0, contributions, weight / self.total, self.state, self.seed)
        return Message(Status.FINE, weight, payload, used), state

    def packed(self, received: Sequence[Tensor], layout: Layout, *, whole: bool) -> tuple[Tensor, MethodState]:
        """Combine several ranks' parts into a packed message, or a packed error; return it and the node's new state."""
        parts = [layout.unpack(part) for part in received]
        try:
            combined, state = self.combined(parts, whole=whole)
            return layout.pack(combined), state
        except Exception as error:  # all ranks wait for a message
            return layout.pack(Message(self.failed(error), sum(part.weight for part in parts))), self.state


def gather(own: Tensor, layout: Layout, node: Node, group: dist.ProcessGroup | None) -> tuple[Message, MethodState]:
    """Exchange messages by gathering; return the update and the node's new state.

    Args:
        own: this rank's message, packed.
        layout: of all messages.
        node: the same at all ranks, so its result is not exchanged.
        group: the ranks.
    """
    with reaching("a step's exchange"):
        parts = all_gather_rows(own, group) if layout.size is None else all_gather_equal(own, group)
    return node.combined([layout.unpack(part) for part in parts], whole=True)


def tree(own: Tensor, layout: Layout, node: Node, group: dist.ProcessGroup | None) -> tuple[Message, MethodState]:
    """Exchange messages along a tree; arguments and results as for `gather`."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    above, below = (rank - 1) // 2, [child for child in (2 * rank + 1, 2 * rank + 2) if child < size]
    with reaching("a step's exchange"):
        parts = [own, *(_receive(layout, child, group) for child in below)]
    state, data = node.state, own
    if below:
        data, state = node.packed(parts, layout, whole=not rank)
    with reaching("a step's exchange"):
        if rank:
            _send(data, layout, above, group)
            data = _receive(layout, above, group)
        for child in below:
            _send(data, layout, child, group)
    return layout.unpack(data), state


def _send(data: Tensor, layout: Layout, to: int, group: dist.ProcessGroup | None) -> None:
    if layout.size is None:
        send(torch.tensor([len(data)]).view(torch.uint8), to, group)
    send(data, to, group)


def _receive(layout: Layout, source: int, group: dist.ProcessGroup | None) -> Tensor:
    size = layout.size
    if size is None:
        size = int(receive(torch.int64.itemsize, source, group).view(torch.int64))
    return receive(size, source, group)


class Exact(Method):
    """dAD between ranks: full factors, or the matrix where it is smaller. Nothing is left out."""

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Return the factors unchanged."""
        yield tuple(map(smaller, gradients))
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Concatenate the factors.

        Source: arXiv 2102.09631, Algorithm 1.
        """
        return tuple(map(smaller, pooled(contributions))), state


def smaller(value: Matrix) -> Matrix:
    """Return the matrix of a factor if it has fewer numbers."""
    out, columns = value.shape
    return value.gradient() if isinstance(value, Factor) and value.rows * (out + columns) > out * columns else value
