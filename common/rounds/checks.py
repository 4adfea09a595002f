"""What a round's `check` holds a contribution against: the roster, the plan and the last test."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from rankdad.common.errors import ProtocolError
from rankdad.common.metrics.sums import Tally
from rankdad.common.preparation import Preparing
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import Node, names_in

if TYPE_CHECKING:
    from rankdad.common.protocol.plan import Plan
    from rankdad.common.run.state import RunState

Split = Literal["train", "validation", "test"]
PLACES: Mapping[Split, int] = {"train": 0, "validation": 1, "test": 2}
MAX_SIZE = 1e17  # of a gradient or buffer: squares stay numbers in float32, however many sites add up


class Checks:
    """What is known of a run by which a contribution is judged, before it is recorded or counts.

    A refused contribution changes nothing. The answer names the field that is wrong, and the site may send again.

    Args:
        spec: of the run.
        plan: of the run.
        state: of the run.
        node: whose children send.

    Attributes:
        samples: every child's in every fold, to train, to validate and to test; empty until all have said hello.
        retain: whether every site's policy lets contributions stay beyond the run's end.
        tests: of the last test the tallies of every child that took part: the model's, and those of its rivals.
    """

    def __init__(self, spec: RunSpec, plan: Plan, state: RunState, node: Node) -> None:
        self.spec, self.plan, self.state, self.node = spec, plan, state, node
        self.preparing = Preparing(spec)
        self.samples: Mapping[str, Sequence[Sequence[int]]] = {}
        self.retain = False
        self.tests: Mapping[str, Sequence[Tally]] = {}

    def meet(self, samples: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Take note of all sites' samples: a child's are those of all sites below it."""
        sites = self.plan.sites
        self.samples = {
            child: torch.tensor([samples[sites[place]] for place in places]).sum(dim=0).tolist()
            for child, places in self.node.places.items()
        }

    def samples_of(self, site: str, split: Split) -> int:
        """Return how many samples a child has in a split of the present fold."""
        return self.samples[site][self.state.fold][PLACES[split]]

    def names(self, field: str, region: str, got: Collection[str], *, sites: bool = False) -> None:
        """Check that a region names its sites and its regions, or its sites alone."""
        expected = set(names_in(self.spec.federation.nodes, region))
        if sites:
            expected &= set(self.plan.sites)
        if wrong := sorted(set(got) ^ expected):
            raise ProtocolError(
                422,
                f"d.{field}: names others than {region} has: {', '.join(wrong[:5])}",
                code="site-unknown",
                field=f"d.{field}",
            )

    def count(self, named: str, got: float, expected: float, *, field: str = "") -> None:
        """Check of how many samples something is, which has a name in words beside its field's."""
        if not math.isclose(got, expected, rel_tol=1e-12):  # the order in which a region adds up its sites is its own
            raise ProtocolError(
                422,
                f"{named}: is of {got:g} samples, expected the {expected:g} that the site has",
                code="weight-differs",
                field=field or named,
            )
