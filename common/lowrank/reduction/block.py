"""SPI in block form: all components at once, warm-started from the last broadcast basis."""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.reduction.operators import (
    as_given,
    decomposed,
    empty_factor,
    leaf,
    left,
    normalised,
    orthonormal,
    rank_tolerance,
    right,
    widened,
)

SAFE = (1e-12, 1e12)  # magnitudes whose products neither overflow nor underflow


def block(
    factor: Matrix,
    rank: int,
    *,
    basis: Tensor | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    oversampling: int = 8,
    iterations: int = 6,
) -> Factor:
    """Reduce a matrix G to its leading singular components by orthogonal iteration on r + 8 columns.

    This takes two products with G per iteration, instead of two per component and iteration in `spi`. Directions beyond
    the rank compensate for a poor start, and speed up convergence to the ratio σ_{r+9}/σ_r.

    Args:
        factor: G = Δᵀ A as a factor (Δ [n, out], A [n, in]), or G itself [out, in].
        rank: largest number r of components.
        basis: rows [k, in] close to the leading right singular vectors, such as the last step's; one iteration is then
            enough.
        tolerance: components with σ_j ≤ tolerance · σ₁ are left out.
        seed: of the random columns of the start.
        oversampling: columns beyond the rank.
        iterations: number of them.

    Returns:
        Q [k, out] carrying the singular values and P [k, in] with orthonormal rows, k ≤ r.

    Raises:
        ValueError: the rank is below 1, or the matrix holds NaN or infinity.

    Source: arXiv 2102.09631, Algorithm 2, on all directions at once (orthogonal iteration, Golub and Van Loan 8.2.4).
    """
    if rank < 1:
        raise ValueError(f"rank: got {rank}, expected at least 1")
    wide = widened(factor)
    matrix, scale = wide, 1.0
    width = min(rank + oversampling, *matrix.shape)
    y, x = _iterate(matrix, _start(matrix, width, basis, seed), iterations)
    if not SAFE[0] < float(x.abs().max()) < SAFE[1]:  # also detects NaN
        matrix, scale = normalised(wide)
        if scale == 0:
            return empty_factor(factor)
        y, x = _iterate(matrix, _start(matrix, width, basis, seed), iterations)
    rotation, sigma, directions = decomposed(x, rank, max(tolerance, rank_tolerance(matrix)))
    return as_given(Factor((rotation @ y) * (sigma * scale), directions), factor)


def _iterate(matrix: Matrix, x: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return y with orthonormal rows [k, out], and Gᵀ y as rows [k, in]."""
    for iteration in range(iterations):
        y = orthonormal(right(matrix, orthonormal(x) if iteration else x))
        x = left(matrix, y)
    return y, x


def _start(matrix: Matrix, width: int, basis: Tensor | None, seed: int) -> Tensor:
    """Return rows [width, in]: the known directions, and random ones in the matrix's row space.

    Random rows are products with ΔᵀA, like everything that is sent: a start from rows of A would show in the result of
    few iterations, and reveal more about single samples than their gradient does.
    """
    like, (out, columns) = leaf(matrix), matrix.shape
    known = like.new_zeros(0, columns) if basis is None else basis[:width].to(like)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(width - len(known), out, generator=generator).to(like)
    return torch.cat([known, left(matrix, drawn)])
