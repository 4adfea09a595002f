"""Paired differences between the tested models, summed over folds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from rankdad.common.metrics.paired import compared, histograms, ranked
from rankdad.common.metrics.paired_sums import Difference, Sums, differences, sums_of, sums_within
from rankdad.common.metrics.repeats import mean_intervals
from rankdad.common.metrics.sums import Tally
from rankdad.common.spec.tasks import Metric, TaskSpec

DIFFERENCE = "_difference"  # column suffix: the model's metric minus the other model's, on the same rows
EVERYWHERE, WITHIN = "", " "  # pseudo-sites: all rows, and pairs of rows of the same site
NEVER = 2**62  # more rows than any run has
Found = dict[Metric, Difference | None]


class PairedFolds:
    """Differences between a model and each of its rivals.

    Args:
        task: the prediction task.
        rivals: names in the order of the sums.
        sites: names in the plan's order.
        least: rows of each class required to compare AUCs of all rows.
        regions: the sites that are regions. The variance of an AUC within one hospital is unknown there.
    """

    def __init__(
        self, task: TaskSpec, rivals: Sequence[str], sites: Sequence[str], least: int, regions: Sequence[str] = ()
    ) -> None:
        self._task, self._rivals, self._sites, self._least = task, tuple(rivals), tuple(sites), least
        self._regions = frozenset(regions)
        self._repeats: list[dict[str, dict[str, Sums]]] = []  # by repeat, rival and site
        self._tested: list[dict[str, int]] = []  # rows of each repeat, by site
        self._last: Mapping[str, Mapping[str, Tally]] = {}

    def begin(self, repeat: int, tallies: Mapping[str, Mapping[str, Tally]]) -> None:
        """Start a fold's test with the tallies of `model` and its rivals, by site."""
        if not self._rivals:
            return
        while len(self._repeats) <= repeat:
            self._repeats.append({rival: {} for rival in self._rivals})
            self._tested.append(dict.fromkeys((*self._sites, EVERYWHERE, WITHIN), 0))
        self._last = tallies
        for site, tally in tallies["model"].items():
            for name in (site, EVERYWHERE, WITHIN):
                self._tested[-1][name] += tally.samples

    def add(self, found: Mapping[str, Tensor], pooled: Tensor | None) -> list[str]:
        """Add the sites' comparisons of the last test. A rival that a site lacks is not compared over all sites.

        Args:
            found: float64 [rivals, measures, 1 or 2] by site; see `common.metrics.paired.squares`.
            pooled: histograms of all sites, with which AUCs were compared; None for a single site.

        Returns:
            The sites that were tested and sent no comparison.
        """
        models, repeat = self._last["model"], self._repeats[-1]
        for at, rival in enumerate(self._rivals):
            theirs = self._last[rival]
            both = [
                site
                for site, tally in models.items()
                if tally.samples and site in found and site in theirs and theirs[site].samples == tally.samples
            ]
            own = dict[str, Sums]()
            for site in both:
                least = NEVER if site in self._regions else 2
                own[site] = sums_of(self._task, models[site], theirs[site], found[site][at], least=least, within=True)
                repeat[rival][site] = repeat[rival].get(site, Sums()) + own[site]
            if both and len(both) == sum(1 for tally in models.values() if tally.samples):
                model, other = (reduce(add, (of[site] for site in both)) for of in (models, theirs))
                squares = torch.stack([found[site][at] for site in both]).sum(dim=0)
                least = self._least if self._covers_all(model, pooled) else NEVER
                alone = pooled is None and len(both) == 1
                one = sums_of(self._task, model, other, squares, least=least, within=alone)
                repeat[rival][EVERYWHERE] = repeat[rival].get(EVERYWHERE, Sums()) + one
                if len(both) > 1 and not self._regions and ranked(self._task):
                    one = sums_within([(own[site], models[site]) for site in both], self._task, model.samples)
                    repeat[rival][WITHIN] = repeat[rival].get(WITHIN, Sums()) + one
        return [site for site, tally in models.items() if tally.samples and site not in found]

    def _covers_all(self, total: Tally, pooled: Tensor | None) -> bool:
        """Return whether the samples are all those that AUCs were compared on; a region's are only a part."""
        if pooled is None or not ranked(self._task):
            return True
        counts = histograms(self._task, total).sum(dim=2)
        return not bool(((pooled[0].sum(dim=2) - counts).abs() > 0.5).logical_and(counts >= self._least).any())

    def differences(self, repeats: Sequence[int], site: str = EVERYWHERE) -> dict[str, Found]:
        """Return the differences by rival over one site's rows, or all rows; None where unknown."""
        found = dict[str, Found]()
        for rival in self._rivals:
            known = [
                differences(self._task, sums, several=sums.folds > 1)
                for repeat in repeats
                if repeat < len(self._repeats)
                and (sums := self._repeats[repeat][rival].get(site)) is not None
                and sums.rows == self._tested[repeat][site]
            ]
            means = mean_intervals(known) if known and len(known) == len(repeats) else {}
            found[rival] = {name: means.get(name) for name in compared(self._task)}
        return found

    def state(self) -> dict[str, Any]:
        """Return the state between two folds as JSON."""
        written = [
            {rival: {site: asdict(one) for site, one in own.items()} for rival, own in repeat.items()}
            for repeat in self._repeats
        ]
        return {"repeats": written, "tested": self._tested}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self._repeats = [
            {rival: {site: _decode(one) for site, one in own.items()} for rival, own in repeat.items()}
            for repeat in state["repeats"]
        ]
        self._tested = [dict(one) for one in state["tested"]]


def _decode(written: Mapping[str, Any]) -> Sums:
    first, second = (tuple(one) for one in written["means"])
    return Sums(**{**written, "means": (first, second)})


def ends(found: Found) -> Iterator[tuple[str, str, float | None]]:
    """Yield metric, suffix ("" for the difference itself) and value of every difference and its interval."""
    for name, one in found.items():
        yield name, "", None if one is None else one.value
        yield name, "_low", None if one is None else one.low
        yield name, "_high", None if one is None else one.high
