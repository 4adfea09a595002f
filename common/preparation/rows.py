"""The rows that a preparation is fitted on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankdad.common.preparation import moments
from rankdad.common.preparation.inputs import Inputs, has_gaps


@dataclass(frozen=True, eq=False)
class Rows:
    """The training rows of one fold at one site, possibly none.

    Args:
        inputs: [n, *shape], float32 or float64, NaN for missing values; int64 for tokens; possibly lazy.
        labels: int64 [n] for classes, float64 [n] for numbers, float64 [n, labels] of 0 and 1.
        covariates: float64 [n, …] that harmonisation keeps; None without any.
        groups: int64 [n], group of each row, such as a patient; None without groups.
        held: bool [n, channels], NaN inputs that are withheld, because there are too few values or missing ones; None
            if all NaN are missing values.
    """

    inputs: Inputs
    labels: Tensor
    covariates: Tensor | None = None
    groups: Tensor | None = None
    held: Tensor | None = None

    @property
    def people(self) -> int:
        """Number of groups; without groups, number of rows."""
        return len(self.labels) if self.groups is None else len(self.groups.unique())

    def of_at_least(self, fewest: int) -> Rows:
        """Return the rows for a site that sends no sum over fewer groups: none, or without some columns."""
        if self.people < fewest:
            covariates, groups = (None if one is None else one[:0] for one in (self.covariates, self.groups))
            return Rows(self.inputs[:0], self.labels[:0], covariates, groups)
        if not isinstance(self.inputs, Tensor) or not has_gaps(self.inputs):
            return self
        present = moments.present(self.inputs)
        few = count_behind(present, self.groups) < fewest
        inputs = self.inputs.masked_fill(few, math.nan)
        held = (few & present.any(0)).expand_as(present)  # that a column has no value at all may be known
        return replace(self, inputs=inputs, held=held if self.held is None else held | self.held)


def count_behind(members: Tensor, groups: Tensor | None) -> Tensor:
    """Return the number of groups in each set of samples; without groups, the number of samples.

    Args:
        members: bool [samples, sets].
        groups: int64 [samples].
    """
    if groups is None:
        return members.sum(0)
    names, of = groups.unique(return_inverse=True)
    sums = torch.zeros(len(names), members.shape[1], dtype=torch.int64).index_add_(0, of, members.long())
    return (sums > 0).sum(0)
