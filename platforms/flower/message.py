"""What Flower's messages hold of rankdad's, one record under one name. Nothing here is the engine's."""

from __future__ import annotations

from collections.abc import Mapping

KEY = "rankdad"  # of the record, and in a SuperNode's configuration of the site's settings
BODY = "body"  # a reply to a site, or its call; a message without one asks for the site's name
NAME = "name"  # what a site calls itself
LOST = "lost"  # the kind of the error that keeps a node from starting its site
ID, RUN = "id", "run"  # in a job's configuration


def text(record: Mapping[str, object], key: str) -> str:
    """Return a word of a record; "" if there is none."""
    value = record.get(key)
    return value if isinstance(value, str) else ""
