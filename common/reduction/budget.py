"""A byte budget shared out over layers: rows go where they take away most of the error for their size."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from common.factors import Factor


def share_out(factors: Sequence[Factor | Tensor], costs: Sequence[int], budget: int) -> list[int]:
    """Return how many leading rows of each reduced factor to send.

    A row's worth is its σ², by which the squared error falls, over its cost: greedy is then best but for what is left
    over at the end.

    Args:
        factors: Δ carrying the singular values, in falling order; matrices are passed over.
        costs: of one row of each.
        budget: largest sum of costs.

    Source: the fractional knapsack (Dantzig 1957) on Eckart and Young's errors.
    """
    offers = [
        (sigma_squared / cost, index, cost)
        for index, (factor, cost) in enumerate(zip(factors, costs, strict=True))
        if isinstance(factor, Factor)
        for sigma_squared in factor.delta.double().square().sum(dim=1).tolist()
    ]
    counts = [0] * len(factors)
    closed: set[int] = set()
    for _, index, cost in sorted(offers, key=lambda offer: -offer[0]):
        if cost > budget or index in closed:
            closed.add(index)  # a layer's later rows without an earlier one would not be its leading ones
            continue
        counts[index] += 1
        budget -= cost
    return counts
