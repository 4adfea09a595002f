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
from torch import Tensor

from rankdad.common.metrics import (
    Metrics,
    Pairs,
    Risks,
    Tally,
    agreement,
    calibration,
    cells,
    confusion,
    default_log_odds,
    empty,
    intervals,
    mean_intervals,
    mean_metrics,
    mean_over_sites,
    mean_tally,
    mean_values,
    parts,
    risk_summary,
    summarise,
    within_sites,
)
from rankdad.common.metrics.paired import LEAST
from rankdad.common.preparation import Fit
from rankdad.common.rounds.paired import rivals
from rankdad.common.spec.tasks import Classification, Regression, TaskSpec
from rankdad.remote.paired_folds import DIFFERENCE, PairedFolds
from rankdad.remote.paired_folds import ends as _ends

INTERVALS = frozenset(("accuracy", "auc", "mae", "pearson_r"))  # that a row of a site has
MAX_OUTCOMES = 30  # more classes or labels have no curves


class FoldMetrics:
    """Adds up the test tallies of all folds; of a repeated cross-validation those of each repeat, whose mean counts.

    Args:
        task: what is predicted.
        sites: in the plan's order.
        references: names of what the model is measured against beside the baseline, which knows only the site.
        grouped: whether samples are of groups.
        per_repeat: how many folds test every sample once; None for all of them.
        least: rows of either class that an AUC needs to be compared with another model's.
    """

    def __init__(
        self,
        task: TaskSpec,
        sites: tuple[str, ...],
        references: tuple[str, ...] = (),
        *,
        grouped: bool = False,
        per_repeat: int | None = None,
        least: int = LEAST,
    ) -> None:
        self._task, self._sites, self._references = task, sites, references
        self._grouped, self._per_repeat = grouped, per_repeat
        self._like = {"models": empty(task, grouped), "baseline": empty(task)}
        self._like |= dict.fromkeys(references, self._like["models"])
        self._tallies = {name: [self._nothing(name)] for name in self._like}  # of each repeat, by site
        self._rivals = PairedFolds(task, rivals(references), sites, least)
        self._tests = 0
        self._folds: list[Metrics] = []
        self._document: dict[str, Any] = {}  # of the folds so far
        self._centre, self._scale = 0.0, 1.0
        self._log_odds: list[float] = [] if isinstance(task, Regression) else default_log_odds(task).tolist()

    def _nothing(self, name: str) -> dict[str, Tally]:
        return dict.fromkeys(self._sites, self._like[name])

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
        pooled = summarise(self._task, reduce(add, models.values()))
        if pooled.samples:
            self._folds.append(pooled)
            if self._per_repeat and self._tests >= self._per_repeat * len(self._tallies["models"]):
                for name, repeats in self._tallies.items():
                    repeats.append(self._nothing(name))
        for name, tallies in {"models": models, "baseline": baselines, **references}.items():
            for site, tally in tallies.items():
                self._tallies[name][-1][site] += tally
        self._rivals.begin(len(self._tallies["models"]) - 1, {"model": models, "baseline": baselines, **references})
        self._tests += 1
        self._document = {}

    def compare(self, found: Mapping[str, Tensor], pooled: Tensor | None) -> None:
        """Add what sites say of the last fold's test where its models are compared: see `PairedFolds.add`."""
        self._rivals.add(found, pooled)
        self._document = {}

    def state(self) -> dict[str, Any]:
        """Return the state as JSON."""
        tallies = {
            name: [{site: _written(tally) for site, tally in one.items()} for one in repeats]
            for name, repeats in self._tallies.items()
        }
        around = {"centre": self._centre, "scale": self._scale, "log_odds": self._log_odds}
        folds = [asdict(fold) for fold in self._folds]
        return {**tallies, "pairs": self._rivals.state(), "tests": self._tests, "folds": folds, "around": around}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state that `state` returned."""
        for name, like in self._like.items():
            repeats = state[name]
            self._tallies[name] = [{site: _read(text, like) for site, text in one.items()} for one in repeats]
        self._rivals.restore(state["pairs"])
        self._tests = state["tests"]
        self._folds = [Metrics(**fold) for fold in state["folds"]]
        self._centre, self._scale, self._log_odds = (state["around"][name] for name in ("centre", "scale", "log_odds"))

    @property
    def _whole(self) -> range:
        """The repeats whose folds are all tested, or the first one."""
        return range(max(1, self._tests // self._per_repeat) if self._per_repeat else 1)

    def _of(self, name: str, site: str | None = None) -> list[Tally]:
        """Return the sum of a site's tests, or all sites', in every repeat that counts."""
        repeats = self._tallies[name]
        chosen = (repeats[at] for at in self._whole if at < len(repeats))
        return [reduce(add, one.values()) if site is None else one[site] for one in chosen]

    def _mean(self, tallies: list[Tally]) -> Metrics:
        return mean_metrics([summarise(self._task, one) for one in tallies])

    @property
    def pooled(self) -> Metrics | None:
        """Metrics of all test samples of all folds, each predicted by a model that has not seen it."""
        return self._mean(self._of("models")) if self._folds else None

    def groups(self, site: str | None = None) -> int | None:
        """Return how many groups a site, or all, have tested; None where there are none."""
        clusters = parts(self._task, mean_tally(self._of("models", site))).clusters
        return None if clusters is None else round(clusters.count)

    def by_site(self) -> list[dict[str, Any]]:
        """Return a row for every site: samples, its metrics over all folds, their intervals, those of the others."""
        rows: list[dict[str, Any]] = []
        for site in self._sites:
            tallies = self._of("models", site)
            model, baseline = self._mean(tallies), self._mean(self._of("baseline", site))
            row: dict[str, Any] = {"site": site, "samples": model.samples}
            row |= {"groups": self.groups(site)} if self._grouped else {}
            row["absent"] = model.absent
            row |= {str(name): value for name, value in model.values.items()}
            row |= {f"baseline_{name}": value for name, value in baseline.values.items()}
            row |= self._limits(tallies)
            for name in self._references:
                tallies = self._of(name, site)
                row |= {f"{name}_samples": mean_tally(tallies).samples}
                row |= {f"{name}_{key}": value for key, value in self._mean(tallies).values.items()}
                row |= {f"{name}_{key}": value for key, value in self._limits(tallies).items()}
            for name, found in self._rivals.differences(self._whole, site).items():
                row |= {f"{name}_{key}{DIFFERENCE}{end}": value for key, end, value in _ends(found)}
            rows.append(row)
        return rows

    def _limits(self, tallies: list[Tally]) -> dict[str, float | None]:
        """Return the ends of the intervals that a row of a site has."""
        limits, ends = mean_intervals([intervals(self._task, one) for one in tallies]), dict[str, float | None]()
        for name in (name for name in self._task.metrics if name in INTERVALS):
            one = limits.get(name)
            ends[f"{name}_low"], ends[f"{name}_high"] = (one.low, one.high) if one else (None, None)
        return ends

    def _measured(self, name: str) -> dict[str, Any]:
        """Return intervals over all sites, and metrics over pairs of samples of one site."""
        limits = mean_intervals([intervals(self._task, one) for one in self._of(name)])
        repeats = self._tallies[name]
        within = [within_sites(self._task, list(repeats[at].values())) for at in self._whole if at < len(repeats)]
        return {
            "intervals": {key: asdict(interval) for key, interval in limits.items()},
            "within_sites": mean_values(within),
        }

    def differences(self) -> dict[str, dict[str, Any]]:
        """Return as JSON how far the model is from each of its rivals over all samples, as far as it is known."""
        return {
            rival: {name: asdict(one) for name, one in found.items() if one is not None}
            for rival, found in self._rivals.differences(self._whole).items()
        }

    def summary(self) -> dict[str, Any]:
        """Return all metrics as JSON."""
        if self._folds and not self._document:
            self._document = self._summed_up()
        return self._document

    def _summed_up(self) -> dict[str, Any]:
        task, totals = self._task, self._of("models")
        total, mean = reduce(add, totals), mean_tally(totals)
        metrics = [self._mean(self._of("models", site)) for site in self._sites]
        sites = [one for one in metrics if one.samples]
        document: dict[str, Any] = {
            "sites": {name: asdict(spread) for name, spread in mean_over_sites(task, sites).items()},
            "folds": {name: asdict(spread) for name, spread in mean_over_sites(task, self._folds).items()},
            **self._measured("models"),
            "baseline": self._mean(self._of("baseline")).values,
            "references": {
                name: {
                    "samples": mean_tally(self._of(name)).samples,
                    "values": self._mean(self._of(name)).values,
                    **self._measured(name),
                }
                for name in self._references
            },
            "differences": self.differences(),
        }
        if not isinstance(task, Regression):
            document["confusion"] = confusion(task, total).tolist()
            document["calibration"] = calibration(task, total)
            brier = parts(task, mean).brier.tolist()
            document["risks"] = [{"outcome": at, **risk_summary(one, brier[at])} for at, one in self._risks(mean)]
        else:
            document["agreement"] = agreement(parts(task, mean), self._scale)
        return document

    def predictions(self) -> tuple[str, list[dict[str, Any]]]:
        """Return what curves are drawn from: a name, and how many samples were predicted how, all sites together."""
        task, total = self._task, mean_tally(self._of("models"))
        if isinstance(task, Regression):
            found = cells(parts(task, total).grid, self._scale, self._centre)
            return "differences", [dict(zip(("average", "low", "high", "samples"), one, strict=True)) for one in found]
        rows = []
        for outcome, one in self._risks(total):
            for at in (one.negatives + one.positives).nonzero().flatten().tolist():
                counts = {"negatives": _count(one.negatives[at]), "positives": _count(one.positives[at])}
                effects = {f"{name}_effect": float(effect[at]) for name, effect in one.effects.items()}
                rows.append({"outcome": outcome, "bin": at, "low": float(one.edges[at]), **counts, **effects})
        return "risks", rows

    def _risks(self, total: Tally) -> list[tuple[int, Risks]]:
        """Return the predictions of every outcome: of the second of two classes, or of every class or label."""
        part = parts(self._task, total)
        scores, clusters = part.scores, part.clusters
        first = int(isinstance(self._task, Classification) and self._task.classes == 2)
        chosen = range(first, len(scores)) if len(scores) <= MAX_OUTCOMES else range(0)
        pairs = {
            at: Pairs.of(scores[at], clusters.scores[at - first], clusters.count) if clusters else None for at in chosen
        }
        return [(at, Risks.of(scores[at], self._log_odds[at], pairs[at])) for at in chosen]


def _count(number: Tensor) -> int | float:
    """Return a count; the mean of several repeats' may be no whole number."""
    return int(number) if number == number.floor() else float(number)


def _written(tally: Tally) -> str:
    """Return a sum of tallies as text: sums of many folds may be beyond what one tally has on the wire."""
    return base64.b64encode(zlib.compress(tally.counts.numpy().tobytes() + tally.sums.numpy().tobytes())).decode()


def _read(text: str, like: Tally) -> Tally:
    """Return the sum of tallies in a text, shaped like another."""
    data, end = bytearray(zlib.decompress(base64.b64decode(text))), like.counts.nbytes
    counts, sums = torch.frombuffer(data[:end], dtype=torch.int64), torch.frombuffer(data[end:], dtype=torch.float64)
    return Tally(counts.reshape(like.counts.shape), sums.reshape(like.sums.shape))
