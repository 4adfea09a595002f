"""What becomes of single sites' contributions when a run is over: they go, unless every site's policy lets them stay.

The end, what was deleted of whom, and the deletion are one transaction of the run's file; `retention.json` is a copy of
the second. The file is then shortened. What a disk or a backup still has is out of reach.
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
from rankdad.remote.records import DamageError
from rankdad.remote.run_directory import owner_of
from rankdad.remote.run_file import RunFile
from rankdad.remote.run_reader import ENDED, FILE, LEFT, RETENTION, RunReader

COPY = "retention.json"
P = TypeVar("P", bound=Part)


class Ending(Part):
    """That a run is over for good."""

    run: str
    """Its number."""
    status: Ended
    may_stay: bool
    """Whether every site's policy lets its contributions stay."""
    recorder: str = "null"
    """What the run's tables and summary are made from, as JSON."""


class Retention(Part):
    """What has become of a run's contributions."""

    run: str
    status: Ended
    deleted: bool
    """Whether all are gone."""
    time: str
    sites: dict[str, Kept]
    """What has gone of whom, or stays."""
    forgotten: tuple[str, ...] = ()
    """Sites that have left since, and whose contributions have gone with them."""
    bytes: Amount = 0
    """Of all that has gone."""

    def receipt(self, site: str) -> Receipt:
        """Return what a site is told."""
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
    """Return how a run has ended for good; None if it has not.

    Raises:
        UserError: the file cannot be read.
    """
    return _read(Ending, file, ENDED)


def retention(directory: Path) -> Retention | None:
    """Return what has become of a run's contributions; None before its end.

    Raises:
        UserError: the file cannot be read.
    """
    path = directory / COPY
    return validate(Retention, load_json(path), file=path) if path.exists() else None


def retained(file: RunReader) -> Retention | None:
    """Return what has become of a run's contributions, as its file says: before these are out of it, maybe.

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
    """Tell whether nobody's contributions to a run have been deleted, but by its own checkpoints.

    Raises:
        UserError: the file cannot be read.
    """
    ended, known = ending(file), retained(file)
    return ended is None or (ended.may_stay and (known is None or not (known.deleted or known.forgotten)))


def end(file: RunFile, ended: Ending, sites: Sequence[str], leaves: str | None = None) -> Retention:
    """Write down that a run is over and what there was, and delete what may not stay.

    Args:
        file: of the run.
        ended: how it has ended.
        sites: by their places.
        leaves: a site whose contributions go in any case.

    Raises:
        UserError: the disk is full or broken; a later try may do it.
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
    """Do the rest where a process was killed between a run's end and the deletion.

    Nothing says whether the sites' policies let anything stay where the run's end was not written down: all goes.

    Args:
        directory: of the run, which no process goes on with.
        status: how it has ended.
        run: its number.

    Returns:
        What is gone; None where there was nothing.

    Raises:
        UserError: a file cannot be read, or the disk does not let go of it.
    """
    if not (directory / FILE).exists():
        return None
    with closing(RunReader(directory / FILE)) as read:  # of a thousand runs there is nothing left to do
        known, told, has_copy, has_sent = ending(read), retained(read), retention(directory) is not None, read.sent()
    if told is not None and has_copy and (known is None or known.may_stay or not has_sent):
        return None
    if known is None and not has_sent:
        return None
    with closing(RunFile(directory / FILE)) as file:
        return end(file, known or Ending(run=run, status=status, may_stay=False), children(directory))


def children(directory: Path) -> tuple[str, ...]:
    """Return the names of a run's sites, or of those that a region's aggregator hears, in the ledger's order.

    Raises:
        UserError: the run's files cannot be read.
    """
    path = directory / "run.json"
    nodes = validate(RunSpec, load_json(path), file=path).federation.nodes
    return tuple(nodes[owner_of(directory) or TOP].children)


def forget(directory: Path, site: str | None) -> Retention:
    """Delete what a site has sent to a run that is over; without a site, what all have sent.

    A run that has failed, and could go on, does not any more.

    Args:
        directory: of the run; no process goes on with it.
        site: that leaves.

    Raises:
        UserError: the run goes on, has no such site, or its files cannot be read or deleted.
    """
    names = children(directory)
    if site is not None and site not in names:
        told = ", ".join(names[:20])
        raise UserError(f"{visible(site, 63)}: is no site of {directory}, expected one of {told}", code="site-unknown")
    if not (directory / FILE).exists():
        raise UserError(f"{directory}: keeps nothing that sites have sent", code="no-ledger", file=directory)
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
                f"{directory}: the run is not over ({visible(status, 40)}): let it end, or cancel it",
                code="run-not-over",
            )
        if known is None:
            # Nothing says who lets it stay.
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
        directory: of the run, or of the service.
        site: that leaves; None is all.

    Returns:
        By run what is deleted, or why nothing is; of a service's runs without those of other sites.

    Raises:
        UserError: it is neither's directory; of a run alone, why nothing is deleted.
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
