"""Questions: drafts of runs, and sites' answers by their policies. They stay in the queue's database for an hour.

Questions and owners' limits survive a restart.
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
        queue: the queue with the database.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._known: tuple[int, list[tuple[str, float, set[str]]]] = (
            -1,
            [],
        )  # last change, and questions

    def ask(self, id_: str, name: str, owner: str, sites: Sequence[str], spec: dict[str, Any]) -> Asked:
        """Add a question; an existing one remains unchanged.

        Args:
            id_: identity chosen by the owner.
            name: name in the spec.
            owner: the owner.
            sites: the sites to ask.
            spec: the spec as received.

        Raises:
            ProtocolError: 409 if the identity belongs to another question, or there are too many.
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
                        f"too many questions: {MOST_OF_OWNER} of one owner within an hour, and {MOST} of all, are "
                        "allowed: wait, or submit the run",
                        code="too-many-questions",
                    )
                values = (id_, name, owner, text, json.dumps(list(sites)), now)
                database.execute("insert into questions values (?, ?, ?, ?, ?, ?)", values)
        return self.asked(id_, owner)

    def asked(self, id_: str, owner: str) -> Asked:
        """Return a question's answers to its owner.

        Raises:
            ProtocolError: 404 if the owner has no such question from the last hour.
        """
        name, sites, asked, _, _ = self._found("id = ? and owner = ?", id_, owner)
        rows = self._queue.database.execute("select site, stance from stances where question = ?", (id_,))
        stances = {site: validate(Stance, parse_json(text.encode())) for site, text in rows}
        return Asked(id=id_, name=name, sites=sites, expires=asked + LASTS, stances=stances)

    def of(self, site: str) -> list[str]:
        """Return the identities of the questions that a site has not answered."""
        changes, known = self._known
        if changes != self._queue.changes:
            changes, known = self._queue.changes, []
            for id_, sites, asked in self._queue.database.execute(
                "select id, sites, asked from questions order by asked"
            ):
                answered = self._queue.database.execute("select site from stances where question = ?", (id_,))
                known.append((id_, asked, {*json.loads(sites)} - {name for (name,) in answered}))
            self._known = (changes, known)
        return [id_ for id_, asked, sites in known if site in sites and asked > self._queue.now() - LASTS]

    def question(self, id_: str, site: str) -> Question:
        """Return a question to one of its sites.

        Raises:
            ProtocolError: 404 if it is unknown, expired, or for other sites.
        """
        _, sites, _, owner, spec = self._found("id = ?", id_)
        if site not in sites:
            raise _unknown()
        return Question(id=id_, **OUR_VERSION, spec=json.loads(spec), owner=owner)

    def answer(self, id_: str, site: str, stance: Stance) -> None:
        """Store a site's answer; the first one counts.

        Raises:
            ProtocolError: 404 if it is unknown, expired, or for other sites.
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
