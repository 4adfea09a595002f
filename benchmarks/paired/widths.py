"""Intervals of a real run's differences beside the paired bootstrap of the same predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from benchmarks.paired.bootstrap import auc, drawn, half_interval, mean
from rankdad.common.data import SiteData
from rankdad.common.metrics.paired import WITHIN, Rows, positives
from rankdad.common.rounds import paired
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Regression
from rankdad.simulations.lockstep import run


@dataclass(frozen=True)
class Width:
    """One difference.

    Args:
        data: name of the data set.
        rival: what the model is compared with.
        metric: that they are compared by.
        value: the difference that the run reports.
        half: half the width of the run's interval.
        bootstrap: half that of the bootstrap's, between two quantiles of its draws.
        step: by which these may differ at least: of a share one row's part, else 0.
    """

    data: str
    rival: str
    metric: str
    value: float
    half: float
    bootstrap: float
    step: float = 0.0

    @property
    def ratio(self) -> float:
        """How wide the interval is beside the bootstrap's."""
        return self.half / self.bootstrap

    def within(self, apart: float) -> bool:
        """Return whether both are equally wide, within a share of the width or the resolution of a row."""
        return abs(self.half - self.bootstrap) <= max(apart * self.bootstrap, self.step / 2)


@contextmanager
def rows_kept() -> Iterator[list[tuple[list[Rows | None], Tensor]]]:
    """Yield sites' private comparisons: every model's rows, and labels, by fold and site."""
    kept: list[tuple[list[Rows | None], Tensor]] = []
    real = paired.contribution

    def contribution(
        spec: RunSpec, models: list[Rows | None], labels: Tensor, pooled: Tensor | None, groups: Tensor | None
    ) -> Tensor:
        kept.append((models, labels))
        return real(spec, models, labels, pooled, groups)

    with mock.patch.object(paired, "contribution", contribution):
        yield kept


def widths(name: str, spec: RunSpec, data: Mapping[str, SiteData], folder: Path, draws: int) -> list[Width]:
    """Run a cross-validation, and return each of its differences beside the bootstrap.

    Args:
        name: of the data.
        spec: of the run.
        data: of its sites.
        folder: where the run is written.
        draws: of the bootstrap: of rows, or of groups where there are some.
    """
    with rows_kept() as kept:
        run(spec, data, folder)
    said = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["metrics"]["differences"]
    sites, folds, places, groups = list(data), [], [], []
    for number, (_, labels) in enumerate(kept):
        fold, site = divmod(number, len(sites))
        own = data[sites[site]]
        folds.append(np.full(len(labels), fold))
        places.append(np.full(len(labels), site))
        rows = own.splits[fold].test
        of = torch.arange(len(own.samples)) if own.groups is None else own.groups
        groups.append([f"{site} {one}" for one in of[rows].tolist()])
    fold_of, place_of = np.concatenate(folds), np.concatenate(places)
    group_of = np.unique(np.concatenate(groups), return_inverse=True)[1].astype(np.int64)
    labels = torch.cat([labels for _, labels in kept])
    everywhere = drawn(group_of, draws)
    # Within hospitals each counts by its pairs as they are: the bootstrap, too, draws as many rows of each class there.
    own_class = (labels.numpy() > 0) & (len(group_of) == group_of.max() + 1)  # patients of several rows may have both
    of_class = np.unique(np.stack([place_of, fold_of, own_class]), axis=1, return_inverse=True)[1].reshape(-1)
    found = []
    for at, rival in enumerate(said, 1):
        for metric, one in said[rival].items():
            ours, theirs = (_metric(spec, metric, kept, model, labels, fold_of, place_of) for model in (0, at))
            weights = drawn(group_of, draws, places=of_class) if metric == WITHIN else everywhere
            half = (one["high"] - one["low"]) / 2
            step = 1 / len(labels) if metric == "accuracy" else 0.0
            found.append(Width(name, rival, metric, one["value"], half, half_interval(ours, theirs, weights), step))
    return found


def _metric(
    spec: RunSpec,
    metric: str,
    kept: list[Any],
    model: int,
    labels: Tensor,
    folds: np.ndarray[Any, Any],
    places: np.ndarray[Any, Any],
) -> Any:
    rows = [models[model] for models, _ in kept]
    if metric in ("auc", WITHIN):
        scores = torch.cat([(own.scores if metric == WITHIN else own.bins)[:, 0] for own in rows]).double().numpy()
        return auc(scores, positives(spec.task, labels)[:, 0].numpy(), folds, places if metric == WITHIN else None)
    column = 0 if metric == "loss" else 1
    assert isinstance(spec.task, Regression) or metric != "mae"
    return mean(torch.cat([own.means[:, column] for own in rows]).numpy())
