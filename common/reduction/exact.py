"""The best approximation of a given rank: the truncated singular value decomposition."""

from __future__ import annotations

import torch

from common.factors import Factor
from common.reduction.operators import Matrix, components, kept, negligible, normalised, nothing


def exact(factor: Matrix, rank: int, *, tolerance: float = 0.0) -> Factor:
    """Reduce a matrix G to its leading singular components exactly.

    A factor with few rows is decomposed by QR of Δᵀ and Aᵀ and the SVD of the small core between them; the core is in
    float64, since its singular values are products of two triangles'.

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
    matrix, scale = normalised(factor)
    if scale == 0:
        return nothing(matrix)
    floor = max(tolerance, negligible(matrix))
    if isinstance(matrix, Factor) and matrix.rows < min(matrix.shape):
        q_out, r_out = torch.linalg.qr(matrix.delta.T)
        q_in, r_in = torch.linalg.qr(matrix.activation.T)
        u, sigma, v = torch.linalg.svd(r_out.double() @ r_in.double().T, full_matrices=False)
        u, v = q_out @ u.to(q_out), v.to(q_in) @ q_in.T
    else:
        dense = matrix.gradient() if isinstance(matrix, Factor) else matrix
        wide = dense.shape[0] <= dense.shape[1]
        vectors, sigma = components(dense if wide else dense.T)
        count = kept(sigma, rank, floor)
        short = vectors[:, :count].T.to(dense)
        sizes = sigma[:count, None].to(dense)
        if wide:
            return Factor(short * sizes * scale, (short @ dense) / sizes)
        return Factor((short @ dense.T) * scale, short)
    count = kept(sigma, rank, floor)
    return Factor(((u[:, :count]) * (sigma[:count] * scale).to(u)).T, v[:count])
