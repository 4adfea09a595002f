"""State for checking contributions: the roster, the plan and the last test."""

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
MAX_SIZE = 1e17  # of a gradient or buffer, so that squares summed over sites do not overflow in float32


class Checks:
    """What an aggregator knows to check contributions, before they are recorded.

    A refused contribution changes nothing; the answer names the wrong field, and the site may send again.

    Args:
        spec: of the run.
        plan: of the run.
        state: of the run.
        node: the aggregator.

    Attributes:
        samples: training, validation and test samples of every child in every fold; empty before hello.
        retain: whether every site's policy lets contributions stay beyond the run's end.
        tests: tallies of the last test, by child: the model's, and those of its rivals.
    """

    def __init__(self, spec: RunSpec, plan: Plan, state: RunState, node: Node) -> None:
        self.spec, self.plan, self.state, self.node = spec, plan, state, node
        self.preparing = Preparing(spec)
        self.samples: Mapping[str, Sequence[Sequence[int]]] = {}
        self.retain = False
        self.tests: Mapping[str, Sequence[Tally]] = {}

    def set_samples(self, samples: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Set all sites' sample counts; a region's are those of all its sites."""
        sites = self.plan.sites
        self.samples = {
            child: torch.tensor([samples[sites[place]] for place in places]).sum(dim=0).tolist()
            for child, places in self.node.places.items()
        }

    def samples_of(self, site: str, split: Split) -> int:
        """Return the number of a child's samples in a split of the current fold."""
        return self.samples[site][self.state.fold][PLACES[split]]

    def names(self, field: str, region: str, got: Collection[str], *, sites: bool = False) -> None:
        """Check that a region names its sites and its regions, or only its sites."""
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
        """Check a number of samples; `named` is the field's description."""
        if not math.isclose(got, expected, rel_tol=1e-12):  # regions may add in any order
            raise ProtocolError(
                422,
                f"{named}: is of {got:g} samples, expected the {expected:g} that the site has",
                code="weight-differs",
                field=field or named,
            )
