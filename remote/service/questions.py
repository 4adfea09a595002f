"""Questions: drafts of runs, and what sites answer from their policies. They are in the queue's database for an hour.

So a service that starts again has them still, and an owner's limit is the same as before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rankdad.common.documents import parse_json, validate
from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.service import Asked, Question, Stance
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.remote.service.queue import Queue

LASTS = 3600.0  # seconds
MOST, MOST_OF_OWNER = 100, 10  # within that time


class Questions:
    """The questions of a service's owners.

    Args:
        queue: in whose database they are.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._known: tuple[int, list[tuple[str, float, set[str]]]] = (-1, [])  # by the number of the last change

    def ask(self, id_: str, name: str, owner: str, sites: Sequence[str], spec: dict[str, Any]) -> Asked:
        """Add a question; one that is there already stays as it is.

        Args:
            id_: drawn by whoever asks.
            name: in the spec.
            owner: who asks.
            sites: that are asked.
            spec: as it came.

        Raises:
            ProtocolError: 409 if the number is another question's, or there are too many.
            QueueError: it cannot be written.
        """
        text, now = json.dumps(spec), self._queue.now()
        with self._queue.writing() as database:
            for table, column in (("stances", "question"), ("questions", "id")):
                old = f"delete from {table} where {column} in (select id from questions where asked <= ?)"
                database.execute(old, (now - LASTS,))
            known = database.execute("select owner, spec from questions where id = ?", (id_,)).fetchone()
            if known is not None and known != (owner, text):
                raise ProtocolError(409, "id: is another question's", code="id-taken", field="id")
            if known is None:
                counts = "select count(*), coalesce(sum(owner = ?), 0) from questions"
                in_all, own = database.execute(counts, (owner,)).fetchone()
                if own >= MOST_OF_OWNER or in_all >= MOST:
                    raise ProtocolError(
                        409,
                        f"asks too often: {MOST_OF_OWNER} questions of one owner within an hour, {MOST} of all, are "
                        "allowed: wait, or submit the run",
                        code="too-many-questions",
                    )
                values = (id_, name, owner, text, json.dumps(list(sites)), now)
                database.execute("insert into questions values (?, ?, ?, ?, ?, ?)", values)
        return self.asked(id_, owner)

    def asked(self, id_: str, owner: str) -> Asked:
        """Return what has become of a question, to whoever asked it.

        Raises:
            ProtocolError: 404, this owner has asked none of this number within the last hour.
        """
        name, sites, asked, _, _ = self._found("id = ? and owner = ?", id_, owner)
        rows = self._queue.database.execute("select site, stance from stances where question = ?", (id_,))
        stances = {site: validate(Stance, parse_json(text.encode())) for site, text in rows}
        return Asked(id=id_, name=name, sites=sites, expires=asked + LASTS, stances=stances)

    def of(self, site: str) -> list[str]:
        """Return the numbers of the questions that a site has not answered."""
        changes, known = self._known
        if changes != self._queue.changes:
            changes, known = self._queue.changes, []
            for id_, sites, asked in self._queue.database.execute(
                "select id, sites, asked from questions order by asked"
            ):
                said = self._queue.database.execute("select site from stances where question = ?", (id_,))
                known.append((id_, asked, {*json.loads(sites)} - {name for (name,) in said}))
            self._known = (changes, known)
        return [id_ for id_, asked, sites in known if site in sites and asked > self._queue.now() - LASTS]

    def question(self, id_: str, site: str) -> Question:
        """Return a question to a site that is asked.

        Raises:
            ProtocolError: 404, it is not, or no longer.
        """
        _, sites, _, owner, spec = self._found("id = ?", id_)
        if site not in sites:
            raise _unknown()
        return Question(id=id_, **OUR_VERSION, spec=json.loads(spec), owner=owner)

    def answer(self, id_: str, site: str, stance: Stance) -> None:
        """Write down what a site answers; the first answer stands.

        Raises:
            ProtocolError: 404, the site is not asked, or no longer.
            QueueError: it cannot be written.
        """
        if site not in self._found("id = ?", id_)[1]:
            raise _unknown()
        with self._queue.writing() as database:
            database.execute("insert or ignore into stances values (?, ?, ?)", (id_, site, stance.model_dump_json()))

    def _found(self, condition: str, *values: str) -> tuple[str, tuple[str, ...], float, str, str]:
        """Return a question's name, sites, time, owner and spec."""
        row = self._queue.database.execute(
            f"select name, sites, asked, owner, spec from questions where asked > ? and {condition}",
            (self._queue.now() - LASTS, *values),
        ).fetchone()
        if row is None:
            raise _unknown()
        name, sites, *rest = row
        return name, tuple(json.loads(sites)), *rest


def _unknown() -> ProtocolError:
    return ProtocolError(404, "no such question here, or it has expired: ask again", code="question-unknown")
