"""The exchange of a step between ranks: gathered by all, or reduced by owners.

**Gathering**: every rank receives the rows of all others, and adds them up in the same order. This takes one
collective, in which each of S ranks sends its message of m bytes to S - 1 others. No row is reduced twice.

**Owners**: every rank is the aggregator of some parameters. It receives all ranks' rows of these, reduces their
concatenation, and sends the result to all. A rank sends 2 (S - 1) / S m, as in an all-reduce, for any number of ranks,
in two or three collectives. The owner keeps the residual of its reduction for the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from rankdad.common.collectives import (
    all_gather_equal,
    all_gather_evenly,
    all_gather_rows,
    all_to_all,
    begin_all_to_all,
    device_of,
)
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.methods import Contribution, Method, MethodState
from rankdad.common.methods.base import Aggregated, SiteStep, pooled
from rankdad.distributed.agreement import reaching
from rankdad.distributed.messages import Layout, Message, Status

GATHER_UP_TO = 2  # ranks: with two, all bytes are the same, and gathering takes one collective


@dataclass(frozen=True)
class Node:
    """The work of a rank on all ranks' parts: `method.aggregate`.

    Args:
        method: of the ranks.
        state: of this rank as an aggregator; with gathering the same at all ranks.
        seed: of this node and step.
        failed: called with an error; returns the status for all ranks.
    """

    method: Method
    state: MethodState
    seed: int
    failed: Callable[[Exception], Status]

    def combined(self, parts: Sequence[Message]) -> tuple[Message, MethodState]:
        """Combine all ranks' parts; return the result and the node's new state."""
        status, weight = max(part.status for part in parts), sum(part.weight for part in parts)
        if status != Status.FINE:
            return Message(status, weight), self.state
        contributions = [Contribution(part.weight, part.payload) for part in parts]
        payload, state = self.method.aggregate(0, contributions, self.state, self.seed)
        return Message(Status.FINE, weight, payload, frozenset[str]().union(*(part.used for part in parts))), state


class Gathering:
    """Messages that all ranks receive.

    Args:
        layout: of all messages.
        group: the ranks.
    """

    def __init__(self, layout: Layout, group: dist.ProcessGroup | None) -> None:
        self.layout = self.own = layout  # of messages, and of those that this rank combines
        self._group = group

    def pack(self, message: Message) -> list[Tensor]:
        """Return a message's bytes: once, for all ranks."""
        return [self.layout.pack(message)]

    def begin(self, own: Sequence[Tensor]) -> tuple[dist.Work, list[Tensor]]:
        """Start to exchange packed messages of bounded size; return the work, and where it will put all ranks'."""
        sent = own[0].to(device_of(self._group))
        received = list(sent.new_empty(dist.get_world_size(self._group), len(sent)))
        with reaching("a step's exchange"):
            work = dist.all_gather(received, sent, group=self._group, async_op=True)
        assert work is not None
        return work, received

    def received(self, own: Sequence[Tensor]) -> list[Tensor]:
        """Exchange packed messages; return all ranks'."""
        with reaching("a step's exchange"):
            if self.layout.size is None:
                return all_gather_rows(own[0], self._group)
            return list(all_gather_equal(own[0], self._group))

    def ended(self, parts: Sequence[Message], node: Node) -> tuple[Message, MethodState]:
        """Combine all ranks' messages; return the update and the node's new state."""
        return node.combined(parts)


class Owners:
    """Messages whose parameters have an owner each.

    Args:
        layout: of whole messages.
        owners: rank by parameter.
        group: the ranks.
    """

    def __init__(self, layout: Layout, owners: dict[str, int], group: dist.ProcessGroup | None) -> None:
        self._group, places = group, range(dist.get_world_size(group))
        names = [route.name for route in layout.routes]
        self._indices = [[index for index, name in enumerate(names) if owners[name] == rank] for rank in places]
        self._layouts = [replace(layout, routes=tuple(layout.routes[i] for i in own)) for own in self._indices]
        self.layout, self.own = layout, self._layouts[dist.get_rank(group)]  # as with Gathering

    def pack(self, message: Message) -> list[Tensor]:
        """Return the bytes of a message's part for each owner."""
        return [layout.pack(self._part(message, rank)) for rank, layout in enumerate(self._layouts)]

    def begin(self, own: Sequence[Tensor]) -> tuple[dist.Work, list[Tensor]]:
        """Start to exchange packed messages of bounded size; return the work, and where it will put this owner's."""
        assert self.own.size is not None
        sizes = [self.own.size] * len(own)
        with reaching("a step's exchange"):
            work, received = begin_all_to_all(own, sizes, self._group)
        return work, list(received.split(sizes))

    def received(self, own: Sequence[Tensor]) -> list[Tensor]:
        """Exchange packed messages; return all ranks' for this owner."""
        with reaching("a step's exchange"):
            return all_to_all(own, self._group, None if self.own.size is None else [self.own.size] * len(own))

    def ended(self, parts: Sequence[Message], node: Node) -> tuple[Message, MethodState]:
        """Combine all ranks' messages, send the result to all, and return the whole update and the node's new state."""
        combined, state = self._combined(parts, node)
        sizes = [layout.size or 0 for layout in self._layouts]
        with reaching("a step's exchange"):
            gathered = all_gather_evenly(combined, None if self.own.size is None else sizes, self._group)
        messages = [layout.unpack(part) for layout, part in zip(self._layouts, gathered, strict=True)]
        status = max(message.status for message in messages)
        if status != Status.FINE:
            return Message(status, messages[0].weight), state
        found = dict[int, Matrix]()
        for indices, message in zip(self._indices, messages, strict=True):
            found |= zip(indices, message.payload, strict=True)
        used = frozenset[str]().union(*(message.used for message in messages))
        return Message(status, messages[0].weight, tuple(found[index] for index in range(len(found))), used), state

    def _combined(self, parts: Sequence[Message], node: Node) -> tuple[Tensor, MethodState]:
        """Return the packed result, or a packed error, and the node's new state."""
        try:
            combined, state = node.combined(parts)
            return self.own.pack(combined), state
        except Exception as error:  # all ranks wait for a message
            return self.own.pack(Message(node.failed(error), sum(part.weight for part in parts))), node.state

    def _part(self, message: Message, owner: int) -> Message:
        if not message.payload:
            return message
        return replace(message, payload=tuple(message.payload[index] for index in self._indices[owner]))


def exchange_of(layout: Layout, owners: dict[str, int] | None, group: dist.ProcessGroup | None) -> Gathering | Owners:
    """Return an exchange among owners, or by gathering if there are none."""
    return Gathering(layout, group) if owners is None else Owners(layout, owners, group)


def owners_of(routes: Sequence[Route], wire: str, places: int) -> dict[str, int]:
    """Return the rank that combines each parameter, so that all ranks receive about as many bytes: largest first."""
    loads, owners = [0] * places, dict[str, int]()
    for route in sorted(routes, key=lambda route: (-route.size(route.up, wire), route.name)):
        owners[route.name] = rank = loads.index(min(loads))
        loads[rank] += route.size(route.up, wire)
    return owners


@dataclass(frozen=True, eq=False)
class Begun:
    """A bucket whose exchange has begun.

    Args:
        buffer: of the bucket, for the average.
        gradients: of its parameters, within the buffer.
        exchange: of the bucket.
        scale: of the loss.
        meant: gradients with residuals, possibly in the buffer's memory.
        found: leading components.
        sent: the components that are sent.
        work: of the exchange.
        received: by it.
        averaging: done when the buffer holds the average.
    """

    buffer: Tensor
    gradients: Sequence[Tensor]
    exchange: Gathering | Owners
    scale: float
    meant: Sequence[Tensor]
    found: Sequence[Matrix]
    sent: Sequence[Matrix]
    work: dist.Work
    received: Sequence[Tensor]
    averaging: Future[Tensor]


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
