"""What a service, its sites' agents and owners of runs tell each other, as JSON."""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from rankdad.common.documents import Part
from rankdad.common.spec import SiteName

MAX_RUN_BYTES = 8 << 20  # of a run's spec
MAX_REASON = 2000  # characters
MAX_LISTED = 10_000  # runs that a service names at once
RunName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}-[0-9]{1,9}$")]
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Reason = Annotated[str, Field(max_length=MAX_REASON)]


class State(StrEnum):
    """Where a run of a service stands."""

    WAITING = "waiting for sites"
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"


OPEN = (State.WAITING, State.QUEUED, State.RUNNING)
Answer = Literal["asked", "accepted", "refused", "finished"]


class Poll(Part):
    """An agent asks what there is for its site.

    `known` is the digest of what it was told last: the service answers when that has changed, or after a while.
    """

    version: Annotated[str, Field(max_length=63)]
    known: Annotated[str, Field(max_length=64)] = ""


class Offered(Part):
    """A run that concerns a site: it is asked whether it takes part, or is to train."""

    run: RunName
    id: RunId
    state: Literal["waiting", "running"]
    answer: Answer | None = None


class Offers(Part):
    """All runs that concern a site."""

    digest: Annotated[str, Field(max_length=64)]
    runs: Annotated[tuple[Offered, ...], Field(max_length=MAX_LISTED)]


class Offer(Part):
    """One of them, with its spec."""

    run: RunName
    id: RunId
    owner: Annotated[str, Field(max_length=63)]
    version: Annotated[str, Field(max_length=63)]
    spec: dict[str, Any]


class Reply(Part):
    """What a site says of a run: it waits for somebody's approval, takes part, does not, or has all that it needs."""

    id: RunId
    answer: Answer
    reason: Reason = ""


class Submission(Part):
    """A run that an owner submits. `id` is drawn by the owner: sent twice, it is one run."""

    id: RunId
    version: Annotated[str, Field(max_length=63)]
    spec: dict[str, Any]


class SiteAnswer(Part):
    """What a site has said of a run, and when."""

    answer: Answer
    reason: Reason = ""
    time: float


class Described(Part):
    """What a service says of a run to owners and viewers. Times are seconds since 1970."""

    run: RunName
    id: RunId
    name: Annotated[str, Field(max_length=63)]
    owner: Annotated[str, Field(max_length=63)]
    sites: tuple[SiteName, ...]
    state: State
    reason: Reason
    submitted: float
    started: float | None
    ended: float | None
    answers: dict[SiteName, SiteAnswer]
    step: int = 0
    steps: int = 0


class Listing(Part):
    """Runs of a service, the newest first."""

    runs: Annotated[tuple[Described, ...], Field(max_length=MAX_LISTED)]


def run_name(name: str, number: int) -> str:
    """Return what a service calls a run: its spec's name in letters that an address and a folder can have, numbered."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9_]+", "-", plain).strip("-_") or "run"
    return f"{words[:60]}-{number}"
