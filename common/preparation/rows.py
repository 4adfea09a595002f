"""The rows that a preparation is fitted on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.preparation import moments


@dataclass(frozen=True, eq=False)
class Rows:
    """The training rows of one fold at one site; there may be none.

    Args:
        inputs: [n, *shape], float32 or float64, NaN where a value is missing; int64 for tokens.
        labels: int64 [n] for classes, float64 [n] for numbers, float64 [n, labels] of 0 and 1.
        covariates: float64 [n, …], what harmonisation keeps; None where it keeps nothing.
    """

    inputs: Tensor
    labels: Tensor
    covariates: Tensor | None = None

    def of_at_least(self, fewest: int) -> Rows:
        """Return what may leave a site that lets out no sum of fewer samples: no rows, or rows without some columns."""
        if len(self.inputs) < fewest:
            covariates = None if self.covariates is None else self.covariates[:0]
            return Rows(self.inputs[:0], self.labels[:0], covariates)
        if not self.inputs.is_floating_point() or not self.inputs.isnan().any():
            return self
        few = moments.samples_with(self.inputs) < fewest
        inputs = self.inputs.masked_fill(moments.along_channels(few, self.inputs.ndim), math.nan)
        return Rows(inputs, self.labels, self.covariates)
