"""The queue: all submitted runs and their sites' answers, in a durable database.

One statement moves a run between states and names the permitted previous states, so that a run starts only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from rankdad.common.errors import ProtocolError, RankdadError, UserError, visible
from rankdad.common.protocol.service import MAX_REASON, OPEN, Answer, Described, SiteAnswer, State, run_name

FILE = "queue.sqlite"  # in a service's directory
FORMAT = 1
ANSWER_ORDER: tuple[Answer, ...] = ("asked", "accepted", "refused", "finished")
ASKS_ON = 60.0  # seconds for which other sites are still asked about a refused run
SCHEMA = """
create table if not exists runs (
    number integer primary key, run text not null unique, id text not null unique, name text not null,
    owner text not null, spec text not null, sites text not null, state text not null, reason text not null,
    submitted real not null, started real, ended real
) strict;
create index if not exists runs_by_state on runs (state);
create table if not exists answers (
    run text not null, site text not null, answer text not null, reason text not null, time real not null,
    primary key (run, site)
) strict;
create table if not exists questions (
    id text primary key, name text not null, owner text not null, spec text not null, sites text not null,
    asked real not null
) strict;
create table if not exists stances (
    question text not null, site text not null, stance text not null, primary key (question, site)
) strict;
"""

P = ParamSpec("P")
T = TypeVar("T")


class QueueError(RankdadError):
    """The queue cannot be written: it is locked, or the disk is full or broken. Nothing has changed then."""


@dataclass(frozen=True)
class Entry:
    """A run of the queue.

    Args:
        number: in the order of submission.
        run: its name in the service.
        id: its identity for sites, 16 hexadecimal digits.
        name: its name in the spec.
        owner: its owner; "" without authentication.
        sites: the participants.
        state: its state.
        reason: reason for the state.
        submitted: seconds since 1970, like the following.
        started: None before.
        ended: None before.
        answers: the sites' answers.
    """

    number: int
    run: str
    id: str
    name: str
    owner: str
    sites: tuple[str, ...]
    state: State
    reason: str
    submitted: float
    started: float | None
    ended: float | None
    answers: dict[str, SiteAnswer]

    def answered(self, *answers: Answer) -> list[str]:
        """Return the sites with one of these answers."""
        return [site for site in self.sites if site in self.answers and self.answers[site].answer in answers]

    @property
    def agreed(self) -> bool:
        """Whether all sites take part."""
        return len(self.answered("accepted", "finished")) == len(self.sites)

    @property
    def open(self) -> bool:
        """Whether some site still needs it."""
        return self.state in OPEN or (self.state is State.ENDED and len(self.answered("finished")) < len(self.sites))

    def asks(self, now: float) -> bool:
        """Return whether sites are still asked about a refused run, so that its owner gets all answers at once."""
        return self.state is State.REFUSED and now - (self.ended or 0.0) < ASKS_ON

    def described(self, step: int = 0, steps: int = 0) -> Described:
        """Return the run for owners and viewers."""
        fields = {name: value for name, value in vars(self).items() if name not in ("number", "reason")}
        refused = {site: self.answers[site].reason for site in self.answered("refused")}
        reasons = "; ".join(f"{site}: {reason}" for site, reason in refused.items())
        text = reasons if self.state is State.REFUSED and len(refused) > 1 else self.reason
        reason = visible(text or self._waits_for(), MAX_REASON)
        return Described.model_construct(**fields, reason=reason, step=step, steps=steps)

    def _waits_for(self) -> str:
        if self.state is not State.WAITING:
            return ""
        asked = self.answered("asked")
        silent = [site for site in self.sites if site not in self.answers]
        parts = [f"approval at {', '.join(asked)}"] * bool(asked) + [f"answers from {', '.join(silent)}"] * bool(silent)
        return " and ".join(parts)


class Queue:
    """The queue of a service. Reading is possible anywhere, writing through `write` in a separate thread.

    Other processes, such as backups, may lock the database for seconds without delaying readers.

    Args:
        path: the database; created if missing, accessible to its owner only.
        now: clock, in seconds since 1970.

    Attributes:
        now: clock, in seconds since 1970.
        changes: number of changes.

    Raises:
        UserError: it cannot be opened, or has another format.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self._path, self.now, self.changes = path, now, 0
        self._concerned: tuple[int, dict[str, list[Entry]]] = (-1, {})  # number of the last change, and runs by site
        self._failed = False  # whether the last write failed
        self._thread = ThreadPoolExecutor(1, "queue")
        self._reading, self._readers = threading.local(), list[sqlite3.Connection]()
        try:
            path.touch(0o600)
            self._writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._writer.execute("pragma journal_mode = wal")
            self._writer.execute("pragma synchronous = full")
            (version,) = self._writer.execute("pragma user_version").fetchone()
            if version not in (0, FORMAT):
                raise UserError(
                    f"{path}: has the format {version}, this rankdad reads {FORMAT}: install a newer one",
                    code="queue-of-later-version",
                )
            self._writer.executescript(SCHEMA)
            self._writer.execute(f"pragma user_version = {FORMAT}")
        except (sqlite3.Error, OSError) as error:
            raise UserError(f"{path}: cannot be opened: {error}", code="cannot-read") from None

    def close(self) -> None:
        """Close the database."""
        self._thread.shutdown()
        for connection in (*self._readers, self._writer):
            connection.close()

    @property
    def database(self) -> sqlite3.Connection:
        """Read-only connection of this thread: another's unfinished query would keep it from the latest changes."""
        connection: sqlite3.Connection | None = getattr(self._reading, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            connection.execute("pragma query_only = on")
            self._readers.append(connection)
            self._reading.connection = connection
        return connection

    async def write(self, change: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
        """Call a writing function in the queue's thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(change, *values, **named))

    def submit(self, id_: str, name: str, owner: str, sites: Sequence[str], spec: dict[str, Any], most: int) -> Entry:
        """Add a run; an existing one remains unchanged.

        Args:
            id_: identity chosen by the owner.
            name: name in the spec.
            owner: the owner.
            sites: the participants.
            spec: the spec as received.
            most: maximum number of the owner's open runs.

        Raises:
            ProtocolError: 409 if the identity belongs to another run, or the queue is full.
            QueueError: it cannot be written.
        """
        text = json.dumps(spec)
        with self.writing() as database:
            known = database.execute("select run, owner, spec from runs where id = ?", (id_,)).fetchone()
            if known is not None:
                if known[1:] != (owner, text):
                    raise ProtocolError(409, "id: is another run's", code="id-taken", field="id")
                return self.entry(known[0])
            if sum(entry.owner == owner for entry in self.in_states(*OPEN)) >= most:
                raise ProtocolError(
                    409,
                    f"the queue is full: {most} of your runs are open, as max_queue allows; cancel one, or wait",
                    code="queue-full",
                )
            (number,) = database.execute("select coalesce(max(number), 0) + 1 from runs").fetchone()
            run = run_name(name, number)
            values = (number, run, id_, name, owner, text, json.dumps(list(sites)), State.WAITING, "", self.now())
            database.execute(
                "insert into runs (number, run, id, name, owner, spec, sites, state, reason, submitted)"
                " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        return self.entry(run)

    def move(self, run: str, state: State, reason: str = "", *, where: Sequence[State]) -> bool:
        """Move a run from one of the states in `where` to another; return whether it was in one of them.

        Raises:
            QueueError: it cannot be written.
        """
        column = {State.RUNNING: ", started = ?", State.WAITING: "", State.QUEUED: ""}.get(state, ", ended = ?")
        times = (self.now(),) if column else ()
        with self.writing() as database:
            done = database.execute(
                f"update runs set state = ?, reason = ?{column} where run = ? and state in ({_marks(where)})",
                (state, reason, *times, run, *where),
            )
        return done.rowcount == 1

    def answer(self, run: str, site: str, answer: Answer, reason: str) -> bool:
        """Store a site's answer; return whether it is new and in time.

        Raises:
            QueueError: it cannot be written.
        """
        with self.writing() as database:
            entry = self.entry(run)
            known = entry.answers.get(site)
            if not (entry.open or self.asks(entry)) or (
                known is not None and ANSWER_ORDER.index(answer) <= ANSWER_ORDER.index(known.answer)
            ):
                return False
            database.execute("replace into answers values (?, ?, ?, ?, ?)", (run, site, answer, reason, self.now()))
        return True

    def entry(self, run: str) -> Entry:
        """Return a run.

        Raises:
            ProtocolError: 404 if it is unknown.
        """
        found = self._entries("where run = ?", (run,))
        if not found:
            raise ProtocolError(404, "no such run here; `rankdad runs` lists them", code="run-unknown")
        return found[0]

    def spec(self, run: str) -> dict[str, Any]:
        """Return a run's spec as received."""
        (text,) = self.database.execute("select spec from runs where run = ?", (run,)).fetchone()
        spec: dict[str, Any] = json.loads(text)
        return spec

    def method(self, run: str) -> str:
        """Return the name of a run's method, without decoding the rest of the spec."""
        asked = "select json_extract(spec, '$.method.name') from runs where run = ?"
        (name,) = self.database.execute(asked, (run,)).fetchone()
        return str(name or "")

    def newest(self, most: int) -> list[Entry]:
        """Return the newest runs first."""
        return self._entries("order by number desc limit ?", (most,))

    def in_states(self, *states: State) -> list[Entry]:
        """Return all runs in these states in the order of submission."""
        return self._entries(f"where state in ({_marks(states)}) order by number", states)

    def open_runs(self) -> list[Entry]:
        """Return all runs that a site still needs."""
        finished = "(select count(*) from answers where answers.run = runs.run and answer = 'finished')"
        still = f"or (state = ? and {finished} < json_array_length(sites))"
        return self._entries(f"where state in ({_marks(OPEN)}) {still} order by number", (*OPEN, State.ENDED))

    def concerning(self, site: str) -> list[Entry]:
        """Return a site's runs that are open or still asked about; cached until the next change."""
        changes, known = self._concerned
        if changes != self.changes:
            changes, known = self.changes, {}
            asked = self._entries("where state = ? and ended > ?", (State.REFUSED, self.now() - ASKS_ON))
            for entry in sorted([*self.open_runs(), *asked], key=lambda entry: entry.number):
                for name in entry.sites:
                    known.setdefault(name, []).append(entry)
            self._concerned = (changes, known)
        return known.get(site, [])

    def asks(self, entry: Entry) -> bool:
        """Return whether sites are still asked about a refused run."""
        return entry.asks(self.now())

    def counts(self) -> dict[str, int]:
        """Return the number of runs by state."""
        found = dict(self.database.execute("select state, count(*) from runs group by state").fetchall())
        return {state.value: found.get(state.value, 0) for state in State}

    def check(self) -> None:
        """Check that the queue can be written, with a write if the last one failed.

        Raises:
            QueueError: it cannot.
        """
        with self.writing() as database:
            if self._failed:
                database.execute(f"pragma user_version = {FORMAT}")

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction on the writing connection.

        Raises:
            QueueError: it cannot be written.
        """
        before = self._writer.total_changes
        try:
            self._writer.execute("begin immediate")
            yield self._writer
            self._writer.execute("commit")
            self.changes += self._writer.total_changes > before
            self._failed = False
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):  # already rolled back
                self._writer.execute("rollback")
            if isinstance(error, sqlite3.Error):
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    text = "is locked by another process, such as a backup: try again, or end that"
                    raise QueueError(f"{self._path}: {text}", code="queue-locked") from None
                self._failed = True
                raise QueueError(f"{self._path}: cannot be written: {error}", code="cannot-write") from None
            raise

    def _entries(self, condition: str, values: Sequence[object]) -> list[Entry]:
        columns = "number, run, id, name, owner, sites, state, reason, submitted, started, ended"
        rows = self.database.execute(f"select {columns} from runs {condition}", values).fetchall()
        answers_of: dict[str, dict[str, SiteAnswer]] = {}
        asked = f"select run, site, answer, reason, time from answers where run in (select run from runs {condition})"
        for run, site, answer, why, when in self.database.execute(asked, values):
            answers_of.setdefault(run, {})[site] = SiteAnswer(answer=answer, reason=why, time=when)
        entries: list[Entry] = []
        for number, run, id_, name, owner, sites, state, *rest in rows:
            reason, submitted, started, ended = rest
            times = (submitted, started, ended)
            place = (tuple(json.loads(sites)), State(state))
            entries.append(Entry(number, run, id_, name, owner, *place, reason, *times, answers_of.get(run, {})))
        return entries


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
