"""Deletion of contributions at the end of a run, unless every site's policy lets them stay.

One transaction records the end and the deletion, with counts by site, and deletes. `retention.json` is a copy of that
record. Then the file is shortened. Copies in backups and freed disk blocks remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from rankdad.common.documents import Part, load_json, parse_json, validate
from rankdad.common.errors import UserError, visible
from rankdad.common.files import write_json
from rankdad.common.protocol.retention import Amount, Ended, Kept, Receipt
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.remote.records import LEFT, DamageError
from rankdad.remote.run_directory import owner_of
from rankdad.remote.run_file import RunFile
from rankdad.remote.run_reader import ENDED, FILE, RETENTION, RunReader

COPY = "retention.json"
P = TypeVar("P", bound=Part)


class Ending(Part):
    """Record of a run's end."""

    run: str
    """The run's identity."""
    status: Ended
    may_stay: bool
    """Whether every site's policy lets its contributions stay."""
    recorder: str = "null"
    """State of the recorder, as JSON."""


class Retention(Part):
    """Record of a run's deleted contributions."""

    run: str
    status: Ended
    deleted: bool
    """Whether all are deleted."""
    time: str
    sites: dict[str, Kept]
    """Contributions by site, deleted or not."""
    forgotten: tuple[str, ...] = ()
    """Sites that left later, with their contributions."""
    bytes: Amount = 0
    """Of all deleted contributions."""

    def receipt(self, site: str) -> Receipt:
        """Return the receipt for a site."""
        kept = self.sites.get(site, Kept())
        return Receipt(
            run=self.run,
            site=site,
            status=self.status,
            deleted=self.deleted or site in self.forgotten,
            contributions=kept.contributions,
            bytes=kept.bytes,
            time=self.time,
        )


def ending(file: RunReader) -> Ending | None:
    """Return the record of a run's end; None before.

    Raises:
        UserError: the file cannot be read.
    """
    return _read(Ending, file, ENDED)


def retention(directory: Path) -> Retention | None:
    """Return the copy of a run's deletion record; None before its end.

    Raises:
        UserError: the file cannot be read.
    """
    path = directory / COPY
    return validate(Retention, load_json(path), file=path) if path.exists() else None


def retained(file: RunReader) -> Retention | None:
    """Return the deletion record from the run's file. The file may not have been shortened yet.

    Raises:
        UserError: the file cannot be read.
    """
    return _read(Retention, file, RETENTION)


def _read(model: type[P], file: RunReader, fact: str) -> P | None:
    found = file.fact(fact)
    try:
        return None if found is None else validate(model, parse_json(found), file=file.path)
    except ValueError as error:
        raise DamageError(file.path, f"{fact} is damaged ({error}); {LEFT}") from None


def is_whole(file: RunReader) -> bool:
    """Return whether all contributions that checkpoints require are still present.

    Raises:
        UserError: the file cannot be read.
    """
    ended, known = ending(file), retained(file)
    return ended is None or (ended.may_stay and (known is None or not (known.deleted or known.forgotten)))


def end(file: RunFile, ended: Ending, sites: Sequence[str], leaves: str | None = None) -> Retention:
    """Record the end of a run, and delete contributions.

    Args:
        file: the run's.
        ended: the record of the end.
        sites: names in the order of their places.
        leaves: a site whose contributions are deleted in any case.

    Raises:
        UserError: the disk is full or broken; call again later.
    """
    before, sent = retained(file), file.sent()
    known = {site: Kept() if before is None else before.sites.get(site, Kept()) for site in sites}
    counts = [sent.get(place, (0, 0)) for place in range(len(sites))]
    now = {site: Kept(contributions=count, bytes=size) for site, (count, size) in zip(sites, counts, strict=True)}
    deleted = not ended.may_stay or (before is not None and before.deleted)
    forgotten = () if before is None else before.forgotten
    if leaves is not None:
        forgotten = tuple(dict.fromkeys((*forgotten, leaves)))
    gone = sum(now[site].bytes for site in (sites if deleted else [leaves] if leaves else ()))
    has_news = before is None or gone or (deleted, forgotten) != (before.deleted, before.forgotten)
    made = before
    if made is None or has_news:
        made = Retention(
            run=ended.run,
            status=ended.status,
            deleted=deleted,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            sites={site: _more(known[site], now[site]) for site in sites},
            forgotten=forgotten,
            bytes=gone + (0 if before is None else before.bytes),
        )
    facts = {ENDED: ended.model_dump_json(), RETENTION: made.model_dump_json()}
    file.delete(facts, None if leaves is None else sites.index(leaves), all_sites=deleted)
    write_json(file.path.parent / COPY, made.model_dump(mode="json"))
    return made


def end_again(directory: Path, status: Ended, run: str) -> Retention | None:
    """Finish the deletion after a process was killed at the end of a run.

    Without a record of the end, the sites' policies are unknown and all contributions are deleted.

    Args:
        directory: the run's; no process may use it.
        status: the run's final status.
        run: the run's identity.

    Returns:
        The deletion record; None if there was nothing to do.

    Raises:
        UserError: a file cannot be read or written.
    """
    if not (directory / FILE).exists():
        return None
    with closing(RunReader(directory / FILE)) as read:  # most runs have nothing left to do
        known, deleted, has_copy, has_sent = ending(read), retained(read), retention(directory) is not None, read.sent()
    if deleted is not None and has_copy and (known is None or known.may_stay or not has_sent):
        return None
    if known is None and not has_sent:
        return None
    with closing(RunFile(directory / FILE)) as file:
        return end(file, known or Ending(run=run, status=status, may_stay=False), children(directory))


def children(directory: Path) -> tuple[str, ...]:
    """Return the names of a run's sites, or of a region's members, in the ledger's order.

    Raises:
        UserError: the run's files cannot be read.
    """
    path = directory / "run.json"
    nodes = validate(RunSpec, load_json(path), file=path).federation.nodes
    return tuple(nodes[owner_of(directory) or TOP].children)


def forget(directory: Path, site: str | None) -> Retention:
    """Delete one site's contributions to an ended run, or those of all. A failed run can then not be resumed.

    Args:
        directory: the run's; no process may use it.
        site: the site that leaves; None for all.

    Raises:
        UserError: the run is active, has no such site, or its files cannot be read or written.
    """
    names = children(directory)
    if site is not None and site not in names:
        expected = ", ".join(names[:20])
        raise UserError(
            f"{visible(site, 63)}: is not a site of {directory}, expected one of {expected}", code="site-unknown"
        )
    if not (directory / FILE).exists():
        raise UserError(f"{directory}: has no contributions", code="no-ledger", file=directory)
    try:
        file = RunFile(directory / FILE)
    except UserError as error:
        if error.code != "locked":
            raise
        raise UserError(f"{error}; let the run end, or cancel it", code="run-not-over") from None
    with closing(file):
        known, summary = ending(file), load_json(directory / "summary.json")
        status = str(summary.get("status")) if isinstance(summary, dict) else ""
        if known is None and status not in ("completed", "failed", "refused"):
            raise UserError(
                f"{directory}: the run has not ended ({visible(status, 40)}): let it end, or cancel it",
                code="run-not-over",
            )
        if known is None:
            # Policies are unknown.
            known = Ending(run="", status=status, may_stay=False)  # type: ignore[arg-type]
        if site is None:
            known = known.model_copy(update={"may_stay": False})
        return end(file, known, names, site)


class Forgotten(NamedTuple):
    """What of a site's contributions to a run is deleted, and whether it was there until now."""

    known: Retention
    anew: bool


def forget_all(directory: Path, site: str | None) -> dict[str, Forgotten | UserError]:
    """Delete what a site has sent to a run, or to all runs of a service that it took part in.

    Args:
        directory: the run's or the service's.
        site: the site that leaves; None for all.

    Returns:
        The deletion record or error by run, for the runs that the site took part in.

    Raises:
        UserError: there is no run, or the deletion from a single run failed.
    """
    if (directory / "run.json").exists():
        return {directory.name: _forgotten(directory, site)}
    runs = sorted(path.parent for path in (directory / "runs").glob("*/run.json"))
    if not runs:
        raise UserError(f"{directory}: holds no run", code="no-run", field="DIR", file=directory)
    found = dict[str, Forgotten | UserError]()
    for run in runs:
        try:
            if site is None or site in children(run):
                found[run.name] = _forgotten(run, site)
        except UserError as error:
            found[run.name] = error
    if not found:
        raise UserError(f"{visible(str(site), 63)}: is in no run of {directory}", code="site-unknown")
    return found


def _forgotten(directory: Path, site: str | None) -> Forgotten:
    before, known = retention(directory), forget(directory, site)
    return Forgotten(known, anew=before is None or known.bytes > before.bytes)


def _more(one: Kept, other: Kept) -> Kept:
    return Kept(contributions=max(one.contributions, other.contributions), bytes=max(one.bytes, other.bytes))
