"""Inputs of samples: a tensor, or what is read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor


class LazyInputs(Protocol):
    """Inputs [n, *shape] that are read when they are asked for; real numbers, none of them missing.

    As far as preparation asks, it is a tensor: parts of it are as lazy as the whole, `split` reads.
    """

    @property
    def shape(self) -> torch.Size:
        """[n, *shape]."""

    @property
    def ndim(self) -> int:
        """How many axes there are, that of samples included."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor | slice) -> LazyInputs: ...

    def split(self, size: int) -> Iterable[Tensor]:
        """Yield all samples in order, so many at a time."""

    def batches(
        self, parts: Iterable[Tensor], change: Callable[[Tensor, Tensor], Tensor] | None = None, *, pinned: bool = False
    ) -> Iterable[Tensor]:
        """Yield the samples of each part: `change` is given them and their places, where they are read."""

    def map(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype) -> LazyInputs:
        """Return what `change` makes of them, of another dtype: it is given few samples at a time."""


Inputs = Tensor | LazyInputs


def in_memory(inputs: Inputs) -> Tensor:
    """Return inputs as one tensor."""
    return inputs if isinstance(inputs, Tensor) else torch.cat(list(inputs.split(64)))


def has_gaps(inputs: Inputs) -> bool:
    """Tell whether a value is missing, which is NaN."""
    return isinstance(inputs, Tensor) and inputs.is_floating_point() and bool(inputs.isnan().any())
