"""The runs in a site's disclosure log: their owners, beginnings, and where they have sent batches."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from rankdad.common.errors import PolicyError
from rankdad.common.privacy.heads import Heads, chained
from rankdad.local.privacy.log_file import LogFile


@dataclass(frozen=True)
class Disclosed:
    """A run that a site has taken part in.

    Args:
        run: its identity.
        purpose: description.
        began: time, in UTC.
        parts: number of patients in each part that it used.
        fewest: patients per part that the policy required.
        told: largest share of a patient's cells that it disclosed, as counted over runs.
        named_by: what identifies patients, in all runs.
        owner: who submitted it; "" if the log does not count owners' runs.
    """

    run: str
    purpose: dict[str, Any]
    began: str
    parts: tuple[int, ...]
    fewest: int
    told: float = 0.0
    named_by: str = ""
    owner: str = ""


class RunLog(LogFile):
    """The part of a log about runs."""

    def count(self, run: str | None, owner: str, per_day: int | None, most: int | None) -> None:
        """Count a run that an owner submits, with any outcome; a resumed run counts once.

        Args:
            run: its identity; None only checks whether one more is allowed.
            owner: who submits it; the aggregator if unknown.
            per_day: limit of an owner's runs within 24 hours; None for no limit.
            most: limit of an owner's runs in total; None for no limit.

        Raises:
            PolicyError: the limit is reached; the run is not counted.
            UserError: the log cannot be read or written, or is another site's.
        """
        with self._connected() as (log, _):
            known = "SELECT count(*), coalesce(sum(at > strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-1 day')), 0) FROM asked"
            if log.execute("SELECT 1 FROM asked WHERE run = ?", [run]).fetchone() is not None:
                return
            ((in_all, today),) = log.execute(f"{known} WHERE owner = ?", [owner]).fetchall()
            for field, limit, count in (("runs_per_day", per_day, today), ("runs", most, in_all)):
                if limit is not None and count >= limit:
                    text = f"this site's policy allows {limit} per owner, including refused ones"
                    raise PolicyError(field, text, code="too-many-runs")
            if run is not None:
                log.execute("INSERT INTO asked (run, owner) VALUES (?, ?)", [run, owner])

    def begin(self, run: str, spec: str) -> None:
        """Log that a run starts from the beginning, which draws new batches.

        Args:
            run: the run's identity.
            spec: the digest of its spec.

        Raises:
            UserError: the log cannot be written, or is another site's.
        """
        with self._connected() as (log, _):
            _begin(log, run, spec)

    def beginning(self, run: str, spec: str) -> int:
        """Return how many runs of a spec had begun here before this one last began.

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
        """Return, for each place: sketch of the weights, number of batches, deltas there, and seeds as JSON.

        See `common.privacy.standing`.

        Args:
            but: identity of a run to exclude from the counts.

        Raises:
            UserError: the log cannot be read, or is another site's.
        """
        with self._connected() as (log, _):
            known = (
                "SELECT sketch, iif(runs.run IS ?, 0, steps), flows, drawn FROM places, runs WHERE number = places.run"
            )
            return log.execute(known, [but]).fetchall()

    def note_place(self, run: str, sketch: bytes, steps: int, flows: bytes, drawn: str) -> None:
        """Log how many batches a run has sent near some weights, and their seeds as JSON.

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
        """Return all runs, or those with sums over a patient, in order.

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
                    dict(json.loads(purpose)),
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
        """Return how far the log has come, for the other members.

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
