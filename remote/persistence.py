"""A run's file and checkpoints, from which it resumes after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rankdad.common.errors import ProtocolError, UserError
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.checkpoints import EVERY, Checkpoints
from rankdad.common.run.state import RunState
from rankdad.common.run.state_format import Loaded
from rankdad.remote.records import DamageError, Entry, Record, Retention
from rankdad.remote.run_file import RunFile, remove
from rankdad.remote.run_reader import FILE, ROWS

CHECKPOINTS = "checkpoints"  # in a run's directory


@dataclass(frozen=True)
class LedgerOptions:
    """Options of the ledger.

    Args:
        retention: which updates to keep.
        sync: whether to fsync each round before answering, so that a power failure loses none.
        every: steps between checkpoints.
    """

    retention: Retention = Retention.ALL
    sync: bool = True
    every: int = EVERY


class Persistence:
    """A process's file and checkpoints of a run; without options, only the rows of tables are stored.

    Args:
        directory: the run's.
        plan: the run's.
        run_id: identity of a new run.
        options: the ledger's.
        owner: owner of the checkpoints.
        data_sha256: digest of the owner's data, which must match on resuming; None does not compare.

    Attributes:
        file: the run's.
        resumes: whether the directory already has this run.
    """

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        run_id: str,
        options: LedgerOptions | None,
        *,
        owner: str = "aggregator",
        data_sha256: str | None = None,
    ) -> None:
        self.resumes, self.keeps = options is not None and (directory / FILE).exists(), options is not None
        self._options = options or LedgerOptions(sync=False)
        sync = self._options.sync
        self.file = RunFile(directory / (FILE if options else ROWS), plan.sha256(), run_id, keeps=self.keeps, sync=sync)
        self._checkpoints = Checkpoints(directory / CHECKPOINTS, plan, owner, data_sha256=data_sha256, sync=sync)

    def oldest(self, round_: int) -> int:
        """Return the first stored update at a given round."""
        return self.file.oldest if self.keeps else max(0, round_ - 1)

    def load(self, state: RunState) -> Loaded:
        """Restore the last checkpoint, if there is one, and return its further contents.

        Raises:
            UserError: no checkpoint is readable, and the file starts after one.
        """
        if not self.keeps:
            return Loaded({}, {}, {})
        try:
            checkpoint = self._checkpoints.load(state)
            if checkpoint is None and self.file.oldest_contribution > 0:
                raise UserError(
                    f"{self._checkpoints.folder}: no checkpoint is readable, and {FILE} starts after one",
                    code="checkpoint-unreadable",
                )
        except UserError:
            self.file.close()
            raise
        return checkpoint or Loaded({}, {}, {})

    def append(self, entry: Entry, round_: int, site: int, body: bytes) -> None:
        """Add a record for the next `commit`."""
        self.file.append(Record(entry, round_, site, body))

    def commit(self) -> None:
        """Write all pending records and rows in one transaction.

        Raises:
            UserError: the disk is full or broken.
        """
        self.file.commit()

    def update(self, round_: int) -> bytes | None:
        """Return the update of a round; None if it is not stored.

        Raises:
            ProtocolError: 410 for one that is damaged.
        """
        try:
            return self.file.update(round_) if self.keeps else None
        except DamageError as error:
            raise ProtocolError(
                410, f"r: the aggregator's ledger has lost round {round_}: {error.named}", code="ledger-lost", field="r"
            ) from None

    def save(
        self,
        state: RunState,
        residuals: Residuals,
        document: Mapping[str, Any],
        moments: Mapping[str, Tensor] | None = None,
        changes: Sequence[Residuals] = (),
    ) -> None:
        """Write a checkpoint, and delete records that no checkpoint needs.

        Raises:
            UserError: the disk is full or broken.
        """
        if not self.keeps:
            return
        self._checkpoints.save(state, residuals, document, moments, changes)
        oldest = self._checkpoints.oldest()
        if oldest is not None:
            self.file.retire(oldest, updates=self._options.retention is Retention.TAIL)

    def snapshot(self) -> bytes | None:
        """Return the latest checkpoint for a site that lost its own; None if there is none."""
        return self._checkpoints.snapshot() if self.keeps else None

    def remove(self) -> None:
        """Remove the file and checkpoints of a refused run."""
        self.file.close()
        remove(self.file.path)
        shutil.rmtree(self._checkpoints.folder, ignore_errors=True)

    def close(self) -> None:
        """Write pending contributions to the present round, and close the file; a file of rows only is removed."""
        with suppress(UserError):  # the disk is full; sites send again
            self.file.commit_sent()
        self.file.close()
        if not self.keeps:
            remove(self.file.path)
