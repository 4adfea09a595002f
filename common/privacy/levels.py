"""Rare values: a column's values of one or two patients, which gradients and sums would reveal.

A gradient is a sum over patients of terms times their columns. A column that is 0 for all but one patient makes it that
patient's. So a site replaces rare values by usual ones before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.preparation.rows import count_behind

BLOCK = 1000  # sets compared at a time


def without_rare(
    inputs: Tensor,
    levels: Sequence[tuple[int, int]],
    bounds: Tensor,
    groups: Tensor | None,
    fewest: int,
) -> Tensor:
    """Return a table in which no value of few patients sets them apart.

    Levels, missing values, values that differ from one that all others share, and values beyond a bound are rare if
    fewer than `fewest` patients have them. A rare level, or a rare missing level, becomes the most frequent one; a rare
    missing number the mean; a rare value beyond a bound the nearest one within. If few have any value, all become
    missing. Two levels or sets of missing values that differ by few patients are reduced to their intersection, because
    the difference of their columns' sums would be these few.

    Args:
        inputs: [rows, columns], NaN where a value is missing.
        levels: for each categorical column, its first input and number of levels.
        bounds: lower and upper bound of each input, [2, columns]; infinite for none.
        groups: patient of each row, int64 [rows]; None if each is another patient.
        fewest: number of patients.

    Returns:
        A copy.
    """
    found = inputs.clone()

    def rare(members: Tensor) -> Tensor:
        """Return which members are rare in their column, bool [rows, columns]."""
        count = count_behind(members, groups)
        return members & (count > 0) & (count < fewest)

    found[rare(~found.isnan())] = torch.nan
    found = _without_near(found, levels, groups, fewest)
    for first, width in levels:
        own = found[:, first : first + width]  # a view
        usual = torch.zeros(width, dtype=own.dtype)
        usual[_shared(own == 1, groups).argmax()] = 1
        for members in (own.isnan(), own == 1):
            own[rare(members).any(1)] = usual
    gaps = rare(found.isnan())
    found = torch.where(gaps, found.nanmean(0), found)
    for sign, bound in zip((-1, 1), bounds, strict=True):
        out = sign * found >= sign * bound
        nearest = sign * (sign * found).masked_fill(out | found.isnan(), -torch.inf).amax(0)
        found = torch.where(rare(out) & nearest.isfinite(), nearest, found)
    one_each = found if groups is None else found[_firsts(groups)]
    two, more = _of_two(found, groups)
    usual = torch.where(two, more, one_each.nanmedian(0).values)
    return torch.where(rare((found != usual) & ~found.isnan()), usual, found)


def _without_near(found: Tensor, levels: Sequence[tuple[int, int]], groups: Tensor | None, fewest: int) -> Tensor:
    """Return a table in which no two sets of unusual levels or missing values differ by few patients."""
    found, leveled = found.clone(), torch.zeros(found.shape[1], dtype=torch.bool)
    two, usual = _of_two(found, groups)
    fill = found.nanmean(0)
    for first, width in levels:
        block = slice(first, first + width)
        leveled[block] = True
        usual[block] = 0
        usual[first + int(_shared(found[:, block] == 1, groups).argmax())] = 1
        fill[block] = usual[block]
    codes = two & ~(leveled & (usual == 1))
    while True:
        gaps, others = found.isnan(), (found != usual) & ~found.isnan() & codes
        sets = torch.cat([gaps, others], 1)
        places = (sets.any(0) & ~sets.all(0)).nonzero().flatten()  # an empty column has no value to fill in
        moved = apart(sets[:, places], groups, fewest)
        if not moved.any():
            return found
        rows, which = moved.nonzero(as_tuple=True)
        for row, place in zip(rows.tolist(), places[which].tolist(), strict=True):
            column = place % found.shape[1]
            own = next((slice(at, at + width) for at, width in levels if at <= column < at + width), None)
            block = slice(column, column + 1) if own is None else own
            found[row, block] = (fill if place < found.shape[1] else usual)[block]


def _of_two(found: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return which columns have two values, and the more frequent one of each column's smallest and largest value."""
    low, high = found.nan_to_num(torch.inf).amin(0), found.nan_to_num(-torch.inf).amax(0)
    fewer, more = (_shared(found == one, groups) for one in (low, high))
    two = ((found == low) | (found == high) | found.isnan()).all(0) & (low < high)
    return two, torch.where(more > fewer, high, low)


def _shared(members: Tensor, groups: Tensor | None) -> Tensor:
    """Return sort keys of sets: by number of patients, then by rows, int64 [sets]."""
    return count_behind(members, groups) * len(members) + members.sum(0)


def apart(sets: Tensor, groups: Tensor | None, fewest: int) -> Tensor:
    """Return members of a set that are not in another set from which few patients separate it, bool [rows, sets].

    Args:
        sets: bool [rows, sets].
        groups: patient of each row, int64 [rows]; None if each is another patient.
        fewest: number of patients.
    """
    of = torch.arange(len(sets)) if groups is None else groups.unique(return_inverse=True)[1]
    most = (fewest - 1) * int(of.bincount().max()) if len(of) else 0  # largest number of rows of so few patients
    rows, moved, start = sets.float(), torch.zeros_like(sets), 0
    sizes = rows.sum(0)
    for block in rows.split(BLOCK, 1):
        differ = sizes[start : start + block.shape[1], None] + sizes - 2 * block.T @ rows
        for one, other in ((differ > 0) & (differ <= most)).nonzero().tolist():
            own, its = sets[:, start + one], sets[:, other]
            if len(of[own ^ its].unique()) < fewest:
                moved[:, start + one] |= own & ~its
        start += block.shape[1]
    return moved


def _firsts(groups: Tensor) -> Tensor:
    """Return the position of the first row of each group."""
    names, of = groups.unique(return_inverse=True)
    return torch.full((len(names),), len(groups)).scatter_reduce(0, of, torch.arange(len(groups)), "amin")
