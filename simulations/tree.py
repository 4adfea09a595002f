"""All aggregators of a run in one process, without sockets."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.remote.aggregator import Aggregator, Answers
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.region import Region

REGIONS = "regions"  # folder in a run's directory


class Tree:
    """The aggregators of a run and its regions.

    Args:
        spec: the run.
        replica: creates a replica with the initial weights.
        directory: the run's, with the regions' in it.
        clock: seconds.
        ledger: see `Aggregator`.

    Attributes:
        top: the top aggregator.
        regions: regions by name, from the top down.
    """

    def __init__(
        self,
        spec: RunSpec,
        replica: Callable[[], Replica],
        directory: Path,
        clock: Callable[[], float] = time.perf_counter,
        ledger: LedgerOptions | None = None,
    ) -> None:
        self.nodes = spec.federation.nodes
        self.top = Aggregator(spec, replica(), directory, clock, ledger=ledger)
        begun: Any = {"ledger": ledger, "run_id": self.top.run_id}
        self.regions = {
            name: Region(Aggregator(spec, replica(), region_directory(directory, name), clock, name=name, **begun))
            for name in self.nodes
            if name != TOP
        }
        self._above = {child: self.of(name) for name, node in self.nodes.items() for child in node.children}

    def of(self, name: str) -> Aggregator:
        """Return the aggregator of a region, or the top aggregator."""
        return self.top if name == TOP else self.regions[name].aggregator

    def above(self, name: str) -> Aggregator:
        """Return the aggregator above a site or region."""
        return self._above[name]

    def take(self, name: str, body: bytes) -> Answers:
        """Take a contribution and return answers to sites; empty while a round waits for others."""
        return self.carry(self.above(name), self.above(name).take(name, body))

    def depart(self, site: str, reason: str) -> Answers:
        """Mark a site as departed."""
        return self.carry(self.above(site), self.above(site).depart(site, reason))

    def carry(self, aggregator: Aggregator, answers: Answers) -> Answers:
        """Pass a region's contribution up, and answers down to its members."""
        own = self.regions.get(aggregator.node.name)
        if own is not None and own.outgoing is not None:
            answers = answers | self.take(aggregator.node.name, own.outgoing.body)
        elif own is not None and aggregator.barrier.failed and not own.is_reported:
            own.is_reported = True
            answers = answers | self.take(aggregator.node.name, own.failure())
        below: Answers = {}
        for name, body in answers.items():
            region = self.regions.get(name)
            below |= {name: body} if region is None else self.carry(region.aggregator, region.answer(body))
        return below

    def close(self) -> None:
        """Close all aggregators."""
        for name in reversed(self.nodes):
            self.of(name).close()


def region_directory(directory: Path, name: str) -> Path:
    """Return the directory of a region's aggregator in a simulated run's directory."""
    return directory / REGIONS / name
