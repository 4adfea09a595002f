"""A site's life in a job, and the names that the apps share. Nothing here is the engine's, and nothing is heavy."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rankdad.local.drivers.resident import address_of, advance, serve
from rankdad.platforms.flower import ENVIRONMENT, SERVER

if TYPE_CHECKING:
    from rankdad.local.drivers.carried import CarriedConnection

KEY = "rankdad"  # of the record in a message, and of the settings in a SuperNode's configuration
BODY, NAME, LOST = "body", "name", "lost"  # in a record: a reply or a call; a site's name; what keeps it from starting
ID, RUN = "id", "run"  # in a job's configuration


def settings_place(node: Mapping[str, object]) -> str:
    """Return where a site's settings lie, by the configuration of its node; "" if the node does not say."""
    given, part, folder = node.get(KEY), node.get("partition-id"), os.environ.get(ENVIRONMENT)
    if not isinstance(given, str) and folder and isinstance(part, int):  # a node of a simulation
        names = sorted(path for path in Path(folder).glob("*.json") if path.stem != SERVER)
        given = str(names[part]) if part < len(names) else ""
    return given if isinstance(given, str) else ""


def name_of(place: str) -> str:
    """Return the name in a site's settings; "" if they cannot be read."""
    with suppress(OSError, ValueError):
        document = json.loads(Path(place).read_text(encoding="utf-8"))
        name = document.get("name") if isinstance(document, dict) else None
        return name if isinstance(name, str) else ""
    return ""


def answer(place: str, run: object, job: str, reply: bytes) -> bytes:
    """Hand a reply to the site whose settings lie at a place, and return its next call."""
    if not isinstance(run, str) or not re.fullmatch(r"[0-9a-f]{16}", run):
        raise ValueError
    address = address_of(place, run)
    return advance([sys.executable, "-m", __name__, place, job, str(address)], address, job, reply)


def live(place: str) -> Callable[[CarriedConnection], None]:
    """Return the life of the site whose settings lie at a place."""

    def life(connection: CarriedConnection) -> None:
        from rankdad.local.agent.started import take_part
        from rankdad.platforms.flower.settings import site_settings

        take_part(site_settings(place), connection, "flower")

    return life


if __name__ == "__main__":
    serve(name_of(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), live(sys.argv[1]))
    os._exit(0)  # a thread may still compute for a job that has ended
