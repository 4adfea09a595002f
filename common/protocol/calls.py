"""What a site and an aggregator say where an engine carries the bytes: calls up, replies down.

A site has one call at a time, and the reply may take as long as a round. The bytes are hostile until they are read
here. A call carries a contribution as it is; nothing here knows the run's plan.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgpack
from pydantic import Field, ValidationError

from rankdad.common.errors import REASON_CHARACTERS, ProtocolError
from rankdad.common.protocol.messages import Code, Control

HEAD_BYTES = 1 << 13  # of a call or a reply beside its body
MAX_ROUND = 1 << 53
Count = Annotated[int, Field(ge=0, le=MAX_ROUND)]
Word = Annotated[str, Field(max_length=200)]
Sentence = Annotated[str, Field(max_length=REASON_CHARACTERS)]
What = Literal["run", "send", "ask", "snapshot", "done", "give-up", "end"]


class Call(Control):
    """What a site asks.

    run       what the run is
    send      takes a contribution; the reply is its round's update
    ask       whether a round is complete already; the reply is its update, or none
    snapshot  the run's newest state, for a site that has lost its own
    done      the site has all that it needs of the run
    give-up   the site cannot go on: `body` is the message that says so
    end       the site says nothing more, and expects no reply
    """

    what: What
    number: Count
    """Counts the calls of a site's process, from 1."""
    site: Annotated[str, Field(max_length=63)]
    run: Annotated[str, Field(max_length=16)] = ""
    """The run that it is about; "" before the site knows it."""
    round: Count = 0
    computed: Annotated[float, Field(ge=0, lt=1e9)] | None = None
    """Seconds that the site has computed for the step so far."""
    body: bytes = b""
    reason: Sentence = ""
    """Why the site ends before its run does."""


class Reply(Control):
    """What an aggregator answers: bytes, that there are none, or a refusal."""

    number: Count
    """Of the call that it answers; 0 begins."""
    body: bytes | None = None
    status: Annotated[int, Field(ge=200, lt=600)] = 200
    error: Sentence = ""
    code: Code | Literal[""] = ""
    field: Word = ""


C = TypeVar("C", bound=Control)


def packed(said: Call | Reply) -> bytes:
    """Return the bytes of a call or a reply."""
    return bytes(msgpack.packb(said.model_dump(exclude_defaults=True)))


def unpacked(kind: type[C], data: object, limit: int) -> C:
    """Return the call or the reply that bytes hold.

    Args:
        kind: which of the two.
        data: as the engine hands it over.
        limit: bytes of a body.

    Raises:
        ProtocolError: they hold none.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ProtocolError(422, "the engine handed over no bytes", code="body-malformed")
    if len(data) > limit + HEAD_BYTES:
        said = f"the message has {len(data)} bytes, expected at most {limit + HEAD_BYTES}"
        raise ProtocolError(413, said, code="body-too-large")
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
        said = f"{field or 'the message'}: {first['msg']}"
        raise ProtocolError(422, said, code="body-malformed", field=field) from None
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        said = f"the message is not msgpack within the limits: {str(error) or type(error).__name__}"
        raise ProtocolError(422, said, code="body-malformed") from None
