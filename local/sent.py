"""A site's record of sent messages, a row for each, next to the run's results."""

from __future__ import annotations

import csv
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rankdad.common.preparation import Preparing
from rankdad.common.preparation.coefficients import OWN
from rankdad.common.protocol.messages import Message
from rankdad.common.rounds.sums import Sums
from rankdad.common.spec import RunSpec
from rankdad.local.starting import RUN_ID_FILE

FILE = "sent.csv"
COLUMNS = ("round", "exchange", "what", "bytes")


class Traffic(NamedTuple):
    """Messages of one kind."""

    messages: int
    bytes: int


class Messages:
    """Record the messages of a run.

    Args:
        folder: of the results.
        spec: of the run.
        again: whether to append to existing rows; messages that are sent again appear twice.
    """

    def __init__(self, folder: Path, spec: RunSpec, *, again: bool = False) -> None:
        path = folder / FILE
        goes_on = again and path.exists()
        self._file = path.open("a" if goes_on else "w", newline="", encoding="utf-8", buffering=1)
        self._rows, self._products = csv.writer(self._file, lineterminator="\n"), Preparing(spec).solving.stages
        if not goes_on:
            self._rows.writerow(COLUMNS)

    def note(self, message: Message, size: int) -> None:
        """Record a message of so many bytes."""
        what = message.kind.name.lower()
        if isinstance(message.body, Sums) and message.body.stage in self._products:
            what = "coefficients" if message.body.stage == OWN else "products"
        self._rows.writerow([message.round, message.exchange, what, size])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def sent(output: Path, run: str) -> dict[str, Traffic]:
    """Return the messages of a run by kind, most bytes first; none if there is no record.

    Args:
        output: of the site.
        run: the run's identity.
    """
    messages, sizes = Counter[str](), Counter[str]()
    for folder in (output, *output.glob("*/"), *output.glob("runs/*/"), *output.glob("runs/*/*/")):
        with suppress(OSError, ValueError, KeyError):  # of another version, or cut off
            if folder.name.endswith(f"-{run}") or (folder / RUN_ID_FILE).read_text() == run:
                with (folder / FILE).open(newline="", encoding="utf-8") as rows:
                    for row in csv.DictReader(rows):
                        messages[row["what"]] += 1
                        sizes[row["what"]] += int(row["bytes"])
    return {what: Traffic(messages[what], size) for what, size in sizes.most_common()}
