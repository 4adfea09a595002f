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

# The paper's θ: sine of the angle between two iterates below which a component counts as found. It names no value; the
# authors' code has 1e-3 for another measure, the distance of two components: see `benchmarks.paper.authors`.
CONVERGENCE = 1e-3
MIN_ITERATIONS = 12  # a start that happens to lie near another component does not turn at first, either


def spi(
    factor: Matrix,
    rank: int,
    *,
    tolerance: float = 0.0,
    seed: int = 0,
    iterations: int = 40,
) -> Factor:
    """Reduce a matrix G to its leading singular components, one after the other.

    Each component is a power iteration on GᵀG, orthogonalised in every iteration against those already found: plain
    deflation finds a component twice once σ_j/σ₁ falls below the square root of the machine precision. A last
    Rayleigh-Ritz step sets right what stopping early has mixed within the span.

    Args:
        factor: G = Δᵀ A as a factor (Δ [n, out], A [n, in]), or G itself [out, in].
        rank: largest number r of components.
        tolerance: components with σ_j ≤ tolerance · σ₁ are left out.
        seed: of the random starts.
        iterations: power iterations per component at most.

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
            following = torch.where(size > 0, following / size, g)  # nothing is left beside the basis: g stays
            turned = torch.linalg.vector_norm(following - g * (following @ g))
            g = following
            # The one value that a GPU is waited for: the paper stops when a component is found, not after so many.
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
    """Diagonalise G within the span of the basis: rows ordered by singular value, the negligible ones left out."""
    images = right(matrix, basis)
    _, sigma, rotation = torch.linalg.svd(images.T.double(), full_matrices=False)
    rotation = rotation[: kept(sigma, len(basis), tolerance)].to(basis)
    return Factor((rotation @ images) * scale, rotation @ basis)


def _orthogonal(x: Tensor, basis: Tensor) -> Tensor:
    """Remove from x its parts along the basis's rows; twice, since once leaves rounding errors behind."""
    for _ in range(2 if len(basis) else 0):
        x = x - basis.T @ (basis @ x)
    return x


def _unit(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x)
    return x / size.clamp_min(torch.finfo(x.dtype).tiny)
