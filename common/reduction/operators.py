"""What all reducers share: a matrix as an operator, whether a factor or dense, and its components within a subspace."""

from __future__ import annotations

import torch
from torch import Tensor

from common.factors import Factor

Matrix = Factor | Tensor


def normalised(matrix: Matrix) -> tuple[Matrix, float]:
    """Return the matrix with entries of at most 1, and its scale: squares then neither overflow nor vanish.

    Raises:
        ValueError: the matrix holds NaN or infinity.
    """
    if isinstance(matrix, Tensor):
        scale = _largest(matrix)
        return (matrix / scale if scale > 0 else matrix), scale
    delta, activation = _largest(matrix.delta), _largest(matrix.activation)
    if delta == 0 or activation == 0:
        return matrix, 0.0
    return Factor(matrix.delta / delta, matrix.activation / activation), delta * activation


def right(matrix: Matrix, x: Tensor) -> Tensor:
    """Return G x."""
    return matrix.delta.T @ (matrix.activation @ x) if isinstance(matrix, Factor) else matrix @ x


def left(matrix: Matrix, y: Tensor) -> Tensor:
    """Return Gᵀ y."""
    return matrix.activation.T @ (matrix.delta @ y) if isinstance(matrix, Factor) else matrix.T @ y


def values(matrix: Matrix) -> Tensor:
    """Return a tensor of the matrix's dtype and device."""
    return matrix.delta if isinstance(matrix, Factor) else matrix


def negligible(matrix: Matrix) -> float:
    """Return the part of the largest singular value below which one is rounding error."""
    return float(4 * torch.finfo(values(matrix).dtype).eps * max(matrix.shape) ** 0.5)


def kept(sigma: Tensor, rank: int, tolerance: float) -> int:
    """Return the effective rank: how many of the falling singular values are above the tolerance, at most `rank`."""
    return min(rank, int((sigma > tolerance * sigma[:1].clamp_min(1e-300)).sum()))


def nothing(matrix: Matrix) -> Factor:
    """Return the factor without rows of the matrix's shape."""
    out, columns = matrix.shape
    return Factor(values(matrix).new_zeros(0, out), values(matrix).new_zeros(0, columns))


def _largest(tensor: Tensor) -> float:
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not largest < float("inf"):
        raise ValueError("the matrix holds NaN or infinity")
    return largest
