"""A node's half: hands a message on to the site's process, and its next call back.

Flower starts this anew for every message, so nothing heavy is imported. It sends type and text of an exception to the
server, so none leaves this file: what a site has to say travels in its calls.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from rankdad.platforms.flower.site import BODY, ID, KEY, LOST, NAME, answer, name_of, settings_place

app = ClientApp()


@app.query()  # type: ignore[untyped-decorator]
def query(message: Message, context: Context) -> Message:
    """Return the site's next call; or its name, if the message brings no reply."""
    record: dict[str, str | bytes]
    try:
        place, reply = settings_place(context.node_config), message.content[KEY].get(BODY)
        if isinstance(reply, bytes):
            record = {BODY: answer(place, context.run_config.get(ID), str(context.run_id), reply)}
        else:
            record = {NAME: name_of(place)}
    except Exception as error:
        record = {LOST: type(error).__name__}
    return Message(RecordDict({KEY: ConfigRecord(record)}), reply_to=message)
