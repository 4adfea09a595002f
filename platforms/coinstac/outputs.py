"""Messages between sites and aggregator on the platform: JSON under one key of a node's output.

A site sends joined, then sent for every round, then done; or failed. The aggregator sends opened, then updated. A
round's body is the same bytes as over HTTP, in base64. Outputs pass through the platform and are validated here.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)

from rankdad.common.documents import Part
from rankdad.common.errors import ProtocolError, visible
from rankdad.common.protocol.messages import Count, Digest
from rankdad.common.sites import SiteName
from rankdad.platforms.coinstac.form import Line, Problem
from rankdad.platforms.coinstac.given_model import GivenModel
from rankdad.platforms.coinstac.table_profile import Profile

KEY = "rankdad"  # in a node's output
FIGURES = "global_stats"  # folder of pictures in every node's output folder
MAX_PROBLEMS = 200  # of one site
Version = Annotated[str, Field(max_length=63), AfterValidator(visible)]


def _decoded(given: object) -> object:
    return base64.b64decode(given, validate=True) if isinstance(given, str) else given


def _encoded(body: bytes) -> str:
    return base64.b64encode(body).decode("ascii")


Base64 = Annotated[bytes, BeforeValidator(_decoded), PlainSerializer(_encoded, when_used="json")]


class Joined(Part):
    """A site has read its inputs and its data."""

    stage: Literal["joined"] = "joined"
    version: Version
    wire: Count
    site: SiteName
    form: dict[str, JsonValue] = Field(default={})
    """The owner's inputs, if valid."""
    profile: Profile = Profile()
    model: GivenModel | None = None
    """Model of an earlier run, as initial weights or for a test."""
    problems: Annotated[tuple[Problem, ...], Field(max_length=MAX_PROBLEMS)] = ()


class Sent(Part):
    """A site's contribution to a round."""

    stage: Literal["sent"] = "sent"
    round: Count
    body: Base64


class Failed(Part):
    """A site has failed."""

    stage: Literal["failed"] = "failed"
    reason: Line
    site: SiteName | None = None
    """Its name, in the first iteration, before the run is known."""


class Done(Part):
    """A site has written its results."""

    stage: Literal["done"] = "done"
    weights_sha256: Digest


class Opened(Part):
    """The run begins."""

    stage: Literal["opened"] = "opened"
    version: Version
    wire: Count
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    run: dict[str, JsonValue]


class SiteResults(Part):
    """Files of results for every site."""

    summary: dict[str, JsonValue]
    metrics: str
    """The table of metrics, as CSV."""
    report: str
    """The report, as HTML."""
    figures: dict[Annotated[str, Field(pattern=r"^[a-z0-9_]{1,100}$")], Base64]
    """PNG, by name."""


class Updated(Part):
    """A round is complete."""

    stage: Literal["updated"] = "updated"
    round: Count
    body: Base64
    results: SiteResults | None = None
    """With the run's last update."""


FromSite = Joined | Sent | Failed | Done
FromAggregator = Opened | Updated
FROM_SITE: TypeAdapter[FromSite] = TypeAdapter(Annotated[FromSite, Field(discriminator="stage")])
FROM_AGGREGATOR: TypeAdapter[FromAggregator] = TypeAdapter(Annotated[FromAggregator, Field(discriminator="stage")])
T = TypeVar("T")


def is_form(given: Mapping[str, Any]) -> bool:
    """Return whether a node's input is a form rather than another node's output."""
    return KEY not in given


def parsed(kind: TypeAdapter[T], given: object) -> T:
    """Parse a node's output.

    Args:
        kind: `FROM_SITE` or `FROM_AGGREGATOR`.
        given: the output.

    Raises:
        ProtocolError: it is invalid.
    """
    message = given.get(KEY) if isinstance(given, Mapping) else None
    try:
        return kind.validate_python(message, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in (KEY, *first["loc"]))
        raise ProtocolError(
            422, f"{field}: {first['msg']}: do all nodes run the same image?", code="output-malformed", field=field
        ) from None


class NodeState(BaseModel):
    """The platform's description of a node; further keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    iteration: int = 1
    baseDirectory: str = ""  # noqa: N815
    outputDirectory: str  # noqa: N815
    clientId: str = ""  # noqa: N815


@dataclass(frozen=True)
class Reply:
    """A node's answer at the end of an iteration.

    Args:
        output: output for the other nodes, and for people.
        success: whether the run has ended; set only by the aggregator.
    """

    output: dict[str, Any]
    success: bool = False


def reply(message: Part, **shown: Any) -> Reply:
    """Create an answer with a message for the other nodes and displays for people."""
    return Reply({KEY: message.model_dump(mode="json"), **shown})
