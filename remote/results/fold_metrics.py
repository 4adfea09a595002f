"""Test metrics of all folds: by site, over folds, and of references."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rankdad.common.metrics.agreement import agreement, cells
from rankdad.common.metrics.clusters import Pairs
from rankdad.common.metrics.intervals import intervals
from rankdad.common.metrics.paired import LEAST
from rankdad.common.metrics.paired import WITHIN as AUC_WITHIN
from rankdad.common.metrics.repeats import mean_intervals, mean_metrics, mean_tally, mean_values
from rankdad.common.metrics.risk import Risks, mean_risk_summary, risk_summary
from rankdad.common.metrics.site_calibration import calibration_by_site, expected
from rankdad.common.metrics.sites import mean_over_sites, site_alone, within_sites
from rankdad.common.metrics.summary import Metrics, calibration, confusion, summarise
from rankdad.common.metrics.sums import Parts, Tally, default_log_odds, empty, is_vague, of_one_test, parts
from rankdad.common.preparation import Fit
from rankdad.common.rounds.scores import rivals
from rankdad.common.spec.tasks import Classification, LanguageModel, Regression, TaskSpec
from rankdad.remote.results.paired_folds import DIFFERENCE, EVERYWHERE, WITHIN, PairedFolds
from rankdad.remote.results.paired_folds import ends as _ends

INTERVALS = frozenset(("accuracy", "auc", "mae", "pearson_r"))  # in a site's row
MAX_OUTCOMES = 30  # classes or labels with curves


class FoldMetrics:
    """Sum of the test tallies of all folds. Repeats of a cross-validation are summed apart, and their mean counts.

    Args:
        task: the prediction task.
        sites: names in the plan's order.
        references: names of reference models, beside the site-only baseline.
        grouped: whether samples belong to groups.
        per_repeat: number of folds that test every sample once; None for all folds.
        least: rows of each class required to compare AUCs.
        regions: the sites that are regions of several hospitals.
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
        regions: Sequence[str] = (),
    ) -> None:
        self._task, self._sites, self._references = task, sites, references
        self._grouped, self._per_repeat = grouped, per_repeat
        self._empty = {"models": empty(task, grouped), "baseline": empty(task)}
        self._empty |= dict.fromkeys(references, self._empty["models"])
        self._tallies = {name: [self._empty_tallies(name)] for name in self._empty}  # by repeat and site
        self._rivals = PairedFolds(task, rivals(references), sites, least, regions)
        self._tests = 0
        self._folds: list[Metrics] = []
        self._document: dict[str, Any] = {}  # cache of `summary`
        self._centre, self._scale = 0.0, 1.0
        self._log_odds: list[float] = [] if isinstance(task, Regression) else default_log_odds(task).tolist()

    def _empty_tallies(self, name: str) -> dict[str, Tally]:
        return dict.fromkeys(self._sites, self._empty[name])

    def around(self, fit: Fit) -> None:
        """Set the centre, scale and prevalence around which tests are counted, from the first fold's training rows."""
        self._centre, self._scale = fit.target_mean, fit.target_scale
        if fit.log_odds is not None:
            self._log_odds = fit.log_odds.tolist()

    def add(
        self,
        models: Mapping[str, Tally],
        baselines: Mapping[str, Tally],
        references: Mapping[str, Mapping[str, Tally]] = MappingProxyType({}),
    ) -> None:
        """Add one fold's test tallies: the model's, the baseline's, and the references' by name."""
        pooled = summarise(self._task, of_one_test(self._task, reduce(add, models.values()))).reliable
        if pooled.samples:
            self._folds.append(pooled)
            if self._per_repeat and self._tests >= self._per_repeat * len(self._tallies["models"]):
                for name, repeats in self._tallies.items():
                    repeats.append(self._empty_tallies(name))
        for name, tallies in {"models": models, "baseline": baselines, **references}.items():
            for site, tally in tallies.items():
                self._tallies[name][-1][site] += tally
        self._rivals.begin(len(self._tallies["models"]) - 1, {"model": models, "baseline": baselines, **references})
        self._tests += 1
        self._document = {}

    def compare(self, found: Mapping[str, Tensor], pooled: Tensor | None) -> list[str]:
        """Add the sites' paired comparisons of the last test: see `PairedFolds.add`."""
        self._document = {}
        return self._rivals.add(found, pooled)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON for `restore`."""
        tallies = {
            name: [{site: _encode(tally) for site, tally in one.items()} for one in repeats]
            for name, repeats in self._tallies.items()
        }
        around = {"centre": self._centre, "scale": self._scale, "log_odds": self._log_odds}
        folds = [asdict(fold) for fold in self._folds]
        return {**tallies, "pairs": self._rivals.state(), "tests": self._tests, "folds": folds, "around": around}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        for name, like in self._empty.items():
            repeats = state[name]
            self._tallies[name] = [{site: _decode(text, like) for site, text in one.items()} for one in repeats]
        self._rivals.restore(state["pairs"])
        self._tests = state["tests"]
        self._folds = [Metrics(**fold) for fold in state["folds"]]
        self._centre, self._scale, self._log_odds = (state["around"][name] for name in ("centre", "scale", "log_odds"))

    @property
    def _complete_repeats(self) -> range:
        """Indices of the repeats with all folds tested; at least the first."""
        return range(max(1, self._tests // self._per_repeat) if self._per_repeat else 1)

    def _totals(self, name: str, site: str | None = None) -> list[Tally]:
        """Sum a site's tests, or all sites', for each complete repeat."""
        return [reduce(add, one.values()) if site is None else one[site] for one in self._by_repeat(name)]

    def _by_repeat(self, name: str) -> list[dict[str, Tally]]:
        """Return the tallies by site of each complete repeat."""
        repeats = self._tallies[name]
        return [repeats[at] for at in self._complete_repeats if at < len(repeats)]

    def _mean(self, tallies: list[Tally]) -> Metrics:
        return mean_metrics([summarise(self._task, one).reliable for one in tallies])

    def guess(self, site: str | None = None) -> Metrics:
        """Return the metrics of the baseline, with its AUC: samples in one bin are ties."""
        return mean_metrics([summarise(self._task, one) for one in self._totals("baseline", site)])

    @property
    def pooled(self) -> Metrics | None:
        """Metrics of all test samples of all folds, each predicted by a model that was not trained on it."""
        return self._mean(self._totals("models")) if self._folds else None

    def groups(self, site: str | None = None) -> int | None:
        """Return the number of groups tested at a site, or at all; None without groups."""
        clusters = parts(self._task, mean_tally(self._totals("models", site))).clusters
        return None if clusters is None else round(clusters.count)

    def by_site(self) -> list[dict[str, Any]]:
        """Build a row for every site: samples, metrics over all folds, intervals, references and differences."""
        rows: list[dict[str, Any]] = []
        weights = self._weights()
        for site in self._sites:
            tallies = self._totals("models", site)
            model, baseline = self._mean(tallies), self.guess(site)
            row: dict[str, Any] = {"site": site, "samples": model.samples}
            row |= {"groups": self.groups(site)} if self._grouped else {}
            row["absent"] = model.absent
            row |= {str(name): value for name, value in model.values.items()}
            row |= {"auc_weight": weights[site]} if weights else {}
            row |= {f"baseline_{name}": value for name, value in baseline.values.items()}
            row |= self._interval_columns(tallies)
            for name in self._references:
                tallies = self._totals(name, site)
                row |= {f"{name}_samples": mean_tally(tallies).samples}
                if row[f"{name}_samples"] != model.samples:
                    continue  # tested on other rows: not comparable
                row |= {f"{name}_{key}": value for key, value in self._mean(tallies).values.items()}
                row |= {f"{name}_{key}": value for key, value in self._interval_columns(tallies).items()}
            for name, found in self._rivals.differences(self._complete_repeats, site).items():
                row |= {f"{name}_{key}{DIFFERENCE}{end}": value for key, end, value in _ends(found)}
            rows.append(row)
        return rows

    def _weights(self) -> dict[str, float]:
        """Return each site's weight in the within-site AUC of a single outcome: its share of the pairs."""
        task = self._task
        if isinstance(task, Regression | LanguageModel) or (task.outputs != 1 and not _binary(task)):
            return {}
        counts = {site: parts(task, own).scores[-1].sum(1) for site, own in self._by_repeat("models")[0].items()}
        pairs = {site: int(own.prod()) for site, own in counts.items()}
        return {site: own / max(1, sum(pairs.values())) for site, own in pairs.items()}

    def _interval_columns(self, tallies: list[Tally]) -> dict[str, float | None]:
        """Return the interval columns of a site's row."""
        limits, ends = mean_intervals([intervals(self._task, one) for one in tallies]), dict[str, float | None]()
        for name in (name for name in self._task.metrics if name in INTERVALS):
            one = limits.get(name)
            ends[f"{name}_low"], ends[f"{name}_high"] = (one.low, one.high) if one else (None, None)
        return ends

    def _interval_summary(self, name: str) -> dict[str, Any]:
        """Return intervals over all sites, and metrics over pairs of samples of one site."""
        limits = mean_intervals([intervals(self._task, one) for one in self._totals(name)])
        within = [within_sites(self._task, list(one.values())) for one in self._by_repeat(name)]
        return {
            "intervals": {key: asdict(interval) for key, interval in limits.items()},
            "within_sites": mean_values(within),
        }

    def differences(self) -> dict[str, dict[str, Any]]:
        """Return the model's differences from each rival over all samples as JSON, where known."""
        everywhere, within = (self._rivals.differences(self._complete_repeats, place) for place in (EVERYWHERE, WITHIN))
        known = {rival: [*found.items(), (AUC_WITHIN, within[rival].get("auc"))] for rival, found in everywhere.items()}
        return {rival: {name: asdict(one) for name, one in found if one is not None} for rival, found in known.items()}

    def summary(self) -> dict[str, Any]:
        """Return all metrics as JSON."""
        if self._folds and not self._document:
            self._document = self._build_summary()
        return self._document

    def _build_summary(self) -> dict[str, Any]:
        task, totals = self._task, self._totals("models")
        total = reduce(add, totals)
        metrics = [self._mean(self._totals("models", site)) for site in self._sites]
        sites = [one for one in metrics if one.samples]
        document: dict[str, Any] = {
            "sites": {name: asdict(spread) for name, spread in mean_over_sites(task, sites).items()},
            "folds": {name: asdict(spread) for name, spread in mean_over_sites(task, self._folds).items()},
            **self._interval_summary("models"),
            "baseline": self.guess().values,
            "references": {
                name: {
                    "samples": mean_tally(self._totals(name)).samples,
                    "values": self._mean(self._totals(name)).values,
                    **self._interval_summary(name),
                }
                for name in self._references
            },
            "differences": self.differences(),
            "smooth_scores": bool(parts(task, total).order[:, 2].any()),
        }
        if isinstance(task, LanguageModel):
            return document
        if not isinstance(task, Regression):
            document["confusion"] = confusion(task, total).tolist()
            document["calibration"] = calibration(task, total)
            document["site_alone"] = {"auc": self._site_alone()}
            found = [
                [
                    {"outcome": at}
                    | risk_summary(one, float(part.brier[at]), (part.order + part.across)[at], _called(task, part, at))
                    for at, one in self._risks(own)
                ]
                for own, part in ((own, parts(task, own)) for own in totals)
            ]
            document["risks"] = [mean_risk_summary(one) for one in zip(*found, strict=True)]
            document["calibration_by_site"] = self._calibration_by_site()
        else:
            document["agreement"] = agreement(parts(task, mean_tally(totals)), self._scale)
        return document

    def _site_alone(self) -> float | None:
        """Return the AUC of a guess by the site alone: by its training rows in a single test, else by all rows."""
        trained = self.guess().values["auc"] if self._per_repeat == 1 else None
        if trained is not None:
            return trained
        return site_alone(self._task, list(self._by_repeat("models")[0].values()))  # the same in each repeat

    def _calibration_by_site(self) -> list[dict[str, Any]]:
        task, repeats = self._task, self._by_repeat("models")
        found = [{site: dict(self._risks(own, at_edges=False)) for site, own in one.items()} for one in repeats]
        outcomes = list(next(iter(found[0].values())))
        return [
            {
                "outcome": at,
                **calibration_by_site(
                    [{site: own[at] for site, own in one.items()} for one in found],
                    [
                        {site: expected(task, total, at, own[site][at]) for site, total in one.items()}
                        for one, own in zip(repeats, found, strict=True)
                    ],
                    groups=len(outcomes) == 1,
                    vague=[site for site, own in repeats[0].items() if is_vague(task, own)],
                    smooth=any(bool(parts(task, own).order[:, 2].any()) for own in repeats[0].values()),
                ),
            }
            for at in outcomes
        ]

    def predictions(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the name of the table from which curves are drawn, and its rows, over all sites."""
        task, totals = self._task, self._totals("models")
        if isinstance(task, Regression):
            found = cells(parts(task, mean_tally(totals)).grid, self._scale, self._centre)
            return "differences", [dict(zip(("average", "low", "high", "samples"), one, strict=True)) for one in found]
        rows = []
        for repeat, total in enumerate(totals, start=1):
            which = {"repeat": repeat} if len(totals) > 1 else {}
            for outcome, one in self._risks(total):
                for at in (one.negatives + one.positives).nonzero().flatten().tolist():
                    counts = {"negatives": int(one.negatives[at]), "positives": int(one.positives[at])}
                    effects = {f"{name}_effect": float(effect[at]) for name, effect in one.effects.items()}
                    place = {"outcome": outcome, **which, "bin": at, "low": float(one.edges[at])}
                    rows.append({**place, **counts, **effects})
        return "risks", rows

    def calibration_rows(self) -> list[dict[str, Any]]:
        """Build a row for every outcome and site: observed and expected events, and calibration."""
        rows = []
        for one in self.summary().get("calibration_by_site", []):
            for site in one["sites"]:
                row = {"outcome": one["outcome"], **{name: site[name] for name in ("site", "samples", "events")}}
                row["expected"] = site["expected"]
                for name in ("observed_expected", "in_the_large", "slope"):
                    estimate = site[name] if name == "observed_expected" else site["recalibration"].get(name)
                    ends = {"": "value", "_low": "low", "_high": "high"}
                    row |= {f"{name}{end}": estimate and estimate[key] for end, key in ends.items()}
                rows.append(row)
        return rows

    def _risks(self, total: Tally, *, at_edges: bool = True) -> list[tuple[int, Risks]]:
        """Return the predictions of every outcome: the second of two classes, or every class or label.

        Args:
            total: tally of the samples.
            at_edges: whether to compute the design effects of groups at every bin edge.
        """
        part = parts(self._task, total)
        scores, clusters = part.scores, part.clusters
        first = int(_binary(self._task))
        chosen = range(first, len(scores)) if len(scores) <= MAX_OUTCOMES else range(0)
        pairs = {
            at: Pairs.of(scores[at], clusters.scores[at - first], clusters.count) if clusters else None for at in chosen
        }
        found = Risks.of if at_edges else Risks.plain
        return [(at, found(scores[at], self._log_odds[at], pairs[at])) for at in chosen]


def _called(task: TaskSpec, part: Parts, outcome: int) -> tuple[float, float] | None:
    """Return how many negatives and positives have a risk above 1/2, of two classes or a label; else nobody knows."""
    if isinstance(task, Classification) and task.classes > 2:
        return None
    false, true = part.confusion[0 if isinstance(task, Classification) else outcome][:, 1].tolist()
    return float(false), float(true)


def _binary(task: TaskSpec) -> bool:
    return isinstance(task, Classification) and task.classes == 2


def _encode(tally: Tally) -> str:
    """Encode a sum of tallies as text; sums over folds may exceed the range of one tally on the wire."""
    return base64.b64encode(zlib.compress(tally.counts.numpy().tobytes() + tally.sums.numpy().tobytes())).decode()


def _decode(text: str, like: Tally) -> Tally:
    """Decode a sum of tallies into the shape of another."""
    data, end = bytearray(zlib.decompress(base64.b64decode(text))), like.counts.nbytes
    counts, sums = torch.frombuffer(data[:end], dtype=torch.int64), torch.frombuffer(data[end:], dtype=torch.float64)
    return Tally(counts.reshape(like.counts.shape), sums.reshape(like.sums.shape))
