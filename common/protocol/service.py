"""Messages between a service, its sites' agents and owners of runs, as JSON."""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from rankdad.common.documents import Part
from rankdad.common.errors import CODE
from rankdad.common.sites import SiteName

MAX_RUN_BYTES = 8 << 20  # of a run's spec
MAX_REASON = 2000  # characters
MAX_NEEDED, MAX_REFUSALS = 500, 25  # characters; lines of a policy
MAX_LISTED = 10_000  # runs in a listing
RunName = Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9_-]{0,62}-[0-9]{1,9}|[0-9a-f]{16})$")]
"""The name of a run at a service; an engine's run has its identity as name."""
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Reason = Annotated[str, Field(max_length=MAX_REASON)]


class State(StrEnum):
    """The state of a run at a service."""

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
    """A document with the version and wire of its writer, as in `OUR_VERSION`."""

    version: Annotated[str, Field(max_length=63)]
    wire: Annotated[int, Field(ge=0, lt=2**31)]


class Writer(FromVersion, extra="ignore"):
    """The writer's version, read before the other fields, which may differ between versions."""


class Poll(FromVersion):
    """An agent's request for offers.

    `known` is the digest of its last offers: the service answers when they change, or after a while.
    """

    known: Annotated[str, Field(max_length=64)] = ""


class Offered(Part):
    """A run that a site is asked to take part in, or trains."""

    run: RunName
    id: RunId
    state: Literal["waiting", "running"]
    answer: Answer | None = None


class Offers(Part):
    """All offered runs of a site, and its open questions."""

    digest: Annotated[str, Field(max_length=64)]
    runs: Annotated[tuple[Offered, ...], Field(max_length=MAX_LISTED)]
    questions: Annotated[tuple[RunId, ...], Field(max_length=MAX_LISTED)] = ()


class Offer(FromVersion):
    """An offered run with its spec."""

    run: RunName
    id: RunId
    owner: Annotated[str, Field(max_length=63)]
    spec: dict[str, Any]


class Reply(Part):
    """A site's answer to an offered run: waiting for approval, accepted, refused or finished."""

    id: RunId
    answer: Answer
    reason: Reason = ""


class Submission(FromVersion):
    """A run that an owner submits. The owner draws `id`, so that repeated requests are one run."""

    id: RunId
    spec: dict[str, Any]


class Question(Submission):
    """A draft: would the site take part in it? It is not trained."""

    owner: Annotated[str, Field(max_length=63)]


class Refusal(Part):
    """Why a site would not take part: a policy line, or only the code."""

    line: Annotated[str, Field(max_length=63)] = ""
    field: Annotated[str, Field(max_length=200)] = ""
    """Field of the spec."""
    code: Annotated[str, Field(max_length=63, pattern=CODE)]
    needed: Annotated[str, Field(max_length=MAX_NEEDED)] = ""
    """The strictest value of the line that would allow the run; for files and columns the missing ones."""


class Stance(Part):
    """A site's answer from its policy and installed packages, without data."""

    refusals: Annotated[tuple[Refusal, ...], Field(max_length=MAX_REFUSALS)] = ()
    by_hand: bool = False
    """Whether the site's staff has to approve every run."""


class Asked(Part):
    """The state of a question. Times are seconds since 1970."""

    id: RunId
    name: Annotated[str, Field(max_length=63)]
    sites: tuple[SiteName, ...]
    expires: float
    stances: dict[SiteName, Stance]


class SiteAnswer(Part):
    """A site's answer, and its time."""

    answer: Answer
    reason: Reason = ""
    time: float


class Described(Part):
    """A run for owners and viewers. Times are seconds since 1970."""

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
    """Runs of a service, newest first."""

    runs: Annotated[tuple[Described, ...], Field(max_length=MAX_LISTED)]


def run_name(name: str, number: int) -> str:
    """Return a run's name at a service: its spec's name in letters valid in addresses and folders, with a number."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9_]+", "-", plain).strip("-_") or "run"
    return f"{words[:60]}-{number}"
