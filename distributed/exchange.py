"""How the ranks' parts of a step become one update: gathered by all, or reduced along a tree.

**Gathering**: every rank receives every other's rows and adds up what they stand for, in the same order. It takes one
collective, in which a rank receives S - 1 messages of m bytes.

**A tree**: rank i has the ranks 2i + 1 and 2i + 2 below it. It concatenates its rows and theirs, reduces them, and
sends the result up; the root's goes down the same way. A rank sends 3 m and receives 3 m at most, however many ranks
there are, in 2 log2 S exchanges that wait for one another, and every level's reduction leaves something for the next
step.
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
    """What a rank does with several ranks' parts: `method.combine` or `method.aggregate`, as one of them.

    Args:
        method: how parts become one.
        state: of this rank as a node; the same at all ranks where they gather.
        total: weight of all ranks.
        seed: of this node and step.
        failed: is told of an error, and returns the status that all are to hear.
    """

    method: Method
    state: MethodState
    total: float
    seed: int
    failed: Callable[[Exception], Status]

    def combined(self, parts: Sequence[Message], *, whole: bool) -> tuple[Message, MethodState]:
        """Return several ranks' parts as one, and the node's new state.

        Args:
            parts: of ranks, or of trees below.
            whole: whether these are all there are.
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
        """Return several ranks' parts as one message, and the node's new state; an error goes into the message."""
        parts = [layout.unpack(part) for part in received]
        try:
            combined, state = self.combined(parts, whole=whole)
            return layout.pack(combined), state
        except Exception as error:  # all ranks wait for a message
            return layout.pack(Message(self.failed(error), sum(part.weight for part in parts))), self.state


def gather(own: Tensor, layout: Layout, node: Node, group: dist.ProcessGroup | None) -> tuple[Message, MethodState]:
    """Return the update and the node's new state: all ranks receive all parts, and make the same of them.

    Args:
        own: this rank's message, packed.
        layout: of all messages.
        node: alike at all ranks; its update does not travel.
        group: the ranks.
    """
    with reaching("a step's exchange"):
        parts = all_gather_rows(own, group) if layout.size is None else all_gather_equal(own, group)
    return node.combined([layout.unpack(part) for part in parts], whole=True)


def tree(own: Tensor, layout: Layout, node: Node, group: dist.ProcessGroup | None) -> tuple[Message, MethodState]:
    """Return the update and the node's new state, along a tree; the arguments are those of `gather`."""
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
    """dAD between ranks: full factors, or the matrix where that is smaller. Nothing is left out."""

    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send factors as they are."""
        yield tuple(map(smaller, gradients))
        return state

    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Concatenate.

        Source: arXiv 2102.09631, Algorithm 1.
        """
        return tuple(map(smaller, pooled(contributions))), state


def smaller(value: Matrix) -> Matrix:
    """Return a factor's product where that has fewer numbers."""
    out, columns = value.shape
    return value.gradient() if isinstance(value, Factor) and value.rows * (out + columns) > out * columns else value
