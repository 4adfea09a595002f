"""What an aggregator tells a site of the contributions that it had kept of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankdad.common.documents import Part

FILE = "receipt.json"  # beside a site's results
Amount = Annotated[int, Field(ge=0, lt=2**63)]
Ended = Literal["completed", "failed", "interrupted", "refused"]
Stays = Literal["updates", "checkpoints", "results"]


class Kept(Part):
    """Contributions of one site."""

    contributions: Amount = 0
    bytes: Amount = 0


class Receipt(Part):
    """What has become of a site's contributions at a run's end."""

    run: Annotated[str, Field(max_length=63)]
    site: Annotated[str, Field(max_length=63)]
    status: Ended
    """How the run has ended."""
    deleted: bool
    """Whether the contributions that were still there are gone; else every site's policy lets them stay."""
    contributions: Amount
    """How many there still were: those that no checkpoint needed had gone before."""
    bytes: Amount
    """Of these."""
    time: Annotated[str, Field(max_length=40)]
    """When, in UTC."""
    stays: tuple[Stays, ...] = ("updates", "checkpoints", "results")
    """What of the run is left at the aggregator: sums of all sites, and what follows from them."""
