"""What travels between ranks in a step: one block of bytes. Pure functions of shapes and numbers.

Two float64 come first, a status and a weight; then an int32 for every parameter that may travel as a factor, its rows,
or -1 for a matrix; then a byte for every parameter, whether anybody has used it; then the payload, as
`common.lowrank.layout` has it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor
from torch._C import _LinAlgError as LinAlgError  # type: ignore[attr-defined]  # which torch.linalg re-exports

from rankdad.common.collectives import as_bytes
from rankdad.common.errors import NonFiniteError, RankdadError
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.layout import MessageLayout, NotEncodedError, one_exchange
from rankdad.common.lowrank.routes import Payload, Route

OVERFLOWS = (NonFiniteError, ValueError, LinAlgError)  # what reducers raise for NaN and infinity
HEAD = 2 * torch.float64.itemsize


class Status(IntEnum):
    """How a rank fares, or the worst of several."""

    FINE = 0
    OVERFLOW = 1  # of a scaled loss: all leave this step out
    FAILED = 2


@dataclass(frozen=True)
class Message:
    """One rank's part of a step, or that of several together.

    Args:
        status: of the worst of them.
        weight: the sum of their batches' weights.
        payload: the gradient of their mean loss; empty if the status is not fine.
        used: names of the parameters that had a gradient.
    """

    status: Status
    weight: float
    payload: Payload = ()
    used: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Layout:
    """How messages become bytes.

    Args:
        routes: of every trained parameter.
        wire: how numbers travel.
        like: a tensor of the dtype and device in which gradients are reduced.
        bounded: whether all messages are as long as the largest: shorter ones are filled up.
    """

    routes: tuple[Route, ...]
    wire: str
    like: Tensor
    bounded: bool

    @cached_property
    def payload(self) -> MessageLayout:
        """What travels of a gradient."""
        layout = one_exchange(self.routes)[0].up
        return replace(layout, slots=tuple(replace(slot, either=not slot.fixed) for slot in layout.slots))

    @cached_property
    def size(self) -> int | None:
        """Bytes of every message, where they are bounded."""
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
        """Return a message's bytes, a uint8 tensor on the CPU.

        Raises:
            RankdadError: a number is NaN, infinite, or too large for the wire; names the parameter.
        """
        counts, numbers = [0] * self.payload.variable, torch.empty(0, dtype=torch.uint8)
        if message.payload:
            try:
                counts, numbers = self.payload.pack(message.payload, self.wire)
            except NotEncodedError as error:
                raise _not_encoded(error, self.wire) from None
        head = torch.tensor([message.status, message.weight], dtype=torch.float64).view(torch.uint8)
        used = torch.tensor([name in message.used for name in self.names], dtype=torch.uint8)
        data = torch.cat([head, torch.tensor(counts, dtype=torch.int32).view(torch.uint8), used, numbers])
        return data if self.size is None else torch.cat([data, data.new_zeros(self.size - len(data))])

    def unpack(self, data: Tensor) -> Message:
        """Return the message that the bytes hold."""
        status, weight = data[:HEAD].clone().view(torch.float64).tolist()
        if status != Status.FINE:
            return Message(Status(int(status)), weight)
        counts = data[HEAD : self._flags].clone().view(torch.int32).tolist()
        names = frozenset(itertools.compress(self.names, data[self._flags : self._start].tolist()))
        rows = self.payload.checked(counts)
        end = self._start + self.payload.payload_bytes(self.wire, rows)
        numbers = as_bytes(data[self._start : end])
        payload, _ = self.payload.unpack(rows, numbers, self.wire, str(self.like.device))
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
