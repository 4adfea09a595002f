"""Adds up, fold after fold, what sites say of the differences between the models that have been tested."""

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

DIFFERENCE = "_difference"  # suffix of a metric's column: the model's less the other model's, on the same rows
EVERYWHERE, WITHIN = "", " "  # among sites: all of them, and pairs of rows of one of them
NEVER = 2**62  # more rows than any run has
Found = dict[Metric, Difference | None]


class PairedFolds:
    """What is known of the differences between a model and each of its rivals.

    Args:
        task: what is predicted.
        rivals: their names, in the order of the sums.
        sites: in the plan's order.
        least: rows of either class that an AUC of all sites' rows needs.
        regions: sites that are several: how sure an AUC is of rows of one site is not known of them.
    """

    def __init__(
        self, task: TaskSpec, rivals: Sequence[str], sites: Sequence[str], least: int, regions: Sequence[str] = ()
    ) -> None:
        self._task, self._rivals, self._sites, self._least = task, tuple(rivals), tuple(sites), least
        self._regions = frozenset(regions)
        self._repeats: list[dict[str, dict[str, Sums]]] = []  # by rival and site
        self._tested: list[dict[str, int]] = []  # rows of each repeat, by site
        self._last: Mapping[str, Mapping[str, Tally]] = {}

    def begin(self, repeat: int, tallies: Mapping[str, Mapping[str, Tally]]) -> None:
        """Take note of a fold's test: of the tallies of the model, called `model`, and of its rivals, by site."""
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
        """Add what sites say of the last test: of a rival that one of them lacks nothing is known of all of them.

        Args:
            found: float64 [rivals, measures, 1 or 2], by site; see `common.metrics.paired.squares`.
            pooled: all sites' histograms, by which they have compared AUCs; None where there was one site alone.

        Returns:
            The sites that were tested and say nothing.
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
                least = self._least if self._are_all(model, pooled) else NEVER
                alone = pooled is None and len(both) == 1
                one = sums_of(self._task, model, other, squares, least=least, within=alone)
                repeat[rival][EVERYWHERE] = repeat[rival].get(EVERYWHERE, Sums()) + one
                if len(both) > 1 and not self._regions and ranked(self._task):
                    one = sums_within([(own[site], models[site]) for site in both], self._task, model.samples)
                    repeat[rival][WITHIN] = repeat[rival].get(WITHIN, Sums()) + one
        return [site for site, tally in models.items() if tally.samples and site not in found]

    def _are_all(self, total: Tally, pooled: Tensor | None) -> bool:
        """Tell whether samples are all that AUCs were compared by: those of a region are but a part."""
        if pooled is None or not ranked(self._task):
            return True
        counts = histograms(self._task, total).sum(dim=2)
        return not bool(((pooled[0].sum(dim=2) - counts).abs() > 0.5).logical_and(counts >= self._least).any())

    def differences(self, repeats: Sequence[int], site: str = EVERYWHERE) -> dict[str, Found]:
        """Return by rival how far the model is from it over a site's rows, or all; None of what is not known."""
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
        """Take over a state that `state` returned."""
        self._repeats = [
            {rival: {site: _read(one) for site, one in own.items()} for rival, own in repeat.items()}
            for repeat in state["repeats"]
        ]
        self._tested = [dict(one) for one in state["tested"]]


def _read(written: Mapping[str, Any]) -> Sums:
    first, second = (tuple(one) for one in written["means"])
    return Sums(**{**written, "means": (first, second)})


def ends(found: Found) -> Iterator[tuple[str, str, float | None]]:
    """Yield metric, end ("" is the difference itself) and value of every difference."""
    for name, one in found.items():
        yield name, "", None if one is None else one.value
        yield name, "_low", None if one is None else one.low
        yield name, "_high", None if one is None else one.high
