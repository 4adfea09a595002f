"""A node's half: hands a message on to the site's resident process, and its next call back.

Flower starts this anew for every message, so it imports nothing heavy. It sends type and text of an exception to the
server, so none leaves this file: what a site has to say travels in its calls.
"""

from __future__ import annotations

import re

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from rankdad.platforms.flower import resident
from rankdad.platforms.flower.message import BODY, ID, KEY, LOST, NAME, text

app = ClientApp()


@app.query()  # type: ignore[untyped-decorator]
def query(message: Message, context: Context) -> Message:
    """Return the site's next call, or its name."""
    record: dict[str, str | bytes]
    try:
        place = resident.settings_place(context.node_config)
        reply = message.content[KEY].get(BODY)
        if isinstance(reply, bytes):
            record = {BODY: _advance(place, context, reply)}
        else:
            record = {NAME: resident.name_of(place)}
    except Exception as error:
        record = {LOST: type(error).__name__}
    return Message(RecordDict({KEY: ConfigRecord(record)}), reply_to=message)


def _advance(place: str, context: Context, reply: bytes) -> bytes:
    number = text(context.run_config, ID)
    if not re.fullmatch(r"[0-9a-f]{16}", number):
        raise ValueError("a job's identity")
    return resident.advance(place, number, str(context.run_id), reply)
