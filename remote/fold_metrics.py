"""Test metrics of all folds: by site, over folds, and of a baseline that knows only the site."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any

from rankdad.common.metrics import (
    Metrics,
    Tally,
    calibration,
    confusion,
    empty,
    intervals,
    mean_over_sites,
    pack_tally,
    summarise,
    unpack_tally,
    within_sites,
)
from rankdad.common.tasks import Regression, TaskSpec


class FoldMetrics:
    """Adds up the test tallies of all folds.

    Args:
        task: what is predicted.
        sites: in the plan's order.
    """

    def __init__(self, task: TaskSpec, sites: tuple[str, ...]) -> None:
        self._task, self._sites = task, sites
        self._models = {site: empty(task) for site in sites}
        self._baselines = {site: empty(task) for site in sites}
        self._folds: list[Metrics] = []

    def add(self, models: Mapping[str, Tally], baselines: Mapping[str, Tally]) -> None:
        """Add one fold's test."""
        for totals, tallies in ((self._models, models), (self._baselines, baselines)):
            for site, tally in tallies.items():
                totals[site] += tally
        pooled = summarise(self._task, reduce(add, models.values()))
        if pooled.samples:
            self._folds.append(pooled)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON."""
        tallies = {
            name: {site: base64.b64encode(zlib.compress(pack_tally(tally))).decode() for site, tally in totals.items()}
            for name, totals in (("models", self._models), ("baselines", self._baselines))
        }
        return {**tallies, "folds": [asdict(fold) for fold in self._folds]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state that `state` returned."""
        for totals, name in ((self._models, "models"), (self._baselines, "baselines")):
            for site, text in state[name].items():
                totals[site] = unpack_tally(self._task, zlib.decompress(base64.b64decode(text)))
        self._folds = [Metrics(**fold) for fold in state["folds"]]

    @property
    def pooled(self) -> Metrics | None:
        """Metrics of all test samples of all folds, each predicted by a model that has not seen it."""
        total = reduce(add, self._models.values())
        return summarise(self._task, total) if self._folds else None

    def by_site(self) -> list[dict[str, Any]]:
        """Return a row for every site: samples, its metrics over all folds, and those of the baseline."""
        rows: list[dict[str, Any]] = []
        for site in self._sites:
            model, baseline = (summarise(self._task, tallies[site]) for tallies in (self._models, self._baselines))
            row: dict[str, Any] = {"site": site, "samples": model.samples, "absent": model.absent}
            row |= {str(name): value for name, value in model.values.items()}
            row |= {f"baseline_{name}": value for name, value in baseline.values.items()}
            rows.append(row)
        return rows

    def summary(self) -> dict[str, Any]:
        """Return all metrics as JSON."""
        if not self._folds:
            return {}
        task, tallies = self._task, list(self._models.values())
        total, baseline = reduce(add, tallies), reduce(add, self._baselines.values())
        sites = [metrics for tally in tallies if (metrics := summarise(task, tally)).samples]
        document: dict[str, Any] = {
            "sites": {name: asdict(spread) for name, spread in mean_over_sites(task, sites).items()},
            "folds": {name: asdict(spread) for name, spread in mean_over_sites(task, self._folds).items()},
            "intervals": {name: asdict(interval) for name, interval in intervals(task, total).items()},
            "within_sites": within_sites(task, tallies),
            "baseline": summarise(task, baseline).values,
        }
        if not isinstance(task, Regression):
            document["confusion"] = confusion(task, total).tolist()
            document["calibration"] = calibration(task, total)
        return document
