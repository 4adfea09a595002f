"""The reduction of the authors' published code, its faults included: what their numbers were measured with."""

from __future__ import annotations

import torch

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.reduction.operators import as_given, empty_factor, leaf, left, normalised, right, widened


def published(factor: Matrix, rank: int, *, tolerance: float = 1e-3, seed: int = 0, iterations: int = 5) -> Factor:
    """Reduce a matrix G as the authors do: few power iterations on GGᵀ, and deflation alone.

    A component takes as many iterations as are asked for, converged or not. From the third on, one that coincides with
    the one before ends the search, and takes that one along. A search that ends otherwise loses its last component.

    Args:
        factor: G = Δᵀ A as a factor (Δ [n, out], A [n, in]), or G itself [out, in].
        rank: how many components are looked for; one fewer is returned at most.
        tolerance: distance of two unit vectors below which they coincide.
        seed: of the random starts, uniform on [0, 1).
        iterations: power iterations per component.

    Returns:
        Q [k, out] and P [k, in] with rows of unit length, not orthogonal ones, k < r. A zero matrix has k = 0.

    Raises:
        ValueError: the matrix holds NaN or infinity.

    Source: the recurrence of arXiv 2102.09631, Eq. 5; start, iterations, tolerance and stop as in trendscenter's
        coinstac-dinunet (distrib/rankdad).
    """
    matrix, scale = normalised(widened(factor))
    if scale == 0:
        return empty_factor(factor)
    like, (out, columns) = leaf(matrix), matrix.shape
    generator = torch.Generator().manual_seed(seed)
    delta, activation = like.new_zeros(rank, out), like.new_zeros(rank, columns)
    found, sizes, count = like.new_zeros(rank, out), like.new_zeros(rank), 0
    for _ in range(rank):
        b = torch.rand(out, generator=generator, dtype=torch.float64).to(like)
        for _ in range(iterations):
            known = found[:count]
            b = right(matrix, left(matrix, b)) - known.T @ (sizes[:count].square() * (known @ b))
            b = b / torch.linalg.vector_norm(b)
        image = left(matrix, b)
        sigma = torch.linalg.vector_norm(image)
        if not sigma > 0:  # nothing is left: b is 0 / 0
            break
        if count > 1 and torch.linalg.vector_norm(b - found[count - 1]) < tolerance:
            count -= 1
            break
        found[count], sizes[count] = b, sigma
        delta[count], activation[count] = (sigma * scale) * b, image / sigma
        count += 1
    else:
        count -= 1
    return as_given(Factor(delta[:count], activation[:count]), factor)
