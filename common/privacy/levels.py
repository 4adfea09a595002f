"""Rare values: what a table's column says of one or two patients alone, gradients and sums would tell of them alone.

A gradient is a sum over patients, each times their own columns. A column that is 0 but for one patient makes of it that
patient's. So a site moves rare values to usual ones before anything is computed; what it moves never leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.preparation.rows import count_behind

BLOCK = 1000  # sets that are compared with all others at once


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
    gaps. Two levels or gaps by which few patients differ become those that both have: the difference of their columns'
    sums would be these few.

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
    found = _without_near(found, levels, groups, fewest)
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


def _without_near(found: Tensor, levels: Sequence[tuple[int, int]], groups: Tensor | None, fewest: int) -> Tensor:
    """Return a table in which no two sets, of unusual levels or of gaps, differ by few patients: they are made one."""
    found, leveled = found.clone(), torch.zeros(found.shape[1], dtype=torch.bool)
    one_each = found if groups is None else found[_firsts(groups)]
    usual, fill = one_each.nanmedian(0).values, found.nanmean(0)
    for first, width in levels:
        block = slice(first, first + width)
        leveled[block] = True
        usual[block] = 0
        usual[first + int(found[:, block].nansum(0).argmax())] = 1
        fill[block] = usual[block]
    low, high = found.nan_to_num(torch.inf).amin(0), found.nan_to_num(-torch.inf).amax(0)
    codes = (((found == low) | (found == high) | found.isnan()).all(0) & (low < high)) & ~(leveled & (usual == 1))
    while True:
        gaps, others = found.isnan(), (found != usual) & ~found.isnan() & codes
        sets = torch.cat([gaps, others], 1)
        places = (sets.any(0) & ~sets.all(0)).nonzero().flatten()  # where all lack a value there is none to fill in
        moved = apart(sets[:, places], groups, fewest)
        if not moved.any():
            return found
        rows, which = moved.nonzero(as_tuple=True)
        for row, place in zip(rows.tolist(), places[which].tolist(), strict=True):
            column = place % found.shape[1]
            own = next((slice(at, at + width) for at, width in levels if at <= column < at + width), None)
            block = slice(column, column + 1) if own is None else own
            found[row, block] = (fill if place < found.shape[1] else usual)[block]


def apart(sets: Tensor, groups: Tensor | None, fewest: int) -> Tensor:
    """Return who is in a set and not in another from which few patients tell it, bool [rows, sets].

    Args:
        sets: bool [rows, sets].
        groups: int64 [rows], which patient each row is of; None where each is of another.
        fewest: patients.
    """
    people = sets.float()
    if groups is not None:
        names, of = groups.unique(return_inverse=True)
        people = torch.zeros(len(names), sets.shape[1]).index_add_(0, of, people).clamp(max=1)
    moved, sizes, start = torch.zeros_like(sets), people.sum(0), 0
    for block in people.split(BLOCK, 1):
        differ = sizes[start : start + block.shape[1], None] + sizes - 2 * block.T @ people
        for one, other in ((differ > 0) & (differ < fewest)).nonzero().tolist():
            moved[:, start + one] |= sets[:, start + one] & ~sets[:, other]
        start += block.shape[1]
    return moved


def _firsts(groups: Tensor) -> Tensor:
    """Return the place of a row of each group."""
    names, of = groups.unique(return_inverse=True)
    return torch.zeros(len(names), dtype=torch.int64).scatter_(0, of, torch.arange(len(groups)))
