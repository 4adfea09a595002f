"""Factors: a layer's weight gradient as the product of what automatic differentiation already holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_NORM = 1e38  # larger products could overflow in float32


@dataclass(frozen=True, eq=False, slots=True)
class Factor:
    """A gradient G = Δᵀ A, in PyTorch's layout of a weight.

    Args:
        delta: Δ [n, out], the loss's derivative with respect to the layer's output.
        activation: A [n, in], the layer's input. After a reduction the rows are orthonormal and Δ carries the
            singular values.

    Source: arXiv 2102.09631, Eq. 4.
    """

    delta: Tensor
    activation: Tensor

    @property
    def rows(self) -> int:
        """Number n of rows; of a reduced factor, its effective rank."""
        return self.delta.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape [out, in] of the product."""
        return self.delta.shape[1], self.activation.shape[1]

    def gradient(self) -> Tensor:
        """Return Δᵀ A, [out, in]."""
        return self.delta.T @ self.activation

    def scaled(self, scale: float) -> Factor:
        """Return the factor of scale · Δᵀ A."""
        return Factor(self.delta * scale, self.activation)

    def leading(self, rows: int) -> Factor:
        """Return the first rows."""
        return Factor(self.delta[:rows], self.activation[:rows])

    def with_ones(self) -> Factor:
        """Append a column of ones to A, so that the product's last column is the bias's gradient."""
        ones = self.activation.new_ones(self.rows, 1)
        return Factor(self.delta, torch.cat([self.activation, ones], dim=1))


Matrix = Factor | Tensor
"""A gradient [out, in], as a factor or itself."""


def concatenate(factors: Sequence[Factor]) -> Factor:
    """Stack the rows of factors: the product of the result is the sum of their products.

    Source: arXiv 2102.09631, Algorithm 1 (the aggregator's concatenation).
    """
    return Factor(torch.cat([factor.delta for factor in factors]), torch.cat([factor.activation for factor in factors]))


def singular_values(factor: Factor, count: int) -> list[float]:
    """Return the largest singular values of a factor's product, at most `count`, in descending order.

    The product is never formed: with Δᵀ = Q R and Aᵀ = P S, its singular values are those of R Sᵀ.
    """
    left, right = (torch.linalg.qr(side.double().T, mode="r").R for side in (factor.delta, factor.activation))
    values: list[float] = torch.linalg.svdvals(left @ right.T)[:count].tolist()
    return values[: factor.rows]


def norm(matrix: Matrix) -> float:
    """Return the Frobenius norm of a matrix or of a factor's product, which is not formed if that is cheaper."""
    return norms([matrix])[0]


def norms(matrices: Sequence[Matrix]) -> list[float]:
    """Return the norm of each matrix, with one synchronisation of a GPU."""
    if not matrices:
        return []
    sizes: list[float] = torch.stack([_norm(matrix).double() for matrix in matrices]).tolist()
    return [
        float(torch.linalg.vector_norm(matrix, dtype=torch.float64))  # squares overflow float32 from 1e19
        if isinstance(matrix, Tensor) and not math.isfinite(size)
        else size
        for matrix, size in zip(matrices, sizes, strict=True)
    ]


def _norm(matrix: Matrix) -> Tensor:
    if isinstance(matrix, Tensor):
        size: Tensor = torch.linalg.vector_norm(matrix)
        return size
    delta, activation = matrix.delta.double(), matrix.activation.double()
    if matrix.rows * sum(matrix.shape) > matrix.shape[0] * matrix.shape[1]:
        return _norm(delta.T @ activation)
    return ((delta @ delta.T) * (activation @ activation.T)).sum().clamp_min(0).sqrt()
