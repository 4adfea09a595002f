"""Inputs of samples: a tensor, or lazily read ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from rankdad.common.spec.text import PADDING, UNKNOWN


class LazyInputs(Protocol):
    """Inputs [n, *shape] that are read when they are used; real numbers without missing values.

    For preparation they behave like a tensor: slices are lazy, and `split` reads.
    """

    @property
    def shape(self) -> torch.Size:
        """[n, *shape]."""

    @property
    def ndim(self) -> int:
        """Number of axes, including that of samples."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor | slice) -> LazyInputs: ...

    def split(self, size: int) -> Iterable[Tensor]:
        """Yield all samples in order, in batches of this size."""

    def batches(
        self, parts: Iterable[Tensor], change: Callable[[Tensor, Tensor], Tensor] | None = None, *, pinned: bool = False
    ) -> Iterable[Tensor]:
        """Yield the samples of each part; `change` is applied to them and their positions."""

    def map(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype) -> LazyInputs:
        """Return the inputs with `change` applied to each batch."""


Inputs = Tensor | LazyInputs


def in_memory(inputs: Inputs) -> Tensor:
    """Return inputs as one tensor."""
    return inputs if isinstance(inputs, Tensor) else torch.cat(list(inputs.split(64)))


def predicted(tokens: Tensor) -> Tensor:
    """Return which tokens of texts [n, length] a language model predicts, bool [n, length − 1].

    These are all but the first, padding, and unknown ones.
    """
    return (tokens[:, 1:] != PADDING) & (tokens[:, 1:] != UNKNOWN)


def has_gaps(inputs: Inputs) -> bool:
    """Return whether a value is missing (NaN)."""
    return isinstance(inputs, Tensor) and inputs.is_floating_point() and bool(inputs.isnan().any())
