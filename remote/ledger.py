"""The ledger: everything that a run has decided, written before anybody is answered.

A folder of journals. Contributions and updates stand in files of their own, and a checkpoint of the aggregator begins
new ones: contributions from before the older of two checkpoints are never needed again and go, and with
`Retention.TAIL` the updates of that time go with them.

    contributions-000000000000    to the rounds from 0 on, with what came late, and resets of sites
    updates-000000000000          of the same rounds
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import chain, pairwise
from pathlib import Path

from rankdad.common.errors import UserError
from rankdad.common.files import make_folder
from rankdad.remote.journal import Journal, read_journal
from rankdad.remote.records import DamageError, Entry, Record, missing

CONTRIBUTIONS, UPDATES = "contributions", "updates"


class Durability(StrEnum):
    """What a run goes on after: the death of a process, or also a power failure, at the price of a sync each record."""

    PROCESS = "process"
    POWER = "power"


class Retention(StrEnum):
    """What is kept: every update, for the model of any step, or the last two checkpoints and what came after."""

    ALL = "all"
    TAIL = "tail"


class Ledger:
    """A run's ledger, open to append.

    Args:
        folder: made if it is missing; torn last records are put aside.
        plan_sha256: digest of the run's plan.
        run_id: of this run, 16 hexadecimal digits; that of a ledger that is there already stands.
        sync: whether a record is on the disk, not only with the operating system, before `append` returns: what a
            power failure needs, and a crash of the process does not.

    Raises:
        UserError: a file in it is no ledger, or that of another plan or format.
        DamageError: a record's head is damaged, or updates are missing between two files.
    """

    def __init__(self, folder: Path, plan_sha256: str, run_id: str = "0" * 16, *, sync: bool = False) -> None:
        self.folder = folder
        self._plan_sha256, self.run_id, self._sync = plan_sha256, run_id, sync
        make_folder(folder, private=True)
        self._contributions: dict[int, Journal] = {}  # by their first round, in order
        self._updates: dict[int, Journal] = {}
        try:
            for first in _rounds(folder, UPDATES) or [0]:
                self._updates[first] = self._open(UPDATES, first)
            for first in _rounds(folder, CONTRIBUTIONS) or [max(self._updates)]:
                self._contributions[first] = self._open(CONTRIBUTIONS, first)
            for first, following in pairwise(self._updates):
                self._check_end(first, following)
        except UserError:
            self.close()
            raise

    @property
    def oldest(self) -> int:
        """The first round whose update is kept."""
        return min(self._updates)

    @property
    def oldest_contribution(self) -> int:
        """The first round whose contributions are kept."""
        return min(self._contributions)

    def append(self, record: Record) -> None:
        """Write a record at the end.

        Raises:
            UserError: the disk is full or broken; what was written before stays readable.
        """
        files = self._updates if record.entry is Entry.UPDATE else self._contributions
        files[max(files)].append(record)

    def update(self, round_: int) -> bytes | None:
        """Return the update of a completed round; None if it is not there.

        Raises:
            DamageError: it is damaged.
        """
        first = max((first for first in self._updates if first <= round_), default=None)
        if first is None or round_ - first >= len(self._updates[first]):
            return None
        record = self._updates[first].at(round_ - first)
        if record.damage is not None:
            raise record.damage
        return record.body

    def mend(self, round_: int, body: bytes) -> None:
        """Write a damaged update again.

        Raises:
            DamageError: it was another one.
        """
        first = max(first for first in self._updates if first <= round_)
        self._updates[first].mend(round_ - first, body)

    def lacks(self, entry: Entry, round_: int) -> DamageError:
        """Return the error that a record of a round is not there, with the place where it should be."""
        files = self._updates if entry is Entry.UPDATE else self._contributions
        return files[max((first for first in files if first <= round_), default=min(files))].lacks(round_)

    def check_end(self, round_: int) -> None:
        """Check that the update of every round before this one is there.

        Raises:
            DamageError: one is not.
        """
        self._check_end(max(self._updates), round_)

    def _check_end(self, first: int, end: int) -> None:
        if first + len(self._updates[first]) < end:
            raise self._updates[first].lacks(first + len(self._updates[first]))

    def records(self, since: int = 0) -> Iterator[Record]:
        """Yield what is kept of the rounds from `since` on: of each the contributions and resets, then the update."""
        contributions, updates = (
            chain.from_iterable(journal.records() for journal in _from(files, since))
            for files in (self._contributions, self._updates)
        )
        return _in_rounds(contributions, updates, since)

    def begin(self, round_: int, retention: Retention) -> None:
        """Begin new files, of what is not kept for ever: there is a checkpoint between the round before and this."""
        if round_ > max(self._contributions):
            self._contributions[round_] = self._open(CONTRIBUTIONS, round_)
        last = max(self._updates)
        if retention is Retention.TAIL and last + len(self._updates[last]) == round_ != last:
            self._updates[round_] = self._open(UPDATES, round_)

    def retire(self, before: int, retention: Retention) -> None:
        """Remove what no process will need again: nobody goes back to a round before this."""
        self._remove(self._contributions, before)
        if retention is Retention.TAIL:
            self._remove(self._updates, before)

    def release(self) -> None:
        """Close the files of contributions: the run is over, and nobody sends any more."""
        for journal in self._contributions.values():
            journal.close()
        self._contributions = {}

    def unlock(self) -> None:
        """Let other processes write until `relock`."""
        for journal in self._journals():
            journal.unlock()

    def relock(self) -> bool:
        """Write again; return whether the ledger is as it was left.

        Raises:
            UserError: another process writes.
        """
        return False not in [journal.relock() for journal in self._journals()]

    def close(self) -> None:
        """Close all files."""
        for journal in self._journals():
            journal.close()

    def _journals(self) -> list[Journal]:
        return [*self._contributions.values(), *self._updates.values()]

    def _open(self, kind: str, first: int) -> Journal:
        path, rounds_from = _path(self.folder, kind, first), first if kind == UPDATES else None
        journal = Journal(path, self._plan_sha256, self.run_id, first=rounds_from, sync=self._sync)
        self.run_id = journal.run_id
        return journal

    @staticmethod
    def _remove(files: dict[int, Journal], before: int) -> None:
        following = list(files)[1:]
        for first, next_ in zip(list(files), following, strict=False):
            if next_ < before:  # a contribution may have come before its file was begun
                files.pop(first).remove()


def oldest_update(folder: Path) -> int:
    """Return the first round whose update a ledger keeps."""
    return min(_rounds(folder, UPDATES), default=0)


def read_updates(folder: Path, plan_sha256: str, since: int = 0) -> Iterator[Record]:
    """Yield a ledger's updates without changing it, so that its run may go on meanwhile.

    Raises:
        UserError: it is missing, unreadable, that of another plan or format, or does not reach back so far.
        DamageError: the next update is damaged or missing.
    """
    files = _rounds(folder, UPDATES)
    if not files or files[0] > since:
        raise UserError(
            f"{folder}: {f'keeps no round before {files[0]}' if files else 'holds no ledger'}", code="round-gone"
        )
    for first, following in zip(files, [*files[1:], 0], strict=True):
        path, count = _path(folder, UPDATES, first), 0
        for record in read_journal(path, plan_sha256, first):
            count += 1
            if record.round < since:
                continue
            if record.damage is not None:
                raise record.damage
            yield record
        if first + count < following:
            raise missing(path, count, path.stat().st_size, first + count)


def _rounds(folder: Path, kind: str) -> list[int]:
    """Return with which rounds a folder's files begin."""
    stems = (path.name.rpartition("-")[2] for path in folder.glob(f"{kind}-*"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _path(folder: Path, kind: str, first: int) -> Path:
    return folder / f"{kind}-{first:012d}"


def _from(files: dict[int, Journal], since: int) -> list[Journal]:
    """Return the files that reach beyond a round."""
    following = [*list(files)[1:], since + 1]
    return [journal for journal, next_ in zip(files.values(), following, strict=True) if next_ >= since]


def _in_rounds(contributions: Iterator[Record], updates: Iterator[Record], since: int) -> Iterator[Record]:
    """Yield two streams as one: the contributions to a round before what the other stream holds of it."""
    waiting = next(contributions, None)
    for update in updates:
        while waiting is not None and waiting.round <= update.round:
            if waiting.round >= since:
                yield waiting
            waiting = next(contributions, None)
        if update.round >= since:
            yield update
    while waiting is not None:
        if waiting.round >= since:
            yield waiting
        waiting = next(contributions, None)
