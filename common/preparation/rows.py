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
    """The training rows of one fold at one site; there may be none.

    Args:
        inputs: [n, *shape], float32 or float64, NaN where a value is missing; int64 for tokens; maybe read when
            they are asked for.
        labels: int64 [n] for classes, float64 [n] for numbers, float64 [n, labels] of 0 and 1.
        covariates: float64 [n, …], what harmonisation keeps; None where it keeps nothing.
        groups: int64 [n], what each row belongs to, such as a patient; None where each is its own.
        held: bool [n, channels], values that are NaN among the inputs because too few would be told, or because there
            are none: nobody is told which; None where all that is NaN is missing.
    """

    inputs: Inputs
    labels: Tensor
    covariates: Tensor | None = None
    groups: Tensor | None = None
    held: Tensor | None = None

    @property
    def people(self) -> int:
        """How many groups the rows are of; without groups how many they are."""
        return len(self.labels) if self.groups is None else len(self.groups.unique())

    def of_at_least(self, fewest: int) -> Rows:
        """Return what may leave a site that lets out no sum of fewer groups: no rows, or rows without some columns."""
        if self.people < fewest:
            covariates, groups = (None if one is None else one[:0] for one in (self.covariates, self.groups))
            return Rows(self.inputs[:0], self.labels[:0], covariates, groups)
        if not isinstance(self.inputs, Tensor) or not has_gaps(self.inputs):
            return self
        present = moments.present(self.inputs)
        few = count_behind(present, self.groups) < fewest
        inputs = self.inputs.masked_fill(few, math.nan)
        held = (few & present.any(0)).expand_as(present)  # a column without any value is missing, which all may know
        return replace(self, inputs=inputs, held=held if self.held is None else held | self.held)


def count_behind(members: Tensor, groups: Tensor | None) -> Tensor:
    """Return how many groups each set of samples is of; without groups how many samples it has.

    Args:
        members: bool [samples, sets].
        groups: int64 [samples].
    """
    if groups is None:
        return members.sum(0)
    names, of = groups.unique(return_inverse=True)
    sums = torch.zeros(len(names), members.shape[1], dtype=torch.int64).index_add_(0, of, members.long())
    return (sums > 0).sum(0)
