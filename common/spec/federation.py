"""Who takes part, and how many of them a round needs."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.spec.numbers import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

SiteName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
RESERVED = frozenset({"aggregator", "pooled"})


class Federation(Part):
    """Who takes part."""

    sites: Annotated[tuple[SiteName, ...], Field(min_length=1, max_length=1000)]
    """Names of the sites; their order is the order of concatenation."""
    quorum: Literal["all"] | PositiveInt | Annotated[float, Field(gt=0, lt=1)] = "all"
    """How many sites a round needs once all have said hello: all, a number of them, or a part of them."""
    grace: NonNegativeFloat = 5.0
    """Seconds for which the others are waited for when the quorum is in."""
    timeout: PositiveFloat | None = None
    """Seconds after which a round without its quorum ends the run; null waits for as long as it takes."""
    compare_every: NonNegativeInt = 500
    """Steps after which all sites' weights are compared; 0 compares them at the end alone."""
    drift: PositiveFloat = 1e-4
    """Largest distance between two sites' weights, relative to their size; beyond it all take over one replica."""

    @property
    def required_sites(self) -> int:
        """How many sites a round needs."""
        count = len(self.sites)
        if self.quorum == "all":
            return count
        return self.quorum if isinstance(self.quorum, int) else math.ceil(self.quorum * count)

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> Federation:
        if self.required_sites > len(self.sites):
            raise ValueError(f"quorum: got {self.quorum}, expected at most the number of sites, {len(self.sites)}")
        return self

    @model_validator(mode="after")
    def _names_tell_apart(self) -> Federation:
        twice = sorted({name for name in self.sites if self.sites.count(name) > 1})
        if twice:
            raise ValueError(f"names must differ, but {', '.join(twice)} stands there more than once")
        reserved = sorted(RESERVED.intersection(self.sites))
        if reserved:
            raise ValueError(f"no site can be called {', '.join(reserved)}: results use that name")
        return self
