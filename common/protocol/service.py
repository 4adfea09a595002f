"""What a service, its sites' agents and owners of runs tell each other, as JSON."""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from rankdad.common.documents import Part
from rankdad.common.errors import CODE
from rankdad.common.spec import SiteName

MAX_RUN_BYTES = 8 << 20  # of a run's spec
MAX_REASON = 2000  # characters
MAX_NEEDED, MAX_REFUSALS = 500, 25  # characters; lines of a policy
MAX_LISTED = 10_000  # runs that a service names at once
RunName = Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9_-]{0,62}-[0-9]{1,9}|[0-9a-f]{16})$")]
"""What a service calls a run; a run that an engine brings is called by its identity."""
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


class FromVersion(Part):
    """A document that says which version and wire have written it, as `OUR_VERSION` does."""

    version: Annotated[str, Field(max_length=63)]
    wire: Annotated[int, Field(ge=0, lt=2**31)]


class Writer(FromVersion, extra="ignore"):
    """Who has written it, read before the rest: another version may have other fields."""


class Poll(FromVersion):
    """An agent asks what there is for its site.

    `known` is the digest of what it was told last: the service answers when that has changed, or after a while.
    """

    known: Annotated[str, Field(max_length=64)] = ""


class Offered(Part):
    """A run that concerns a site: it is asked whether it takes part, or is to train."""

    run: RunName
    id: RunId
    state: Literal["waiting", "running"]
    answer: Answer | None = None


class Offers(Part):
    """All runs that concern a site, and the questions that it has not answered."""

    digest: Annotated[str, Field(max_length=64)]
    runs: Annotated[tuple[Offered, ...], Field(max_length=MAX_LISTED)]
    questions: Annotated[tuple[RunId, ...], Field(max_length=MAX_LISTED)] = ()


class Offer(FromVersion):
    """One of them, with its spec."""

    run: RunName
    id: RunId
    owner: Annotated[str, Field(max_length=63)]
    spec: dict[str, Any]


class Reply(Part):
    """What a site says of a run: it waits for somebody's approval, takes part, does not, or has all that it needs."""

    id: RunId
    answer: Answer
    reason: Reason = ""


class Submission(FromVersion):
    """A run that an owner submits. `id` is drawn by the owner: sent twice, it is one run."""

    id: RunId
    spec: dict[str, Any]


class Question(Submission):
    """A run that is no more than a draft: would the site take part in it? Nothing of it is trained."""

    owner: Annotated[str, Field(max_length=63)]


class Refusal(Part):
    """Why a site would not take part: a line of its policy, or where there is none, the code alone."""

    line: Annotated[str, Field(max_length=63)] = ""
    field: Annotated[str, Field(max_length=200)] = ""
    """Of the spec."""
    code: Annotated[str, Field(max_length=63, pattern=CODE)]
    needed: Annotated[str, Field(max_length=MAX_NEEDED)] = ""
    """The strictest value of the line that lets the run in; of files and columns those that it lacks."""


class Stance(Part):
    """What a site answers from its policy and what is installed there, never from its data."""

    refusals: Annotated[tuple[Refusal, ...], Field(max_length=MAX_REFUSALS)] = ()
    by_hand: bool = False
    """Whether somebody there has to approve every run."""


class Asked(Part):
    """What has become of a question. Times are seconds since 1970."""

    id: RunId
    name: Annotated[str, Field(max_length=63)]
    sites: tuple[SiteName, ...]
    expires: float
    stances: dict[SiteName, Stance]


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
