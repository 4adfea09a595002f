"""A site of one process: what several ranks share, it has by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from rankdad.common.lowrank.routes import Payload
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.data import SiteData


class Alone:
    """The one process of a site; `local.ranks.sharing` has what several do in its place."""

    @property
    def key(self) -> tuple[int, ...]:
        """What this rank's random numbers are drawn from, beside what those of all ranks are."""
        return ()

    def introduce(self, offered: Mapping[str, Any]) -> None:
        """Tell all ranks which run the aggregator offers."""

    def alike(self, samples: Sequence[int], largest: int) -> bool:
        """Tell whether all ranks divide their parts of batches into as many parts.

        Args:
            samples: of each batch.
            largest: samples that go through the network at once.
        """
        return True

    def state(self, spec: RunSpec, plan: Plan, replica: Replica) -> RunState:
        """Return the state of a run at its beginning, whose updates all ranks follow."""
        return RunState(spec, plan, replica)

    def compare(self, spec: RunSpec, plan: Plan, data: SiteData, model: nn.Module) -> None:
        """Check that all ranks have the same model and the same data, and can share batches of them."""

    def start(self, run: RunState) -> None:
        """Let all ranks start from where a run stands."""

    def hear(self, round_: int, answer: bytes) -> None:
        """Take note of the aggregator's answer in a round: an update that may be followed later."""

    def begin(self, moments: Mapping[str, Tensor]) -> None:
        """Let all ranks compute their part of the next step, with these moments of the site's own optimizer."""

    def part(self, rows: Tensor) -> Tensor:
        """Return which of a batch's samples are this rank's part, of their places [n]."""
        return rows

    def pooled(self, payload: Payload, loss: float) -> tuple[Payload, float] | None:
        """Return the gradients of the whole batch and its loss at rank 0, and None at the others.

        Args:
            payload: of this rank's part, in the plan's order: its share of the gradients of the batch's mean loss.
            loss: its share of that loss.
        """
        return payload, loss

    def summed(self, gradients: Mapping[str, Tensor], loss: float) -> tuple[Mapping[str, Tensor], float]:
        """Return the gradients of the whole batch by parameter and its loss, the same at all ranks.

        Args:
            gradients: of this rank's part, by parameter.
            loss: its share of the loss.
        """
        return gradients, loss

    def gathered(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the rows of all ranks, in their order, and where this rank's begin; their numbers may differ."""
        return rows, 0

    def end(self) -> None:
        """Let all ranks end: the run is over."""
