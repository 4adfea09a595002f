"""Calls of a site and replies of an aggregator, for engines that carry bytes.

A site has one open call at a time, and its reply may take as long as a round. Bytes are untrusted until they are
checked here. A call carries a contribution unchanged; this module does not know the plan.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgpack
from pydantic import Field, ValidationError

from rankdad.common.errors import REASON_CHARACTERS, ProtocolError
from rankdad.common.protocol.messages import Code, Control

HEAD_BYTES = 1 << 13  # of a call or a reply without its body
STOPPED = "job-stopped"  # code of a refusal: the run stops, and resumes in another job
MAX_ROUND = 1 << 53
Count = Annotated[int, Field(ge=0, le=MAX_ROUND)]
Word = Annotated[str, Field(max_length=200)]
Sentence = Annotated[str, Field(max_length=REASON_CHARACTERS)]
What = Literal["run", "send", "ask", "snapshot", "done", "give-up", "end"]


class Call(Control):
    """A call of a site.

    run       requests the run's document
    send      sends a contribution; the reply is its round's update
    ask       asks whether a round is complete; the reply is its update, or empty
    snapshot  requests the run's newest state, for a site that has lost its own
    done      the site needs nothing more from the run
    give-up   the site cannot continue: `body` is its failure message
    end       the last call, without a reply
    """

    what: What
    number: Count
    """Number of the call in a site's process, from 1."""
    site: Annotated[str, Field(max_length=63)]
    run: Annotated[str, Field(max_length=16)] = ""
    """Identity of the run; "" before the site knows it."""
    round: Count = 0
    computed: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """Seconds of computing for the step so far."""
    body: bytes = b""
    reason: Sentence = ""
    """Why the site ends before its run."""


class Reply(Control):
    """A reply of an aggregator: bytes, none, or a refusal."""

    number: Count
    """Number of the call; 0 for the first reply."""
    body: bytes | None = None
    status: Annotated[int, Field(ge=200, lt=600)] = 200
    error: Sentence = ""
    code: Code | Literal[""] = ""
    field: Word = ""


C = TypeVar("C", bound=Control)


def packed(said: Call | Reply) -> bytes:
    """Encode a call or a reply."""
    return bytes(msgpack.packb(said.model_dump(exclude_defaults=True)))


def unpacked(kind: type[C], data: object, limit: int) -> C:
    """Decode a call or a reply.

    Args:
        kind: `Call` or `Reply`.
        data: from the engine.
        limit: bytes of a body.

    Raises:
        ProtocolError: the bytes are invalid.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ProtocolError(422, "the engine handed over no bytes", code="body-malformed")
    if len(data) > limit + HEAD_BYTES:
        text = f"the message has {len(data)} bytes, expected at most {limit + HEAD_BYTES}"
        raise ProtocolError(413, text, code="body-too-large")
    try:
        document = msgpack.unpackb(
            data,
            max_bin_len=limit,
            max_str_len=4 * REASON_CHARACTERS,
            max_array_len=0,
            max_map_len=len(kind.model_fields),
            max_ext_len=0,
        )
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])[:60]
        text = f"{field or 'the message'}: {first['msg']}"
        raise ProtocolError(422, text, code="body-malformed", field=field) from None
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        text = f"the message is not msgpack within the limits: {str(error) or type(error).__name__}"
        raise ProtocolError(422, text, code="body-malformed") from None
