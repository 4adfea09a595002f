"""An aggregator's receipt for a site's contributions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rankdad.common.documents import Part

FILE = "receipt.json"  # next to a site's results
Amount = Annotated[int, Field(ge=0, lt=2**63)]
Ended = Literal["completed", "failed", "interrupted", "refused"]
Stays = Literal["updates", "checkpoints", "results"]


class Kept(Part):
    """Contributions of one site."""

    contributions: Amount = 0
    bytes: Amount = 0


class Receipt(Part):
    """What happened to a site's contributions at a run's end."""

    run: Annotated[str, Field(max_length=63)]
    site: Annotated[str, Field(max_length=63)]
    status: Ended
    """State of the ended run."""
    deleted: bool
    """Whether the remaining contributions were deleted; otherwise every site's policy lets them stay."""
    contributions: Amount
    """Number of remaining contributions: those not needed by a checkpoint had been deleted before."""
    bytes: Amount
    """Their size in bytes."""
    time: Annotated[str, Field(max_length=40)]
    """Time, in UTC."""
    stays: tuple[Stays, ...] = ("updates", "checkpoints", "results")
    """What remains at the aggregator: sums over all sites, and results of them."""
