"""The messages between ranks in a step, as one block of bytes each.

A message has two float64, status and weight; an int32 for every parameter that may be a factor, its rows, or -1 for a
matrix; a byte for every parameter, whether it was used; then the payload, see `common.lowrank.layout`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor
from torch._C import _LinAlgError as LinAlgError  # type: ignore[attr-defined]  # re-exported by torch.linalg

from rankdad.common.errors import NonFiniteError, RankdadError
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.layout import MessageLayout, NotEncodedError, one_exchange
from rankdad.common.lowrank.routes import Payload, Route

OVERFLOWS = (NonFiniteError, ValueError, LinAlgError)  # raised by reducers for NaN and infinity
HEAD = 2 * torch.float64.itemsize


class Status(IntEnum):
    """The status of a rank, or the worst of several."""

    FINE = 0
    OVERFLOW = 1  # of a scaled loss: all ranks skip this step
    FAILED = 2


@dataclass(frozen=True)
class Message:
    """One rank's part of a step, or the combined part of several.

    Args:
        status: the worst of them.
        weight: sum of their batches' weights.
        payload: the gradient of their mean loss; empty unless the status is fine.
        used: names of the parameters with a gradient.
    """

    status: Status
    weight: float
    payload: Payload = ()
    used: frozenset[str] = frozenset()


def joined(messages: Sequence[Message]) -> Message:
    """Return one message of a rank's parts, such as those of several buckets, with the worst status."""
    status, weight = max(message.status for message in messages), messages[0].weight
    if status != Status.FINE:
        return Message(status, weight)
    used = frozenset[str]().union(*(message.used for message in messages))
    return Message(status, weight, tuple(value for message in messages for value in message.payload), used)


@dataclass(frozen=True)
class Layout:
    """The layout of messages in bytes.

    Args:
        routes: of every trained parameter.
        wire: number format.
        like: a tensor with the dtype and device of reductions.
        bounded: whether all messages are padded to the size of the largest.
    """

    routes: tuple[Route, ...]
    wire: str
    like: Tensor
    bounded: bool

    @cached_property
    def payload(self) -> MessageLayout:
        """The layout of the payload."""
        layout = one_exchange(self.routes)[0].up
        return replace(layout, slots=tuple(replace(slot, either=not slot.fixed) for slot in layout.slots))

    @cached_property
    def size(self) -> int | None:
        """Size of every message in bytes, if they are bounded."""
        return self._start + self.payload.payload_bytes(self.wire) if self.bounded else None

    @cached_property
    def names(self) -> list[str]:
        """The parameters in the order of their routes."""
        return [name for route in self.routes for name in route.names]

    @property
    def _flags(self) -> int:
        return HEAD + torch.int32.itemsize * self.payload.variable

    @property
    def _start(self) -> int:
        return self._flags + len(self.names)

    def pack(self, message: Message) -> Tensor:
        """Return a message's bytes, a uint8 tensor on the gradients' device.

        Raises:
            RankdadError: a number is NaN, infinite, or too large for the wire; names the parameter.
        """
        counts, numbers = [0] * self.payload.variable, torch.empty(0, dtype=torch.uint8, device=self.like.device)
        if message.payload:
            try:
                counts, numbers = self.payload.pack(message.payload, self.wire)
            except NotEncodedError as error:
                raise _not_encoded(error, self.wire) from None
        head = torch.tensor([message.status, message.weight], dtype=torch.float64).view(torch.uint8)
        used = torch.tensor([name in message.used for name in self.names], dtype=torch.uint8)
        before = torch.cat([head, torch.tensor(counts, dtype=torch.int32).view(torch.uint8), used])
        data = torch.cat([before.to(numbers.device), numbers])
        return data if self.size is None else torch.cat([data, data.new_zeros(self.size - len(data))])

    def unpack(self, data: Tensor) -> Message:
        """Return the message that the bytes hold."""
        before = data[: self._start].cpu().clone()
        status, weight = before[:HEAD].view(torch.float64).tolist()
        if status != Status.FINE:
            return Message(Status(int(status)), weight)
        counts = before[HEAD : self._flags].view(torch.int32).tolist()
        names = frozenset(itertools.compress(self.names, before[self._flags :].tolist()))
        rows = self.payload.checked(counts)
        end = self._start + self.payload.payload_bytes(self.wire, rows)
        payload, _ = self.payload.unpack(rows, data[self._start : end], self.wire, self.like.device)
        return Message(Status.FINE, weight, tuple(_like(value, self.like) for value in payload), names)


def _not_encoded(error: NotEncodedError, wire: str) -> RankdadError:
    gradient = f"the gradient of {error.name}"
    if not error.finite:
        return NonFiniteError(gradient)
    return RankdadError(
        f"{gradient} is too large for {wire}: choose a wider wire", code="too-large-for-wire", field="wire"
    )


def _like(value: Matrix, like: Tensor) -> Matrix:
    return Factor(value.delta.to(like), value.activation.to(like)) if isinstance(value, Factor) else value.to(like)
