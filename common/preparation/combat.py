"""ComBat over sites (Johnson 2007, Fortin 2018): removes each site's shift and scale of the features.

A feature is y = mean + covariates · slopes + site's location + site's scale · noise. Slopes are from least squares with
a dummy for every site; centring rows at each site replaces the dummies, and products of centred rows add up over sites.
So do the squared residuals, in a second stage. A site then estimates its own location and scale, in units of the pooled
deviation, and shrinks them towards their mean over its features.

Rows without a value of a feature are left out of that feature's sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rankdad.common.preparation.moments import BLOCK, ROUND_OFF, means
from rankdad.common.preparation.stages import RAW, Field, Stage

COLLINEAR = 1e-10  # of the covariates' correlations: directions with less have no slope
STEEPEST = 1e20  # slope
SETTLED = 1e-10
ITERATIONS = 1000


class Pooled(NamedTuple):
    """Statistics of each feature over all sites.

    Args:
        grand_mean: [features], at covariates 0, mean of sites weighted by their rows.
        slopes: [covariates, features], with least norm if covariates are collinear.
        deviation: [features], standard deviation within sites and around the slopes; 0 leaves the feature unchanged.
    """

    grand_mean: Tensor
    slopes: Tensor
    deviation: Tensor


class SiteEffects(NamedTuple):
    """A site's shift and scale, in units of the pooled deviation: [features] each."""

    location: Tensor
    spread: Tensor


def effects_stage(features: int, covariates: int, gaps: bool) -> Stage:
    """Return the first stage; if rows may lack a feature, covariates are summed for each feature."""
    groups, pairs = features if gaps else 1, covariates * (covariates - 1) // 2
    return Stage(
        (
            Field("counts", (groups,), "count"),
            Field("covariates", (groups, covariates), "sum", RAW),
            Field("squares", (groups, covariates), "square"),
            Field("products", (groups, pairs), "sum"),
            Field("sums", (features,), "sum", RAW),
            Field("cross", (covariates, features), "sum"),
        )
    )


def residuals_stage(features: int) -> Stage:
    """Return the second stage."""
    return Stage((Field("squares", (features,), "square"),))


def effects(features: Tensor, covariates: Tensor, gaps: bool) -> dict[str, Tensor]:
    """Return a site's sums for the first stage."""
    y = _centred(features)
    present = _present(features, gaps)
    rows, columns = _pairs(covariates.shape[1])
    squares, products, cross = [], [], []
    for x, at in _centred_covariates(covariates, present):
        squares.append(x.square().sum(0))
        products.append((x[:, :, rows] * x[:, :, columns]).sum(0))
        cross.append(torch.einsum("ngp,ng->pg", x, y[:, at]) if gaps else x[:, 0].T @ y)
    number = present.to(torch.float64)
    return {
        "counts": number.sum(0),
        "covariates": number.T @ covariates,
        "squares": torch.cat(squares),
        "products": torch.cat(products),
        "sums": torch.where(present, features, 0.0).sum(0),
        "cross": torch.cat(cross, 1),
    }


def contradiction(sums: dict[str, Tensor]) -> str | None:
    """Return why no rows can have a site's sums for the first stage, which would give unbounded slopes; or None."""
    most = (sums["squares"] * sums["counts"][:, None]).sqrt().T * 2 * RAW
    return "cross: expected no more than the squares allow" if (sums["cross"].abs() > most).any() else None


def residuals(features: Tensor, covariates: Tensor, gaps: bool, slopes: Tensor) -> dict[str, Tensor]:
    """Return a site's sums of squares around its own means and the common slopes."""
    away = _centred(features)
    for x, at in _centred_covariates(covariates, _present(features, gaps)):
        if gaps:
            away[:, at] -= (x * slopes[:, at].T).sum(2)
        else:
            away -= x[:, 0] @ slopes
    squares = away.square().sum(0)
    return {"squares": torch.where(squares > len(features) * _noise(features).square(), squares, 0.0)}


def lines(totals: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return grand means and slopes from the totals of the first stage."""
    counts, cross = totals["counts"], totals["cross"]
    rows, columns = _pairs(len(cross))
    lengths = totals["squares"].sqrt()
    lengths = torch.where(lengths > 0, lengths, 1.0)
    correlations = torch.diag_embed((totals["squares"] > 0).to(torch.float64))
    pairs = (totals["products"] / lengths[:, rows] / lengths[:, columns]).clamp(-1, 1)
    correlations[:, rows, columns] = correlations[:, columns, rows] = pairs
    inverse = torch.linalg.pinv(correlations, rtol=COLLINEAR, hermitian=True) / lengths[:, :, None] / lengths[:, None]
    slopes = _of_rows((inverse @ cross.T[:, :, None]).squeeze(2).T, STEEPEST)
    at_mean = (means(counts[:, None], totals["covariates"]).T * slopes).sum(0)
    return _of_rows(means(counts, totals["sums"]) - at_mean, STEEPEST * RAW), slopes


def pooled(first: dict[str, Tensor], second: dict[str, Tensor]) -> Pooled:
    """Return the statistics from the totals of both stages."""
    return Pooled(*lines(first), means(first["counts"], second["squares"]).sqrt())


def own_effects(features: Tensor, covariates: Tensor, of_all: Pooled, empirical_bayes: bool) -> SiteEffects:
    """Return a site's location and scale; 0 and 1 for a feature without rows, scale 1 for a single row."""
    stays = of_all.deviation == 0
    unit = torch.where(stays, 1.0, of_all.deviation)
    noise = (features - of_all.grand_mean - covariates @ of_all.slopes) / unit
    noise = noise.masked_fill(stays, math.nan)
    counts = noise.isnan().logical_not().sum(0).to(torch.float64)
    location = means(counts, noise.nansum(0))
    squares = _centred(noise).square().sum(0)
    variance = squares / (counts - 1).clamp(min=1)
    varies = (counts > 1) & (variance.sqrt() > _noise(features) / unit)
    variance = torch.where(varies, variance, 1.0)
    if empirical_bayes and len(features):
        location, variance = _drawn_together(location, variance, squares, counts, varies)
    return SiteEffects(torch.where(counts > 0, location, 0.0), variance.sqrt())


def harmonised(features: Tensor, covariates: Tensor, of_all: Pooled, own: SiteEffects) -> Tensor:
    """Return features without the site's shift and scale; unchanged if their deviation is 0."""
    line = of_all.grand_mean + covariates @ of_all.slopes
    adjusted = (features - line - own.location * of_all.deviation) / own.spread + line
    as_they_are = (of_all.deviation == 0) | ((own.location == 0) & (own.spread == 1))
    return torch.where(as_they_are | (adjusted.abs() > RAW) | adjusted.isnan(), features, adjusted)


def _of_rows(values: Tensor, most: float) -> Tensor:
    """Return values, with 0 for those that no rows can have, because a site may send invented sums."""
    return torch.where(values.abs() <= most, values, 0.0)


def _drawn_together(
    location: Tensor, variance: Tensor, squares: Tensor, counts: Tensor, varies: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the posterior of each feature's location and variance; the priors are their moments over the features."""
    seen = counts > 0
    center, width = _moments(location[seen])
    middle, breadth = _moments(variance[varies])
    mean, spread = location, variance
    for _ in range(ITERATIONS):
        drawn = (width * counts * location + spread * center) / (width * counts + spread)
        around = squares + counts * (location - drawn).square()
        # (b + around / 2) / (a − 1 + counts / 2) of the inverse gamma, times its variance: that may be 0
        posterior = (breadth * (around / 2 + middle) + middle**3) / (breadth * (counts / 2 + 1) + middle**2)
        posterior = torch.where(varies, posterior, variance)
        settled = torch.stack([(drawn - mean).abs(), (posterior - spread).abs()]).max() <= SETTLED
        mean, spread = drawn, posterior
        if settled:
            break
    return mean, spread


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance; 0 where there are too few values for one."""
    zero = torch.zeros((), dtype=torch.float64)
    return values.mean() if len(values) else zero, values.var() if len(values) > 1 else zero


def _noise(features: Tensor) -> Tensor:
    """Return the round-off deviation of each feature."""
    if not len(features):
        return torch.zeros(features.shape[1], dtype=torch.float64)
    return ROUND_OFF * features.abs().nan_to_num(nan=0.0).amax(0)


def _pairs(covariates: int) -> tuple[Tensor, Tensor]:
    """Return the first and second covariate of each pair."""
    first, second = torch.triu_indices(covariates, covariates, offset=1)
    return first, second


def _present(features: Tensor, gaps: bool) -> Tensor:
    """Return which rows have which feature, or that all have all."""
    return features.isnan().logical_not() if gaps else torch.ones(len(features), 1, dtype=torch.bool)


def _centred(values: Tensor) -> Tensor:
    """Return deviations from each column's mean, 0 for NaN; those of a constant column are exactly 0."""
    if not len(values):
        return values
    present = values.isnan().logical_not()
    first = values.gather(0, present.to(torch.uint8).argmax(0, keepdim=True))
    away = torch.where(present, values - first, 0.0)
    mean = away.sum(0) / present.sum(0).clamp(min=1)
    return torch.where(present, away - mean, 0.0)


def _centred_covariates(covariates: Tensor, present: Tensor) -> Iterator[tuple[Tensor, slice]]:
    """Yield covariates [n, groups, covariates] centred over the present rows, and the groups' positions."""
    rows, size = covariates.shape
    step = max(1, BLOCK // max(1, rows * size))
    for start in range(0, present.shape[1], step):
        at = slice(start, start + step)
        wide = covariates[:, None].masked_fill(present[:, at, None].logical_not(), math.nan)
        yield _centred(wide.flatten(1)).reshape(wide.shape), at
