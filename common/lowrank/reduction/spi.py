"""Structured power iterations (SPI): the leading singular components of a factor, without forming its product."""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.reduction.operators import (
    as_given,
    empty_factor,
    kept,
    leaf,
    left,
    normalised,
    rank_tolerance,
    right,
    widened,
)

# The paper's θ: sine of the angle between two iterates below which a component has converged. The paper gives no value;
# the authors' code has 1e-3 for another measure, the distance of two components: see `benchmarks.paper.authors`.
CONVERGENCE = 1e-3
MIN_ITERATIONS = 12  # a start near another component also changes little at first


def spi(
    factor: Matrix,
    rank: int,
    *,
    tolerance: float = 0.0,
    seed: int = 0,
    iterations: int = 40,
) -> Factor:
    """Reduce a matrix G to its leading singular components, one after the other.

    Each component is a power iteration on GᵀG, orthogonalised in every iteration against the previous ones: plain
    deflation finds a component twice once σ_j/σ₁ falls below the square root of the machine precision. A final
    Rayleigh-Ritz step separates components that stopping early has mixed.

    Args:
        factor: G = Δᵀ A as a factor (Δ [n, out], A [n, in]), or G itself [out, in].
        rank: largest number r of components.
        tolerance: components with σ_j ≤ tolerance · σ₁ are left out.
        seed: of the random starts.
        iterations: at most, per component.

    Returns:
        Q [k, out] carrying the singular values and P [k, in] with orthonormal rows, k ≤ r: the effective rank. A zero
        matrix has k = 0.

    Raises:
        ValueError: the rank is below 1, or the matrix holds NaN or infinity.

    Source: arXiv 2102.09631, Algorithm 2 (Eq. 5).
    """
    if rank < 1:
        raise ValueError(f"rank: got {rank}, expected at least 1")
    matrix, scale = normalised(widened(factor))
    if scale == 0:
        return empty_factor(factor)
    out, columns = matrix.shape
    like, floor = leaf(matrix), rank_tolerance(matrix)
    components = like.new_empty(min(rank, out, columns), columns)
    generator = torch.Generator().manual_seed(seed)
    count, largest = 0, 0.0
    while count < components.shape[0]:
        start = torch.randn(columns, generator=generator, dtype=torch.float64).to(like)
        basis = components[:count]
        g = _unit(_orthogonal(start, basis))
        for iteration in range(iterations):
            image = right(matrix, g)
            following = _orthogonal(left(matrix, image), basis)
            size = torch.linalg.vector_norm(following)
            following = torch.where(size > 0, following / size, g)  # nothing is left outside the basis: g stays
            turned = torch.linalg.vector_norm(following - g * (following @ g))
            g = following
            # The only synchronisation with a GPU: the paper stops at convergence, not after a number of iterations.
            if iteration >= MIN_ITERATIONS and turned <= CONVERGENCE:
                break
        sigma = float(torch.linalg.vector_norm(right(matrix, g)))
        largest = max(largest, sigma)
        if sigma <= floor * largest:
            break
        components[count] = _unit(_orthogonal(g, basis))
        count += 1
    return as_given(_rayleigh_ritz(matrix, components[:count], max(tolerance, floor), scale), factor)


def _rayleigh_ritz(matrix: Matrix, basis: Tensor, tolerance: float, scale: float) -> Factor:
    """Diagonalise G within the span of the basis: rows in order of singular values, without negligible ones."""
    images = right(matrix, basis)
    _, sigma, rotation = torch.linalg.svd(images.T.double(), full_matrices=False)
    rotation = rotation[: kept(sigma, len(basis), tolerance)].to(basis)
    return Factor((rotation @ images) * scale, rotation @ basis)


def _orthogonal(x: Tensor, basis: Tensor) -> Tensor:
    """Remove from x its components along the basis; twice, because of rounding errors."""
    for _ in range(2 if len(basis) else 0):
        x = x - basis.T @ (basis @ x)
    return x


def _unit(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x)
    return x / size.clamp_min(torch.finfo(x.dtype).tiny)
