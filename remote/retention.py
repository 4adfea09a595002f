"""What becomes of single sites' contributions when a run is over: they go, unless every site's policy lets them stay.

    ledger/ended.json    that the run is over: a process that starts later deletes what one before it has left
    retention.json       what was deleted of whom, and when

Files are cut to nothing before they are removed. What a disk or a backup still has of them is out of reach.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import UserError, visible
from rankdad.common.files import write_json, write_whole
from rankdad.common.protocol.retention import Amount, Ended, Kept, Receipt
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.remote.ledger import CONTRIBUTIONS
from rankdad.remote.persistence import LEDGER
from rankdad.remote.records import BEGINNING_BYTES, Entry, packed, read_heads, read_record
from rankdad.remote.run_directory import owner_of

ENDED, RETENTION = "ended.json", "retention.json"
SENT = (Entry.CONTRIBUTION, Entry.LATE)  # what a site has sent


class Ending(Part):
    """That a run is over for good."""

    run: str
    """Its number."""
    status: Ended
    may_stay: bool
    """Whether every site's policy lets its contributions stay."""
    recorder: str = "null"
    """What the run's tables and summary are made from, as JSON."""
    sites: dict[str, Kept] = Field(default_factory=dict)
    """What there was of whom, before anything was deleted."""
    bytes: Amount = 0
    """Of all files then."""


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
    """Of all files that have gone."""

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


def ending(directory: Path) -> Ending | None:
    """Return how a run has ended for good; None if it has not.

    Raises:
        UserError: the file cannot be read.
    """
    path = directory / LEDGER / ENDED
    return validate(Ending, load_json(path), file=path) if path.exists() else None


def retention(directory: Path) -> Retention | None:
    """Return what has become of a run's contributions; None before its end.

    Raises:
        UserError: the file cannot be read.
    """
    path = directory / RETENTION
    return validate(Retention, load_json(path), file=path) if path.exists() else None


def is_whole(directory: Path) -> bool:
    """Tell whether nobody's contributions to a run have been deleted, but by its own checkpoints.

    Raises:
        UserError: a file cannot be read.
    """
    ended, known = ending(directory), retention(directory)
    return ended is None or (ended.may_stay and (known is None or not (known.deleted or known.forgotten)))


def end(directory: Path, ended: Ending, sites: Sequence[str]) -> Retention:
    """Write down that a run is over and what there is, then delete what may not stay.

    Done again after a crash, it does the rest, and tells of all that there was.

    Args:
        directory: of the run; no process has its contributions open.
        ended: how it has ended.
        sites: by their places.

    Raises:
        UserError: the disk does not let go of something; a later try may.
    """
    folder, path = directory / LEDGER, directory / RETENTION
    try:
        files, before = _files(folder), retention(directory)
        found = _held(files, sites)
        known = ended.sites or (before.sites if before is not None and before.deleted else {})
        added = {site: _more(known.get(site, Kept()), found.get(site, Kept())) for site in sites}
        size = max(ended.bytes, sum(file.stat().st_size for file in files))
        if folder.exists():
            ended = ended.model_copy(update={"sites": added, "bytes": size})
            write_whole(folder / ENDED, ended.model_dump_json(), private=True, sync=True)
        if not ended.may_stay:
            for file in files:
                _wipe(file)
        if before is not None and before.deleted and not any(one.contributions for one in found.values()):
            return before
        made = Retention(
            run=ended.run,
            status=ended.status,
            deleted=not ended.may_stay,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            sites=added,
            forgotten=() if before is None else before.forgotten,
            bytes=max(0 if ended.may_stay else size, 0 if before is None else before.bytes),
        )
        write_json(path, made.model_dump(mode="json"))
    except OSError as error:
        raise UserError(f"{folder}: cannot be deleted: {error.strerror}", code="cannot-delete") from None
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
    known, is_told = ending(directory), retention(directory) is not None
    if not _files(directory / LEDGER) and (known is None or is_told):
        return None
    known = known or Ending(run=run, status=status, may_stay=False)
    return None if known.may_stay and is_told else end(directory, known, children(directory))


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
    known, names, files = ending(directory), children(directory), _files(directory / LEDGER)
    if site is not None and site not in names:
        told = ", ".join(names[:20])
        raise UserError(f"{visible(site, 63)}: is no site of {directory}, expected one of {told}", code="site-unknown")
    summary = load_json(directory / "summary.json")
    status = str(summary.get("status")) if isinstance(summary, dict) else ""
    if known is None and status not in ("completed", "failed", "refused"):
        raise UserError(
            f"{directory}: the run is not over ({visible(status, 40)}): let it end, or cancel it", code="run-not-over"
        )
    if known is None:
        known = Ending(run="", status=status, may_stay=False)  # type: ignore[arg-type]  # nothing says who lets it stay
    _check_unlocked(files)
    if site is None:
        return end(directory, known.model_copy(update={"may_stay": False}), names)
    made = end(directory, known, names)
    if not made.deleted:
        gone = sum(_without(file, names.index(site)) for file in files)
        forgotten, now = tuple(dict.fromkeys((*made.forgotten, site))), datetime.now(UTC)
        update = {"forgotten": forgotten, "bytes": made.bytes + gone, "time": now.isoformat(timespec="seconds")}
        made = made.model_copy(update=update)
        write_json(directory / RETENTION, made.model_dump(mode="json"))
    return made


def forget_all(directory: Path, site: str | None) -> dict[str, Retention | UserError]:
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
        return {directory.name: forget(directory, site)}
    runs = sorted(path.parent for path in (directory / "runs").glob("*/run.json"))
    if not runs:
        raise UserError(f"{directory}: holds no run", code="no-run", field="DIR", file=directory)
    found = dict[str, Retention | UserError]()
    for run in runs:
        try:
            if site is None or site in children(run):
                found[run.name] = forget(run, site)
        except UserError as error:
            found[run.name] = error
    if not found:
        raise UserError(f"{visible(str(site), 63)}: is in no run of {directory}", code="site-unknown")
    return found


def _files(folder: Path) -> list[Path]:
    """Return all files that hold single sites' contributions, torn ends and what a crash has left half made too."""
    return sorted(folder.glob(f"{CONTRIBUTIONS}-*"))


def _check_unlocked(files: Sequence[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(
                    f"{path}: is written by another process: let the run end, or cancel it", code="run-not-over"
                ) from None


def _held(files: Sequence[Path], sites: Sequence[str]) -> dict[str, Kept]:
    """Count contributions by site, as far as the files can be read: what is damaged goes all the same."""
    found = dict[str, Kept]()
    for path in files:
        if not path.name.rpartition("-")[2].isdecimal():
            continue
        with path.open("rb") as file:
            try:
                for _, head in read_heads(file.fileno(), path, None):
                    if head.entry in SENT and head.site < len(sites):
                        name = sites[head.site]
                        found[name] = _sum(found.get(name, Kept()), Kept(contributions=1, bytes=head.size))
            except UserError:
                continue
    return found


def _sum(one: Kept, other: Kept) -> Kept:
    return Kept(contributions=one.contributions + other.contributions, bytes=one.bytes + other.bytes)


def _more(one: Kept, other: Kept) -> Kept:
    return Kept(contributions=max(one.contributions, other.contributions), bytes=max(one.bytes, other.bytes))


def _wipe(path: Path) -> None:
    """Cut a file to nothing, and remove it."""
    os.truncate(path, 0)
    path.unlink()


def _without(path: Path, place: int) -> int:
    """Write a file again without what one site has sent; return how many bytes of that have gone.

    Raises:
        UserError: the file cannot be read: then nothing has changed.
    """
    if not path.name.rpartition("-")[2].isdecimal():
        size = path.stat().st_size
        _wipe(path)
        return size
    new, gone, number = path.with_name(f"{path.name}.new"), 0, 0
    with path.open("rb") as file, new.open("wb") as kept:
        new.chmod(0o600)
        kept.write(file.read(BEGINNING_BYTES))
        for at, head in read_heads(file.fileno(), path, None):
            if head.site == place:
                gone += head.size
                continue
            record = read_record(file.fileno(), path, at, head)
            if record.damage is not None:
                raise record.damage
            kept.write(packed(record, number))
            number += 1
        kept.flush()
        os.fsync(kept.fileno())
    with path.open(
        "r+b"
    ) as old:  # the name's bytes are cut to nothing, too: a rename alone would leave them to the disk
        new.replace(path)
        os.ftruncate(old.fileno(), 0)
    return gone
