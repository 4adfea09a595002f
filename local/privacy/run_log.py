"""Which runs a site's disclosure log knows: who asked for them, when they began, and where they have sent batches."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from rankdad.common.errors import PolicyError
from rankdad.common.privacy.heads import Heads, chained
from rankdad.local.privacy.log_file import LogFile


@dataclass(frozen=True)
class Disclosed:
    """A run that a site has taken part in.

    Args:
        run: its identity.
        purpose: what it was for, as JSON.
        began: when, in UTC.
        parts: patients of each part that it used.
        fewest: what the policy asked for then.
        told: largest share of a patient's cells that it told, of what is counted over runs.
        named_by: what names patients, in all runs.
        owner: who asked for it, as far as the log counts that; "" where it does not.
    """

    run: str
    purpose: str
    began: str
    parts: tuple[int, ...]
    fewest: int
    told: float = 0.0
    named_by: str = ""
    owner: str = ""


class RunLog(LogFile):
    """A log, as far as it is of runs."""

    def count(self, run: str | None, owner: str, per_day: int | None, most: int | None) -> None:
        """Count a run that an owner asks for, whatever becomes of it; one that goes on counts once.

        Args:
            run: its identity; None only looks whether there may be one more.
            owner: who asks, or where that is unknown the aggregator.
            per_day: most runs of an owner within 24 hours; None is no limit.
            most: of an owner in all; None is no limit.

        Raises:
            PolicyError: there would be more; the run is not counted.
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (log, _):
            known = "SELECT count(*), coalesce(sum(at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-1 day')), 0) FROM asked"
            if log.execute("SELECT 1 FROM asked WHERE run = ?", [run]).fetchone() is not None:
                return
            ((in_all, today),) = log.execute(f"{known} WHERE owner = ?", [owner]).fetchall()
            for field, limit, count in (("runs_per_day", per_day, today), ("runs", most, in_all)):
                if limit is not None and count >= limit:
                    said = f"this site's policy allows {limit} of one owner, refused ones included"
                    raise PolicyError(field, said, code="too-many-runs")
            if run is not None:
                log.execute("INSERT INTO asked (run, owner) VALUES (?, ?)", [run, owner])

    def begin(self, run: str, spec: str) -> None:
        """Note that a run begins at the beginning: of each time other batches are drawn.

        Args:
            run: the run's identity.
            spec: the digest of its specification.

        Raises:
            UserError: the log cannot be written, or is another site's.
        """
        with self._connected() as (log, _):
            _begin(log, run, spec)

    def beginning(self, run: str, spec: str) -> int:
        """Return how many runs of a specification have begun here before one did, for the last time.

        Raises:
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (log, _):
            known = "SELECT number FROM begun WHERE run = ? AND spec = ?"
            if log.execute(known, [run, spec]).fetchone() is None:
                _begin(log, run, spec)
            ((number,),) = log.execute(known, [run, spec]).fetchall()
            return int(number)

    def places(self, but: str | None = None) -> list[tuple[bytes, int, bytes, str]]:
        """Return sketches of the weights at which runs have sent batches, how many, what flowed back there, and more.

        See `common.privacy.standing`.

        Args:
            but: identity of a run whose batches are not counted.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, _):
            known = (
                "SELECT sketch, iif(runs.run IS ?, 0, steps), flows, drawn FROM places, runs WHERE number = places.run"
            )
            return log.execute(known, [but]).fetchall()

    def note_place(self, run: str, sketch: bytes, steps: int, flows: bytes, drawn: str) -> None:
        """Note how many batches a run has sent near some weights, and as JSON what they were drawn from.

        Raises:
            UserError: the log cannot be written, or is another site's.
        """
        with self._connected() as (log, _):
            log.execute(
                "INSERT INTO places SELECT number, ?, ?, ?, ? FROM runs WHERE run = ? "
                "ON CONFLICT DO UPDATE SET steps = max(steps, excluded.steps), drawn = excluded.drawn",
                [sketch, steps, flows, drawn, run],
            )

    def runs(self, patient: str | None = None) -> tuple[Disclosed, ...]:
        """Return all runs, or those that hold sums of a patient, in their order.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            numbers = "SELECT number FROM runs"
            if patient is not None:
                numbers = "SELECT run FROM used WHERE patient = ?"
            found = log.execute(
                "SELECT number, run, purpose, began, fewest, coalesce(named_by, '') FROM runs, site "
                f"WHERE number IN ({numbers}) ORDER BY number",
                [] if patient is None else [secret.name(patient)],
            ).fetchall()
            sizes = "SELECT count(*) FROM used WHERE run = ? GROUP BY part ORDER BY part"
            shares = dict(log.execute("SELECT run, max(share) FROM told GROUP BY run"))
            owners = {asked.partition(" ")[0]: owner for asked, owner in log.execute("SELECT run, owner FROM asked")}
            return tuple(
                Disclosed(
                    run,
                    purpose,
                    began,
                    tuple(size for (size,) in log.execute(sizes, [number])),
                    fewest,
                    shares.get(number, 0.0),
                    named_by,
                    owners.get(run, ""),
                )
                for number, run, purpose, began, fewest, named_by in found
            )

    def heads(self) -> Heads:
        """Return how far the log has come, as others are told.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, secret):
            noted = log.execute("SELECT run, purpose, hex(data) FROM runs ORDER BY number")
            return chained(secret, noted)


def _begin(log: sqlite3.Connection, run: str, spec: str) -> None:
    log.execute(
        "INSERT OR REPLACE INTO begun SELECT ?1, ?2, 1 + coalesce(max(number), -1) FROM begun WHERE spec = ?2",
        [run, spec],
    )
