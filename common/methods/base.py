"""What every method is: pure functions with explicit state; `METHODS` in `common/methods/__init__.py` lists them.

Units: a site contributes the gradient of its own *mean* loss, and the aggregator weights it by the site's share of the
loss's denominators (samples); the division by the total weight is in `shares` alone. Residuals, the site's as the
aggregator's, are in units of the pooled mean, of what is applied: whatever shares the sites have from round to round,
all that was applied and all that is kept add up to all pooled gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rankdad.common.lowrank.factors import Factor, Matrix, concatenate
from rankdad.common.lowrank.routes import Payload
from rankdad.common.lowrank.wire import as_received


@dataclass(frozen=True)
class MethodState:
    """What a method keeps from one round to the next, by parameter name. A method returns a new state, it changes none.

    Args:
        residuals: what was meant and not sent, [out, columns], as a matrix or as its leading rows.
        bases: directions of the last update, [k, columns]: what a reduction starts from.
    """

    residuals: Mapping[str, Matrix] = field(default_factory=dict)
    bases: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Contribution:
    """A site's payload and its weight: the denominator of its mean loss, 0 for a site that is out of data."""

    weight: float
    payload: Payload


SiteStep = Generator[Payload, Payload, MethodState]
"""A step at a site: yields what it sends, is sent the update of each exchange, returns the site's new state."""
Aggregated = tuple[Payload, MethodState]
"""The update of an exchange, and the aggregator's new state."""


class Method(ABC):
    """How gradients travel."""

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
            max_rows: of a factor, that the site's policy lets out in this step; None leaves it to the spec. Only
                rank-dad can do with less than the spec's.

        Yields:
            what to send, laid out as the plan says for this exchange.

        Returns:
            The site's new state, if what it has sent is applied with this share.
        """

    def bases(self, updates: Sequence[Payload]) -> Mapping[str, Tensor]:
        """Return the directions that the next step starts from, from the updates of all exchanges; here none."""
        return {}

    def compacted(self, residuals: Mapping[str, Matrix]) -> Mapping[str, Matrix]:
        """Return residuals in few rows, where they are kept as rows and have become many; here as they are."""
        return residuals

    @abstractmethod
    def aggregate(
        self, exchange: int, contributions: Sequence[Contribution], state: MethodState, seed: int
    ) -> Aggregated:
        """Turn all sites' payloads of one exchange, in the plan's order of sites, into the update that all receive."""

    def combine(
        self, exchange: int, contributions: Sequence[Contribution], share: float, state: MethodState, seed: int
    ) -> Aggregated:
        """Turn the payloads of a region's members into the region's own, laid out as an update is.

        Args:
            exchange: within the step.
            contributions: of sites, or of regions in the region.
            share: of the region in the round's total weight; 0 if all of it is out of data.
            state: of the region's aggregator.
            seed: of the region and round.

        Returns:
            What the region contributes, the gradient of its mean loss, and the state if that is applied.
        """
        return self.aggregate(exchange, contributions, state, seed)

    def gradients(self, updates: Sequence[Payload]) -> Payload:
        """Return the pooled gradients in the plan's order, from the updates of all exchanges of a step.

        Every replica, the aggregator's too, applies what comes of this, and nothing else. Here it is the one update.
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
    return total.add_(concatenate(factors).gradient()) if factors else total  # some from sites, some from regions


def as_matrix(value: Matrix) -> Tensor:
    """Return an entry of a payload that is known to be no factor."""
    assert isinstance(value, Tensor)
    return value


def received(value: Matrix, wire: str) -> Matrix:
    """Return what the other end decodes of an entry of a payload."""
    if isinstance(value, Factor):
        return Factor(as_received(value.delta, wire), as_received(value.activation, wire))
    return as_received(value, wire)
