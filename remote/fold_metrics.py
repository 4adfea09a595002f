"""Test metrics of all folds: by site, over folds, and of what the model is measured against."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Any

import torch

from rankdad.common.metrics import (
    Metrics,
    Risks,
    Tally,
    agreement,
    calibration,
    cells,
    confusion,
    default_log_odds,
    empty,
    intervals,
    mean_over_sites,
    parts,
    risk_summary,
    summarise,
    within_sites,
)
from rankdad.common.preparation import Fit
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec

INTERVALS = frozenset(("accuracy", "auc", "mae", "pearson_r"))  # that a row of a site has
MAX_OUTCOMES = 30  # more classes or labels have no curves


class FoldMetrics:
    """Adds up the test tallies of all folds.

    Args:
        task: what is predicted.
        sites: in the plan's order.
        references: names of what the model is measured against beside the baseline, which knows only the site.
    """

    def __init__(self, task: TaskSpec, sites: tuple[str, ...], references: tuple[str, ...] = ()) -> None:
        self._task, self._sites, self._references = task, sites, references
        names = ("models", "baseline", *references)
        self._tallies = {name: {site: empty(task) for site in sites} for name in names}
        self._models = self._tallies["models"]
        self._folds: list[Metrics] = []
        self._document: dict[str, Any] = {}  # of the folds so far
        self._centre, self._scale = 0.0, 1.0
        self._log_odds: list[float] = [] if isinstance(task, Regression) else default_log_odds(task).tolist()

    def around(self, fit: Fit) -> None:
        """Take note of what tests are counted around: what the first fold's training rows say."""
        self._centre, self._scale = fit.target_mean, fit.target_scale
        if fit.log_odds is not None:
            self._log_odds = fit.log_odds.tolist()

    def add(
        self,
        models: Mapping[str, Tally],
        baselines: Mapping[str, Tally],
        references: Mapping[str, Mapping[str, Tally]] = MappingProxyType({}),
    ) -> None:
        """Add one fold's test: tallies of the model, of the baseline, and by name of the other references."""
        for name, tallies in {"models": models, "baseline": baselines, **references}.items():
            for site, tally in tallies.items():
                self._tallies[name][site] += tally
        pooled = summarise(self._task, reduce(add, models.values()))
        if pooled.samples:
            self._folds.append(pooled)
        self._document = {}

    def state(self) -> dict[str, Any]:
        """Return the state as JSON."""
        tallies = {
            name: {site: _written(tally) for site, tally in totals.items()} for name, totals in self._tallies.items()
        }
        around = {"centre": self._centre, "scale": self._scale, "log_odds": self._log_odds}
        return {**tallies, "folds": [asdict(fold) for fold in self._folds], "around": around}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state that `state` returned."""
        for name, totals in self._tallies.items():
            for site, text in state[name].items():
                totals[site] = _read(text, totals[site])
        self._folds = [Metrics(**fold) for fold in state["folds"]]
        self._centre, self._scale, self._log_odds = (state["around"][name] for name in ("centre", "scale", "log_odds"))

    @property
    def pooled(self) -> Metrics | None:
        """Metrics of all test samples of all folds, each predicted by a model that has not seen it."""
        total = reduce(add, self._models.values())
        return summarise(self._task, total) if self._folds else None

    def by_site(self) -> list[dict[str, Any]]:
        """Return a row for every site: samples, its metrics over all folds, their intervals, those of the others."""
        rows: list[dict[str, Any]] = []
        for site in self._sites:
            model, baseline = (summarise(self._task, self._tallies[name][site]) for name in ("models", "baseline"))
            row: dict[str, Any] = {"site": site, "samples": model.samples, "absent": model.absent}
            row |= {str(name): value for name, value in model.values.items()}
            row |= {f"baseline_{name}": value for name, value in baseline.values.items()}
            row |= self._limits(self._models[site])
            for name in self._references:
                tally = self._tallies[name][site]
                row |= {f"{name}_samples": tally.samples}
                row |= {f"{name}_{key}": value for key, value in summarise(self._task, tally).values.items()}
                row |= {f"{name}_{key}": value for key, value in self._limits(tally).items()}
            rows.append(row)
        return rows

    def _limits(self, tally: Tally) -> dict[str, float | None]:
        """Return the ends of the intervals that a row of a site has."""
        limits, ends = intervals(self._task, tally), dict[str, float | None]()
        for name in (name for name in self._task.metrics if name in INTERVALS):
            one = limits.get(name)
            ends[f"{name}_low"], ends[f"{name}_high"] = (one.low, one.high) if one else (None, None)
        return ends

    def _reference(self, name: str) -> dict[str, Any]:
        """Return the metrics of what the model is measured against: over all sites, and over pairs of one site."""
        task, tallies = self._task, list(self._tallies[name].values())
        total = reduce(add, tallies)
        return {
            "samples": total.samples,
            "values": summarise(task, total).values,
            "intervals": {name: asdict(interval) for name, interval in intervals(task, total).items()},
            "within_sites": within_sites(task, tallies),
        }

    def summary(self) -> dict[str, Any]:
        """Return all metrics as JSON."""
        if self._folds and not self._document:
            self._document = self._summed_up()
        return self._document

    def _summed_up(self) -> dict[str, Any]:
        task, tallies = self._task, list(self._models.values())
        total, baseline = reduce(add, tallies), reduce(add, self._tallies["baseline"].values())
        sites = [metrics for tally in tallies if (metrics := summarise(task, tally)).samples]
        document: dict[str, Any] = {
            "sites": {name: asdict(spread) for name, spread in mean_over_sites(task, sites).items()},
            "folds": {name: asdict(spread) for name, spread in mean_over_sites(task, self._folds).items()},
            "intervals": {name: asdict(interval) for name, interval in intervals(task, total).items()},
            "within_sites": within_sites(task, tallies),
            "baseline": summarise(task, baseline).values,
            "references": {name: self._reference(name) for name in self._references},
        }
        if not isinstance(task, Regression):
            document["confusion"] = confusion(task, total).tolist()
            document["calibration"] = calibration(task, total)
            brier = parts(task, total).brier.tolist()
            document["risks"] = [{"outcome": at, **risk_summary(one, brier[at])} for at, one in self._risks(total)]
        else:
            document["agreement"] = agreement(parts(task, total), self._scale)
        return document

    def predictions(self) -> tuple[str, list[dict[str, Any]]]:
        """Return what curves are drawn from: a name, and how many samples were predicted how, all sites together."""
        task, total = self._task, reduce(add, self._models.values())
        if isinstance(task, Regression):
            found = cells(parts(task, total).grid, self._scale, self._centre)
            return "differences", [dict(zip(("average", "low", "high", "samples"), one, strict=True)) for one in found]
        rows = []
        for outcome, one in self._risks(total):
            for at in (one.negatives + one.positives).nonzero().flatten().tolist():
                counts = {"negatives": int(one.negatives[at]), "positives": int(one.positives[at])}
                rows.append({"outcome": outcome, "bin": at, "low": float(one.edges[at]), **counts})
        return "risks", rows

    def _risks(self, total: Tally) -> list[tuple[int, Risks]]:
        """Return the predictions of every outcome: of the second of two classes, or of every class or label."""
        scores = parts(self._task, total).scores
        first = int(isinstance(self._task, Classification) and self._task.classes == 2)
        chosen = range(first, len(scores)) if len(scores) <= MAX_OUTCOMES else range(0)
        return [(at, Risks.of(scores[at], self._log_odds[at])) for at in chosen]


def _written(tally: Tally) -> str:
    """Return a sum of tallies as text: sums of many folds may be beyond what one tally has on the wire."""
    return base64.b64encode(zlib.compress(tally.counts.numpy().tobytes() + tally.sums.numpy().tobytes())).decode()


def _read(text: str, like: Tally) -> Tally:
    """Return the sum of tallies in a text, shaped like another."""
    data, end = bytearray(zlib.decompress(base64.b64decode(text))), like.counts.nbytes
    counts, sums = torch.frombuffer(data[:end], dtype=torch.int64), torch.frombuffer(data[end:], dtype=torch.float64)
    return Tally(counts.reshape(like.counts.shape), sums.reshape(like.sums.shape))
