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

    All folds together tell the sums of all samples, and so those of what a fold holds out.

    Args:
        splits: of every fold.
        members: [samples, sets], whether a sample is in a set; or its part of a group, no group being in two parts of
            a fold: then groups are counted.
        tested: how many folds hold out samples to test; one more holds out none but for validation.

    Returns:
        float64 [sets]; infinity where no fold has one of them. No samples at all tell nothing, and do not count.
    """
    members = members.double()
    total, least = members.sum(0), torch.full((members.shape[1],), torch.inf, dtype=torch.float64)
    for fold, split in enumerate(splits):
        trained = members[split.train].sum(0)
        for exact in (trained, total - trained) if fold < tested and len(splits) > 1 else (trained,):
            count = exact.round()  # parts of a group add up to one
            least = torch.where(count > 0, torch.minimum(least, count), least)
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
