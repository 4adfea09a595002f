"""Helpers of all reducers: a matrix or factor as an operator, and its components within a subspace."""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix


def widened(matrix: Matrix) -> Matrix:
    """Return the matrix in a precision that decompositions support: half precision as float32."""
    if leaf(matrix).dtype not in (torch.float16, torch.bfloat16):
        return matrix
    return Factor(matrix.delta.float(), matrix.activation.float()) if isinstance(matrix, Factor) else matrix.float()


def as_given(factor: Factor, matrix: Matrix) -> Factor:
    """Return a reduced matrix in the precision of the original one."""
    like = leaf(matrix)
    return factor if factor.delta.dtype == like.dtype else Factor(factor.delta.to(like), factor.activation.to(like))


def normalised(matrix: Matrix) -> tuple[Matrix, float]:
    """Return the matrix scaled to entries of at most 1, and the scale, so that squares neither overflow nor underflow.

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
    """Return G x for every row of x [k, in]: rows [k, out]. Few rows are three times as fast as few columns."""
    return (x @ matrix.activation.T) @ matrix.delta if isinstance(matrix, Factor) else x @ matrix.T


def left(matrix: Matrix, y: Tensor) -> Tensor:
    """Return Gᵀ y for every row of y [k, out]: rows [k, in]."""
    return (y @ matrix.delta.T) @ matrix.activation if isinstance(matrix, Factor) else y @ matrix


def orthonormal(rows: Tensor) -> Tensor:
    """Return orthonormal rows of the same span."""
    columns: Tensor = torch.linalg.qr(rows.T)[0]
    return columns.T


def decomposed(rows: Tensor, rank: int, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose few long rows [k, ·] into at most `rank` leading singular components.

    For float32 rows, the Gram matrix in float64 is precise enough: it resolves singular values of 1e-8 of the largest.

    Returns:
        Left singular vectors as rows [count, k], singular values [count, 1], right singular vectors as rows [count, ·].
    """
    if rows.dtype == torch.float64:
        vectors, sigma, right_vectors = torch.linalg.svd(rows, full_matrices=False)
        count = kept(sigma, rank, tolerance)
        return vectors[:, :count].T, sigma[:count, None], right_vectors[:count]
    wide = rows.double()
    squares, vectors = torch.linalg.eigh(wide @ wide.T)
    sigma = squares.clamp_(min=0).sqrt_().flip(0)
    count = kept(sigma, rank, tolerance)
    rotation, sizes = vectors.flip(1)[:, :count].T, sigma[:count, None]
    return rotation.to(rows), sizes.to(rows), ((rotation @ wide) / sizes).to(rows)


def leaf(matrix: Matrix) -> Tensor:
    """Return one of the matrix's tensors, for dtype and device."""
    return matrix.delta if isinstance(matrix, Factor) else matrix


def rank_tolerance(matrix: Matrix) -> float:
    """Return the fraction of the largest singular value below which others are rounding errors."""
    return float(4 * torch.finfo(leaf(matrix).dtype).eps * max(matrix.shape) ** 0.5)


def kept(sigma: Tensor, rank: int, tolerance: float) -> int:
    """Return the effective rank: how many descending singular values exceed the tolerance, at most `rank`."""
    sizes: list[float] = sigma.tolist()
    return sum(size > tolerance * sizes[0] for size in sizes[:rank])


def empty_factor(matrix: Matrix) -> Factor:
    """Return a factor of the matrix's shape without rows."""
    out, columns = matrix.shape
    return Factor(leaf(matrix).new_zeros(0, out), leaf(matrix).new_zeros(0, columns))


def _largest(tensor: Tensor) -> float:
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not largest < float("inf"):
        raise ValueError("the matrix holds NaN or infinity")
    return largest
