"""What travels between ranks in a step: one block of bytes. Pure functions of shapes and numbers.

Two float64 come first, a status and a weight; then an int32 for every parameter that may travel as a factor, its rows,
or -1 for a matrix; then a byte for every parameter, whether anybody has used it; then all numbers in the wire's format,
as `common.lowrank.wire` has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor
from torch._C import _LinAlgError as LinAlgError  # type: ignore[attr-defined]  # which torch.linalg re-exports

from rankdad.common.collectives import as_bytes
from rankdad.common.errors import NonFiniteError, RankdadError
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.routes import Payload, Route
from rankdad.common.lowrank.wire import decode, encode, finite, wire_bytes

MATRIX = -1
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
    """How payloads become bytes.

    Args:
        routes: of every trained parameter.
        wire: how numbers travel.
        like: a tensor of the dtype and device in which gradients are reduced.
        bounded: whether no factor has more rows than its route says.
    """

    routes: tuple[Route, ...]
    wire: str
    like: Tensor
    bounded: bool

    @property
    def size(self) -> int | None:
        """Bytes of every message, where they are bounded: shorter ones are filled up."""
        return self._start + sum(route.size(route.up, self.wire) for route in self.routes) if self.bounded else None

    @property
    def names(self) -> list[str]:
        """The parameters in the order of their routes."""
        return [name for route in self.routes for name in route.names]

    @property
    def _factors(self) -> list[int]:
        return [place for place, route in enumerate(self.routes) if route.up is not None]

    @property
    def _start(self) -> int:
        return HEAD + torch.int32.itemsize * len(self._factors) + len(self.names)

    def pack(self, message: Message) -> Tensor:
        """Return a message's bytes, a uint8 tensor on the CPU.

        Raises:
            RankdadError: a number is NaN, infinite, or too large for the wire; names the parameter.
        """
        counts = [MATRIX] * len(self._factors)
        numbers = torch.empty(0, dtype=torch.uint8)
        if message.payload:
            factors = (message.payload[place] for place in self._factors)
            counts = [value.rows if isinstance(value, Factor) else MATRIX for value in factors]
            try:
                numbers = encode([array for value in message.payload for array in _arrays(value)], self.wire)
            except OverflowError:
                raise self._overflow(message.payload) from None
        head = torch.tensor([message.status, message.weight], dtype=torch.float64).view(torch.uint8)
        used = torch.tensor([name in message.used for name in self.names], dtype=torch.uint8)
        data = torch.cat([head, torch.tensor(counts, dtype=torch.int32).view(torch.uint8), used, numbers])
        return data if self.size is None else torch.cat([data, data.new_zeros(self.size - len(data))])

    def unpack(self, data: Tensor) -> Message:
        """Return the message that the bytes hold."""
        status, weight = data[:HEAD].clone().view(torch.float64).tolist()
        if status != Status.FINE:
            return Message(Status(int(status)), weight)
        flags = HEAD + torch.int32.itemsize * len(self._factors)
        counts = dict(zip(self._factors, data[HEAD:flags].clone().view(torch.int32).tolist(), strict=True))
        names = frozenset(itertools.compress(self.names, data[flags : self._start].tolist()))
        rows = [counts.get(place, MATRIX) for place in range(len(self.routes))]
        shapes = [
            shape
            for count, (out, columns) in zip(rows, (route.matrix for route in self.routes), strict=True)
            for shape in ([(out, columns)] if count == MATRIX else [(count, out), (count, columns)])
        ]
        used = sum(wire_bytes(self.wire, *shape) for shape in shapes)
        numbers = as_bytes(data[self._start : self._start + used])
        arrays = iter(decode(numbers, shapes, self.wire, str(self.like.device)))
        return Message(Status.FINE, weight, tuple(_value(count, arrays, self.like) for count in rows), names)

    def _overflow(self, payload: Payload) -> RankdadError:
        """Name the first parameter whose numbers do not travel."""
        for route, value in zip(self.routes, payload, strict=True):
            if not all(finite(array) for array in _arrays(value)):
                return NonFiniteError(f"the gradient of {route.name}")
        problem = f"a gradient is too large for {self.wire}: choose a wider wire"
        return RankdadError(problem, code="too-large-for-wire", field="wire")


def _arrays(value: Matrix) -> tuple[Tensor, ...]:
    return (value.delta, value.activation) if isinstance(value, Factor) else (value,)


def _value(rows: int, arrays: Iterator[Tensor], like: Tensor) -> Matrix:
    return next(arrays).to(like) if rows == MATRIX else Factor(next(arrays).to(like), next(arrays).to(like))
