"""The best approximation of a given rank: the truncated singular value decomposition."""

from __future__ import annotations

import torch

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.reduction.operators import (
    as_given,
    decomposed,
    empty_factor,
    normalised,
    rank_tolerance,
    widened,
)


def exact(factor: Matrix, rank: int, *, tolerance: float = 0.0) -> Factor:
    """Reduce a matrix G to its leading singular components exactly.

    For a factor with few rows, this is a QR of Δᵀ and Aᵀ and an SVD of the small core between them. The core is in
    float64, because its singular values are products of those of two triangles.

    Args:
        factor: G = Δᵀ A as a factor (Δ [n, out], A [n, in]), or G itself [out, in].
        rank: largest number r of components.
        tolerance: components with σ_j ≤ tolerance · σ₁ are left out.

    Returns:
        Q [k, out] carrying the singular values and P [k, in] with orthonormal rows, k ≤ r.

    Raises:
        ValueError: the rank is below 1, or the matrix holds NaN or infinity.

    Source: Eckart and Young 1936.
    """
    if rank < 1:
        raise ValueError(f"rank: got {rank}, expected at least 1")
    matrix, scale = normalised(widened(factor))
    if scale == 0:
        return empty_factor(factor)
    return as_given(_decomposed(matrix, rank, tolerance, scale), factor)


def _decomposed(matrix: Matrix, rank: int, tolerance: float, scale: float) -> Factor:
    floor = max(tolerance, rank_tolerance(matrix))
    if isinstance(matrix, Factor) and matrix.rows < min(matrix.shape):
        q_out, r_out = torch.linalg.qr(matrix.delta.T)
        q_in, r_in = torch.linalg.qr(matrix.activation.T)
        rotation, sigma, directions = decomposed(r_out.double() @ r_in.double().T, rank, floor)
        return Factor((rotation * sigma * scale).to(q_out) @ q_out.T, directions.to(q_in) @ q_in.T)
    dense = matrix.gradient() if isinstance(matrix, Factor) else matrix
    if dense.shape[0] <= dense.shape[1]:
        rotation, sigma, directions = decomposed(dense, rank, floor)
        return Factor(rotation * (sigma * scale), directions)
    rotation, sigma, directions = decomposed(dense.T, rank, floor)
    return Factor(directions * (sigma * scale), rotation)
