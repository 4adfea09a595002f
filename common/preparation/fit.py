"""Results of fitting a preparation: from all sites, and from one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankdad.common.preparation.combat import Pooled, SiteEffects
from rankdad.common.preparation.layout import Layout
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import LanguageModel, Regression


class Known:
    """Statistics as fields; None for those that are not used."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all statistics as tensors, by name."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return {
            name: value.contiguous() if isinstance(value, Tensor) else torch.tensor(value, dtype=_dtype(name))
            for name, value in known.items()
        }


@dataclass(frozen=True, eq=False)
class Fit(Known):
    """Statistics of all sites' training rows, the same everywhere; None for those that the spec does not need.

    Args:
        rows: number of rows; 0 if not counted.
        class_counts: int64, rows of every class, or with every label.
        class_weights: float64, weights of classes, positive labels or tokens in the loss; None if all are 1.
        target_mean: mean of a numeric label.
        target_scale: its standard deviation; 1 if it is constant.
        fill: float64 [channels], replacement of missing values.
        mean: float64 [channels], subtracted.
        scale: float64 [channels], divisor; infinite for constant channels.
        grand_mean: float64 [features], of harmonisation: see `common.preparation.combat.Pooled`.
        slopes: float64 [covariates, features], see there.
        deviation: float64 [features], see there.
    """

    rows: int = 0
    class_counts: Tensor | None = None
    class_weights: Tensor | None = None
    target_mean: float = 0.0
    target_scale: float = 1.0
    fill: Tensor | None = None
    mean: Tensor | None = None
    scale: Tensor | None = None
    grand_mean: Tensor | None = None
    slopes: Tensor | None = None
    deviation: Tensor | None = None

    @property
    def pooled(self) -> Pooled | None:
        """Statistics for harmonisation; None without it."""
        if self.grand_mean is None or self.slopes is None or self.deviation is None:
            return None
        return Pooled(self.grand_mean, self.slopes, self.deviation)

    @property
    def log_odds(self) -> Tensor | None:
        """Log-odds of every class or label; None if they were not counted, or are weighted equally."""
        if self.class_counts is None or self.class_weights is not None:
            return None
        return torch.logit(self.class_counts.double() / max(self.rows, 1), eps=1e-6)

    @classmethod
    def of(cls, spec: RunSpec, tensors: Mapping[str, Tensor]) -> Fit:
        """Create the statistics from `tensors`.

        Raises:
            ValueError: a tensor does not fit the spec.
        """
        layout, width = Layout.of(spec), (spec.task.outputs,)
        features = (len(layout.harmonised),)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("fill", "mean", "scale"), (layout.channels,))
        if isinstance(spec.task, LanguageModel):
            shapes |= {"class_weights": (1,)}
        elif not isinstance(spec.task, Regression):
            shapes |= {"class_counts": width, "class_weights": width}
        if spec.preparation.harmonise:
            slopes = (layout.covariates, *features)
            shapes |= {"grand_mean": features, "slopes": slopes, "deviation": features}
        return cls(**_taken(tensors, shapes, ("rows", "target_mean", "target_scale")))


@dataclass(frozen=True, eq=False)
class OwnFit(Known):
    """Statistics of one site's training rows, known only there; None without effect, as at a site without rows.

    Args:
        mean: float64 [channels], subtracted if every site standardises by itself.
        scale: float64 [channels], divisor; infinite for constant channels.
        location: float64 [features], the site's shift: see `common.preparation.combat.SiteEffects`.
        spread: float64 [features], the site's scale.
    """

    mean: Tensor | None = None
    scale: Tensor | None = None
    location: Tensor | None = None
    spread: Tensor | None = None

    @property
    def effects(self) -> SiteEffects | None:
        """The site's effects for harmonisation; None without any."""
        return None if self.location is None or self.spread is None else SiteEffects(self.location, self.spread)

    @classmethod
    def of(cls, spec: RunSpec, tensors: Mapping[str, Tensor]) -> OwnFit:
        """Create the statistics from `tensors`.

        Raises:
            ValueError: a tensor does not fit the spec.
        """
        layout = Layout.of(spec)
        shapes = dict.fromkeys(("mean", "scale"), (layout.channels,))
        if spec.preparation.harmonise:
            shapes |= dict.fromkeys(("location", "spread"), (len(layout.harmonised),))
        return cls(**_taken(tensors, shapes, ()))


def _taken(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], numbers: tuple[str, ...]
) -> dict[str, Any]:
    expected = dict(shapes) | dict.fromkeys(numbers, ())
    for name, value in tensors.items():
        if name not in expected:
            raise ValueError(f"preparation: got {name}, expected {', '.join(expected)}")
        known = value.isfinite() | ((value > 0) & ~value.isnan()) if name == "scale" else value.isfinite()
        if value.shape != expected[name] or value.dtype != _dtype(name) or not known.all():
            raise ValueError(f"preparation: {name}: expected finite {_dtype(name)} {list(expected[name])}")
    return {name: value.item() if name in numbers else value for name, value in tensors.items()}


def _dtype(name: str) -> torch.dtype:
    return torch.int64 if name in ("rows", "class_counts") else torch.float64
