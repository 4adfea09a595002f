"""Factors of single passes, as captured: views of tensors that autograd or the caller may still change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, concatenate


@dataclass(frozen=True, slots=True)
class Pair:
    """A factor of one pass of a layer.

    Args:
        name: of the layer's weight.
        kept: the factor.
        people: patient of each row; None if unknown.
        task: autograd's number of the pass, which has `.grad`, too, unless it is a partial one; None if it has not.
        made: dtype of the layer's computation.
        is_own: whether the factor's memory is its own.
    """

    name: str
    kept: Factor
    people: Tensor | None
    task: int | None
    made: torch.dtype
    is_own: bool = False
    _versions: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._versions.extend(matrix._version for matrix in _matrices(self.kept))

    @property
    def factor(self) -> Factor:
        """The factor.

        Raises:
            RuntimeError: it has changed since it was captured.
        """
        if [matrix._version for matrix in _matrices(self.kept)] != self._versions:
            problem = f"what the backward pass had computed for {self.name} was changed in place, as by a hook"
            raise RuntimeError(f"{problem} that changes its gradient: return a new one")
        return self.kept

    def owned(self) -> Pair:
        """Return the pair with memory of its own."""
        if self.is_own:
            return self
        delta, activation = (matrix.clone() for matrix in _matrices(self.factor))
        return replace(self, kept=Factor(delta, activation), is_own=True)


def each(people: Tensor | None, rows: int, entries: int) -> Tensor | None:
    """Return the patient of each of a factor's rows, given that of each sample; None if unknown."""
    if people is None or not len(people) or entries % len(people):
        return None
    return people.repeat_interleave(rows // len(people))


def is_all(pairs: Sequence[Pair], gradient: Tensor) -> bool:
    """Return whether the gradient differs from the pairs' by rounding alone."""
    product = concatenate([one.factor for one in pairs]).gradient()
    mine, ours = _local(gradient), _local(product)
    epsilon = max(torch.finfo(one.made).eps for one in pairs)
    tolerance = (64 if epsilon < 1e-4 else 1) * epsilon * mine.norm()
    return mine.shape == ours.shape and bool((mine - ours).norm() <= tolerance)


def places(pairs: Iterable[Pair]) -> set[int]:
    """Return the addresses of the memory that factors are in."""
    return {_local(matrix).untyped_storage().data_ptr() for one in pairs for matrix in _matrices(one.kept)}


def apart(gradient: Tensor, held: set[int]) -> Tensor:
    """Return a gradient, or a copy if it is in one of these places."""
    if gradient.layout != torch.strided or _local(gradient).untyped_storage().data_ptr() not in held:
        return gradient
    return gradient.clone()


def _matrices(factor: Factor) -> tuple[Tensor, Tensor]:
    return factor.delta, factor.activation


def _local(tensor: Tensor) -> Tensor:
    return cast(Any, tensor).to_local() if hasattr(tensor, "to_local") else tensor
