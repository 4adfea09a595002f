"""The base of all methods: pure functions with explicit state. `METHODS` in `common/methods/__init__.py` lists them.

Units: a site contributes the gradient of its own *mean* loss, and the aggregator weights it by the site's share of the
loss's denominators (samples). Only `shares` divides by the total weight. Residuals of sites and aggregator are in units
of the pooled mean, which is applied: for any shares in each round, applied updates and residuals add up to all pooled
gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix, concatenate
from rankdad.common.lowrank.routes import Payload
from rankdad.common.lowrank.wire import as_received


@dataclass(frozen=True)
class MethodState:
    """The state of a method between rounds, by parameter name. Methods return a new state and change none.

    Args:
        residuals: intended but not sent, [out, columns], as a matrix or as its leading rows.
        bases: directions of the last update, [k, columns], to start the next reduction from.
    """

    residuals: Mapping[str, Matrix] = field(default_factory=dict)
    bases: Mapping[str, Tensor] = field(default_factory=dict)

    def but(self, before: MethodState, names: Collection[str]) -> MethodState:
        """Return this state with some parameters as in an earlier one."""
        if not names:
            return self

        def mixed(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
            kept = {name: value for name, value in new.items() if name not in names}
            return kept | {name: value for name, value in old.items() if name in names}

        return MethodState(mixed(self.residuals, before.residuals), mixed(self.bases, before.bases))


@dataclass(frozen=True)
class Contribution:
    """A site's payload and its weight, the denominator of its mean loss; 0 for a site that is out of data."""

    weight: float
    payload: Payload


SiteStep = Generator[Payload, Payload, MethodState]
"""A step at a site: yields payloads, receives the update of each exchange, and returns the site's new state."""
Aggregated = tuple[Payload, MethodState]
"""The update of an exchange, and the aggregator's new state."""


class Method(ABC):
    """How gradients are sent and combined."""

    @abstractmethod
    def step(
        self, gradients: Payload, share: float, state: MethodState, seed: int, max_rows: int | None = None
    ) -> SiteStep:
        """Send a site's gradients, one exchange at a time.

        Args:
            gradients: of the site's mean loss, in the plan's order.
            share: of this site in the round's total weight; 0 if it is out of data.
            state: of the site.
            seed: of this site and round.
            max_rows: of a factor, limit of the site's policy in this step; None for the spec's limit. Only rank-dad
                supports a lower one.

        Yields:
            Payloads, in the plan's layout for the exchange.

        Returns:
            The site's new state, if its payloads are applied with this share.
        """

    def bases(self, updates: Sequence[Payload]) -> Mapping[str, Tensor]:
        """Return the directions to start the next step from, given the updates of all exchanges; by default none."""
        return {}

    def compacted(self, residuals: Mapping[str, Matrix]) -> Mapping[str, Matrix]:
        """Return residuals with many rows reduced to few; by default unchanged."""
        return residuals

    @abstractmethod
    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Combine all sites' payloads of one exchange, in the plan's order of sites, into the update for all."""

    def combine(
        self, exchange: int, contributions: Sequence[Contribution], share: float, state: MethodState, seed: int
    ) -> Aggregated:
        """Combine the payloads of a region's members into the region's, in the layout of an update.

        Args:
            exchange: within the step.
            contributions: of sites, or of regions within the region.
            share: of the region in the round's total weight; 0 if all of it is out of data.
            state: of the region's aggregator.
            seed: of the region and round.

        Returns:
            The region's contribution, the gradient of its mean loss, and the state if that is applied.
        """
        return self.aggregate(exchange, contributions, state, seed)

    def gradients(self, updates: Sequence[Payload]) -> Payload:
        """Return the pooled gradients in the plan's order, from the updates of all exchanges of a step.

        Every replica, including the aggregator's, applies the result. By default it is the only update.
        """
        return updates[0]


def shares(contributions: Sequence[Contribution]) -> list[float]:
    """Return each site's share of the total weight."""
    total = sum(contribution.weight for contribution in contributions)
    return [contribution.weight / total if total > 0 else 0.0 for contribution in contributions]


def pooled(contributions: Sequence[Contribution]) -> Payload:
    """Return the weighted mean of all payloads, exactly: factors are concatenated, matrices added up.

    Source: arXiv 2102.09631, Algorithm 1.
    """
    parts = shares(contributions)
    return tuple(_weighted_sum(values, parts) for values in zip(*(c.payload for c in contributions), strict=True))


def _weighted_sum(values: Sequence[Matrix], parts: Sequence[float]) -> Matrix:
    factors = [value.scaled(part) for value, part in zip(values, parts, strict=True) if isinstance(value, Factor)]
    if len(factors) == len(values):
        return concatenate(factors)
    total: Tensor | None = None
    for value, part in zip(values, parts, strict=True):
        if isinstance(value, Tensor):
            total = value * part if total is None else total.add_(value, alpha=part)
    assert total is not None
    return total.add_(concatenate(factors).gradient()) if factors else total  # factors and matrices may be mixed


def as_matrix(value: Matrix) -> Tensor:
    """Return an entry of a payload as a matrix; it must not be a factor."""
    assert isinstance(value, Tensor)
    return value


def received(value: Matrix, wire: str) -> Matrix:
    """Return an entry of a payload after encoding and decoding."""
    return all_received([value], wire)[0]


def all_received(values: Sequence[Matrix], wire: str) -> list[Matrix]:
    """Return entries of a payload after encoding and decoding, in a few operations for all of them."""
    sides = [(value.delta, value.activation) if isinstance(value, Factor) else (value,) for value in values]
    arrays = iter(as_received([array for own in sides for array in own], wire))
    return [Factor(next(arrays), next(arrays)) if len(own) == 2 else next(arrays) for own in sides]
