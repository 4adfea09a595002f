"""Rare values: what a table's column says of one or two patients alone, gradients and sums would tell of them alone.

A gradient is a sum over patients, each times their own columns. A column that is 0 but for one patient makes of it that
patient's. So a site moves rare values to usual ones before anything is computed; what it moves never leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.preparation.rows import count_behind


def without_rare(
    inputs: Tensor,
    levels: Sequence[tuple[int, int]],
    bounds: Tensor,
    groups: Tensor | None,
    fewest: int,
) -> Tensor:
    """Return a table in which no value that few patients have sets them apart from all others.

    Levels, gaps, values that differ from one that all others share, and values beyond a bound are rare if patients have
    them, but fewer than `fewest`. A rare level becomes the most frequent one, and so does a rare gap among levels; a
    rare gap among numbers their mean; a rare value beyond a bound the nearest within. Where few have any value, all are
    gaps.

    Args:
        inputs: [rows, columns], NaN where a value is missing.
        levels: of each column with levels its first place among the inputs, and how many it has.
        bounds: least and most number of each place, [2, columns]; infinite where there is none.
        groups: int64 [rows], which patient each row is of; None where each is of another.
        fewest: patients.

    Returns:
        A copy.
    """
    found = inputs.clone()

    def rare(members: Tensor) -> Tensor:
        """Return which members are too few in their column, bool [rows, columns]."""
        count = count_behind(members, groups)
        return members & (count > 0) & (count < fewest)

    found[rare(~found.isnan())] = torch.nan
    for first, width in levels:
        own = found[:, first : first + width]  # a view
        usual = torch.zeros(width, dtype=own.dtype)
        usual[own.nansum(0).argmax()] = 1
        for members in (own.isnan(), own == 1):
            own[rare(members).any(1)] = usual
    gaps = rare(found.isnan())
    found = torch.where(gaps, found.nanmean(0), found)
    for sign, bound in zip((-1, 1), bounds, strict=True):
        out = sign * found >= sign * bound
        nearest = sign * (sign * found).masked_fill(out | found.isnan(), -torch.inf).amax(0)
        found = torch.where(rare(out) & nearest.isfinite(), nearest, found)
    one_each = found if groups is None else found[_firsts(groups)]
    usual = one_each.nanmedian(0).values
    return torch.where(rare((found != usual) & ~found.isnan()), usual, found)


def _firsts(groups: Tensor) -> Tensor:
    """Return the place of a row of each group."""
    names, of = groups.unique(return_inverse=True)
    return torch.zeros(len(names), dtype=torch.int64).scatter_(0, of, torch.arange(len(groups)))
