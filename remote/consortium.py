"""A consortium's file: members of runs and the aggregator's address."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, field_validator, model_validator

from rankdad.common.documents import Part
from rankdad.common.sites import SiteName

AGGREGATOR = "aggregator"  # folder of a kit, and not a valid name of a member
CA_DAYS = 3650


class Consortium(Part):
    """Members of runs and the aggregator's address."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,40}$")]
    """The consortium's name, in its authority's certificate."""
    aggregator: str
    """Address at which the sites reach the aggregator, such as https://aggregator.example:8765."""
    sites: Annotated[tuple[SiteName, ...], Field(min_length=1, max_length=1000)]
    """Names of the sites."""
    addresses: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9.:-]{1,253}$")], ...] = ()
    """More names and addresses of the aggregator for its certificate."""
    days: Annotated[int, Field(ge=1, le=CA_DAYS)] = 365
    """Days for which certificates are valid."""
    mutual_tls: bool = True
    """Whether sites also show certificates; behind a proxy that ends TLS, only tokens authenticate them."""

    owners: Annotated[tuple[SiteName, ...], Field(max_length=1000)] = ()
    """Names of members who may submit runs to `rankdad serve`."""
    viewers: Annotated[tuple[SiteName, ...], Field(max_length=1000)] = ()
    """Names of members who may see runs."""
    runs_at_once: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of runs that `rankdad serve` trains at the same time; others wait."""
    max_queue: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Maximum number of waiting and training runs of one owner."""

    @field_validator("aggregator")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if not re.fullmatch(r"https://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/\S*)?", value):
            raise ValueError(f"got {value!r}, expected an address such as https://aggregator.example:8765")
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> Consortium:
        if len(set(self.members)) < len(self.members) or AGGREGATOR in self.members:
            raise ValueError(f"sites, owners, viewers: names must differ, and none may be {AGGREGATOR}")
        return self

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all authenticated members."""
        return (*self.sites, *self.owners, *self.viewers)

    @property
    def hosts(self) -> set[str]:
        """Permitted names of the aggregator in requests."""
        return {name.lower() for name in (self.address.hostname or "", *self.addresses)}

    @property
    def address(self) -> SplitResult:
        """The aggregator's address in parts."""
        return urlsplit(self.aggregator)
