"""How few samples are behind a site's sums over folds: behind each, and behind the difference of two."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.local.data.folds import Split


def fewest_behind(splits: Sequence[Split], members: Tensor, tested: int) -> Tensor:
    """Return for each set of samples how much of it, at least, a fold trains on or, of several folds, holds out.

    All folds together tell the sums of all samples, and so those of what a fold holds out. Where a training goes on
    with all that the one before it had, and more, as after candidates, the two tell the sums of what is more.

    Args:
        splits: of every training, in the run's order.
        members: [samples, sets], whether a sample is in a set; or its part of a group, no group being in two parts of
            a fold: then groups are counted.
        tested: how many of the trainings hold out samples to test; those behind them none but for validation.

    Returns:
        float64 [sets]; infinity where no fold has one of them. No samples at all tell nothing, and do not count.
    """
    members = members.double()
    total, least = members.sum(0), torch.full((members.shape[1],), torch.inf, dtype=torch.float64)
    before = torch.arange(0)
    for fold, split in enumerate(splits):
        trained = members[split.train].sum(0)
        told = [trained]
        if fold < tested and len(splits) > 1:
            told.append(total - trained)
        if 0 < len(before) < len(split.train) and bool(torch.isin(before, split.train).all()):
            told.append(trained - members[before].sum(0))
        for exact in told:
            count = exact.round()  # parts of a group add up to one
            least = torch.where(count > 0, torch.minimum(least, count), least)
        before = split.train
    return least


def levels_of(spec: RunSpec, covariates: Tensor) -> list[tuple[str, Tensor]]:
    """Return the kept columns that have levels, with which samples have which: bool [samples, levels]."""
    found, at = [], 0
    for column in spec.preparation.keep:
        levels = spec.data.levels(column) if isinstance(spec.data, TableData) else 0
        width = levels - 1 if levels else 1
        own, at = covariates[:, at : at + width] > 0.5, at + width
        if levels:
            found.append((column, torch.cat([~own.any(1, keepdim=True), own], dim=1)))
    return found
