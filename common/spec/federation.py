"""The sites of a run, and how many of them a round needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.numbers import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from rankdad.common.sites import SiteName
from rankdad.common.spec.overrides import Overrides
from rankdad.common.spec.tree import TOP, Node, nodes_of, problem_of
from rankdad.common.staleness import MAX_STALENESS, check_federation

RESERVED = frozenset({TOP, "pooled"})
MAX_MEMBERS = 1000  # sites and regions together, all named in the last update
ALONE: dict[str, object] = {"quorum": "all", "staleness": 0, "regions": {}, "overrides": {}}  # for a run of one site


class Federation(Part):
    """The sites of a run, and the rounds' quorum."""

    sites: Annotated[tuple[SiteName, ...], Field(min_length=1, max_length=MAX_MEMBERS)]
    """Names of the sites, in the order of concatenation."""
    regions: dict[SiteName, tuple[SiteName, ...]] = Field(default={})
    """Regions with their own aggregators, and their members: sites or other regions; all others are at the top."""
    quorum: Literal["all"] | PositiveInt | Annotated[float, Field(gt=0, lt=1)] = "all"
    """Number of sites that a round needs after hello: all, a number, or a fraction."""
    grace: NonNegativeFloat = 5.0
    """Seconds to wait for the other sites when the quorum is reached."""
    staleness: Annotated[int, Field(ge=0, le=MAX_STALENESS)] = 0
    """Largest number of steps by which a contribution may be late, if its own step has left it out: it joins the
    current step, with its weight divided by one plus its age; 0 for none. Requires a quorum below all, and dsgd or
    rank-dad; with local steps, moments that are reset."""
    timeout: PositiveFloat | None = None
    """Seconds after which a round without its quorum ends the run; null waits without limit."""
    compare_every: NonNegativeInt = 500
    """Steps between two comparisons of all sites' weights; 0 compares them only at the end."""
    drift: PositiveFloat = 1e-4
    """Largest distance between two sites' weights, relative to their size; beyond it, all take over one replica."""

    overrides: Mapping[SiteName, Overrides] = {}
    """Settings of single sites, by name. An epoch has as many steps as the site with most."""

    @property
    def required_sites(self) -> int:
        """Number of sites that a round needs."""
        count = len(self.sites)
        if self.quorum == "all":
            return count
        return self.quorum if isinstance(self.quorum, int) else math.ceil(self.quorum * count)

    @property
    def nodes(self) -> dict[str, Node]:
        """All aggregators by name, upper ones first; one without regions."""
        return nodes_of(self.sites, self.regions)

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Federation:
        if self.required_sites > len(self.sites):
            raise ValueError(f"quorum: got {self.quorum}, expected at most the number of sites, {len(self.sites)}")
        return self

    @model_validator(mode="after")
    def _quorum_allows_lateness(self) -> Federation:
        check_federation(self)
        return self

    @model_validator(mode="after")
    def _overrides_are_of_sites(self) -> Federation:
        for name in self.overrides:
            if name not in self.sites:
                raise ValueError(f"overrides: got {name}, which is no site, expected one of {', '.join(self.sites)}")
        return self

    def trains(self, site: str, epoch: int) -> bool:
        """Return whether a site trains in an epoch, counted from 0."""
        return site not in self.overrides or self.overrides[site].trains(epoch)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Federation:
        twice = sorted({name for name in self.sites if self.sites.count(name) > 1})
        if twice:
            raise ValueError(f"names must differ, but {', '.join(twice)} occurs more than once")
        reserved = sorted(RESERVED.intersection((*self.sites, *self.regions)))
        if reserved:
            raise ValueError(f"no site or region can be called {', '.join(reserved)}: results use that name")
        return self

    @model_validator(mode="after")
    def _regions_are_a_tree(self) -> Federation:
        if problem := problem_of(self.sites, self.regions, MAX_MEMBERS):
            raise ValueError(f"regions: {problem}")
        if self.regions and self.required_sites < len(self.sites):
            raise ValueError(f"quorum: got {self.quorum}, but with regions every round waits for all: expected all")
        return self
