"""Applies a fitted preparation to inputs and labels, in training, prediction and export."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from rankdad.common.preparation import combat, moments
from rankdad.common.preparation.fit import Fit, OwnFit
from rankdad.common.preparation.inputs import Inputs
from rankdad.common.preparation.layout import Layout
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Regression


class Transform(nn.Module):
    """Harmonise, impute and standardise inputs; standardise numeric labels.

    Args:
        spec: of the run.
        layout: of its data.
        fit: of all sites.
        own: of the inputs' site; None if it had no training rows.
    """

    def __init__(self, spec: RunSpec, layout: Layout, fit: Fit, own: OwnFit | None) -> None:
        super().__init__()
        self.fit, self.own = fit, own or OwnFit()
        self._layout = layout
        self._tokens, self._numbers = spec.data.tokens is not None, isinstance(spec.task, Regression)
        known = self.own if spec.preparation.standardise == "site" else fit
        self.fill: Tensor | None
        self.mean: Tensor | None
        self.scale: Tensor | None
        self.target: Tensor
        for name, value in (("fill", fit.fill), ("mean", known.mean), ("scale", known.scale)):
            if value is None or self._tokens:  # torch.export does not support buffers that are None
                setattr(self, name, None)
            else:
                self.register_buffer(name, value.to(torch.float64))
        self.register_buffer("target", torch.tensor([fit.target_mean, fit.target_scale], dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs [n, *shape] without site effects, imputed and standardised, as float64."""
        if self.fill is None and self.mean is None:
            return inputs
        values, at = inputs.to(torch.float64), (self._layout.axis, inputs.ndim - 1)
        if self.fill is not None:
            values = torch.where(values.isnan(), self.fill, values)
        if self.mean is not None and self.scale is not None:
            values = values - moments.along_channels(self.mean, *at)
            values = values / moments.along_channels(self.scale, *at)
        return values

    def prepared(self, inputs: Inputs, covariates: Tensor | None, dtype: torch.dtype) -> Inputs:
        """Return inputs for the network.

        Args:
            inputs: [n, *shape]; tokens are returned unchanged, lazy inputs are prepared when they are read.
            covariates: float64 [n, …] of the same samples.
            dtype: of the result.
        """
        if self._tokens:
            return inputs
        if not isinstance(inputs, Tensor):
            return inputs.map(partial(self._in_blocks, dtype=dtype), dtype)
        if self.fit.pooled and self.own.effects:
            inputs = without_effects(self._layout, self.fit.pooled, self.own.effects, inputs, covariates)
        return self._in_blocks(inputs, dtype)

    def _in_blocks(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Apply `forward` in blocks, with few numbers at a time in float64."""
        if self.fill is None and self.mean is None:
            return inputs.to(dtype)
        made, done = torch.empty(inputs.shape, dtype=dtype), 0
        for block in moments.blocks(inputs):
            made[done : done + len(block)] = self(block)
            done += len(block)
        return made

    def as_learned(self, labels: Tensor) -> Tensor:
        """Standardise numeric labels; return others unchanged."""
        return (labels - self.fit.target_mean) / self.fit.target_scale if self._numbers else labels

    def in_units(self, outputs: Tensor) -> Tensor:
        """Convert standardised outputs or labels back to the label's unit; return others unchanged."""
        return outputs.double() * self.target[1] + self.target[0] if self._numbers else outputs


def without_effects(
    layout: Layout, of_all: combat.Pooled, own: combat.SiteEffects, inputs: Tensor, covariates: Tensor | None
) -> Tensor:
    """Return inputs without a site's effects, float64."""
    columns = combat.harmonised(*measured(layout, inputs, covariates), of_all, own)
    return inputs.to(torch.float64).index_copy(1, layout.harmonised, columns)


def measured(layout: Layout, inputs: Tensor, covariates: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the columns to harmonise and the covariates, float64.

    Raises:
        ValueError: the covariates do not match the spec, or one is missing.
    """
    expected = (len(inputs), layout.covariates)
    given = torch.zeros(len(inputs), 0) if covariates is None else covariates
    if given.shape != expected or not given.isfinite().all():
        raise ValueError(f"covariates: got {list(given.shape)}, expected {list(expected)}, and no number missing")
    return inputs[:, layout.harmonised].to(torch.float64), given.to(torch.float64)
