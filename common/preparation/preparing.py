"""What is done to inputs and labels before they are trained on, fitted in rounds in which sites' sums are added up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from common.data import TableData
from common.errors import SpecError
from common.preparation import labels, moments
from common.preparation.fit import Fit, OwnFit
from common.preparation.layout import Layout
from common.preparation.stages import Field, Stage
from common.spec import RunSpec
from common.tasks import Regression


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


class Preparing:
    """The preparation of a run's samples.

    Args:
        spec: of the run.

    Raises:
        SpecError: tokens are to be standardised.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._task, self._standardise = spec.task, spec.preparation.standardise
        self._tokens = spec.data.tokens is not None
        if self._tokens and self._standardise != "none":
            raise SpecError(
                "preparation.standardise", f'got {self._standardise}, expected "none": tokens are no numbers'
            )
        self._impute = isinstance(spec.data, TableData) and spec.data.missing == "impute"
        self._layout = Layout.of(spec)
        self._balance = not isinstance(spec.task, Regression) and spec.task.class_weights == "balanced"
        self._stages = self._needed(isinstance(spec.data, TableData))

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the rounds that the spec needs, in order."""
        return tuple(self._stages)

    def size(self, stage: str) -> int:
        """Return how many numbers a site sends per fold."""
        return self._stages[stage].size

    def check(self, stage: str, contribution: Tensor) -> str | None:
        """Return what is wrong with a vector of a stage, in words that begin with its part; None where nothing is."""
        return self._stages[stage].check(contribution)

    def contribution(self, stage: str, totals: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """Return what a site sends of one fold's rows.

        Args:
            stage: its name.
            totals: this fold's sums over all sites of the stages before, by name.
            rows: those whose sums may leave the site; none give zeros.

        Raises:
            ValueError: the rows hold numbers too large to be squared, or do not fit the spec.
        """
        vector = self._stages[stage].pack(self._summed(stage, totals, rows))
        problem = self.check(stage, vector)
        if problem:
            raise ValueError(f"{stage}: {problem}")
        return vector

    def fit(self, totals: Mapping[str, Tensor]) -> Fit:
        """Return what the totals of all stages say."""
        found = {name: stage.unpack(totals[name]) for name, stage in self._stages.items()}
        known: dict[str, Tensor] = {}
        target = (0.0, 1.0)
        rows = 0.0
        if "labels" in found:
            rows = float(found["labels"]["rows"])
            if not isinstance(self._task, Regression):
                counts = found["labels"]["counts"]
                known["class_counts"] = counts.to(torch.int64)
                if self._balance:
                    known["class_weights"] = labels.balanced(self._task, rows, counts)
        if "label-squares" in found:
            around = moments.means(*found["labels"].values())
            mean, scale = moments.mean_and_scale(found["labels"]["rows"], around, *found["label-squares"].values())
            target = (float(mean), float(scale))
        if "sums" in found:
            mean = moments.means(*found["sums"].values())
            if "squares" in found:
                mean, scale = moments.mean_and_scale(found["sums"]["counts"], mean, *found["squares"].values())
                known["mean"], known["scale"] = self._but_levels(mean, scale)
            if self._impute:
                known["fill"] = mean
        return Fit(int(rows), target_mean=target[0], target_scale=target[1], **known)

    def own(self, fit: Fit, rows: Rows) -> OwnFit:
        """Return what a site's training rows say beyond the fit; of no rows, what changes nothing."""
        if not len(rows.inputs) or self._standardise != "site":
            return OwnFit()
        mean, scale = self._but_levels(*moments.own_mean_and_scale(rows.inputs, self._layout.channels))
        return OwnFit(mean, scale)

    def apply(
        self, fit: Fit, own: OwnFit | None, inputs: Tensor, covariates: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return inputs as the network gets them: harmonised, imputed, standardised.

        Args:
            fit: of all sites.
            own: of the site that the inputs are from; None where it had no training rows.
            inputs: [n, *shape]; tokens are returned as they are.
            covariates: float64 [n, …] of the same samples.
            dtype: of what is returned.
        """
        if self._tokens:
            return inputs
        mean, scale = (
            (fit.mean, fit.scale) if self._standardise == "federated" or own is None else (own.mean, own.scale)
        )
        if fit.fill is None and (mean is None or scale is None):
            return inputs.to(dtype)
        prepared = torch.empty(inputs.shape, dtype=dtype)
        done = 0
        for block in moments.blocks(inputs):
            values = block.to(torch.float64)
            if fit.fill is not None:
                values = torch.where(values.isnan(), moments.along_channels(fit.fill, values.ndim), values)
            if mean is not None and scale is not None:
                values = (values - moments.along_channels(mean, values.ndim)) / moments.along_channels(
                    scale, values.ndim
                )
            prepared[done : done + len(block)] = values
            done += len(block)
        return prepared

    def apply_labels(self, fit: Fit, labels: Tensor) -> Tensor:
        """Return labels as the network learns them: numbers in standard deviations from their mean."""
        return (labels - fit.target_mean) / fit.target_scale if isinstance(self._task, Regression) else labels

    def invert_labels(self, fit: Fit, outputs: Tensor) -> Tensor:
        """Return a network's outputs in the unit of the labels."""
        return outputs * fit.target_scale + fit.target_mean if isinstance(self._task, Regression) else outputs

    def _needed(self, table: bool) -> dict[str, Stage]:
        stages: dict[str, Stage] = {}
        task, channels = self._task, (self._layout.channels,)
        rows = Field("rows", (), "count")
        if isinstance(task, Regression):
            stages["labels"] = Stage((rows, Field("sum", (), "sum")))
            stages["label-squares"] = Stage((Field("deviations", (), "sum"), Field("squares", (), "square")))
        elif self._balance or table:
            stages["labels"] = Stage((rows, Field("counts", (task.outputs,), "count")))
        if self._impute or self._standardise == "federated":
            stages["sums"] = Stage((Field("counts", channels, "count"), Field("sums", channels, "sum")))
        if self._standardise == "federated":
            stages["squares"] = Stage((Field("deviations", channels, "sum"), Field("squares", channels, "square")))
        return stages

    def _summed(self, stage: str, totals: Mapping[str, Tensor], rows: Rows) -> dict[str, Tensor]:
        """Return the values of a stage's fields."""
        before = {name: self._stages[name].unpack(total) for name, total in totals.items() if name in self._stages}
        if stage == "labels":
            count = torch.tensor(float(len(rows.labels)))
            if isinstance(self._task, Regression):
                return {"rows": count, "sum": rows.labels.to(torch.float64).sum()}
            return {"rows": count, "counts": labels.counts_of(self._task, rows.labels)}
        if stage == "label-squares":
            away = rows.labels.to(torch.float64) - moments.means(*before["labels"].values())
            return {"deviations": away.sum(), "squares": away.square().sum()}
        if stage == "sums":
            counts, sums = moments.sums(rows.inputs, self._layout.channels)
            return {"counts": counts, "sums": sums}
        deviations, squares = moments.squares(rows.inputs, moments.means(*before["sums"].values()))
        return {"deviations": deviations, "squares": squares}

    def _but_levels(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Leave columns of 0 and 1 as they are."""
        return torch.where(self._layout.levels, 0.0, mean), torch.where(self._layout.levels, 1.0, scale)
