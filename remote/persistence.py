"""A run's file and checkpoints: what it goes on from after a crash."""

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
    """What is written down for the run to go on after a crash.

    Args:
        retention: what of it is kept.
        sync: whether a round is on the disk before anybody is answered: a power failure then loses none.
        every: steps between two checkpoints.
    """

    retention: Retention = Retention.ALL
    sync: bool = True
    every: int = EVERY


class Persistence:
    """A process's file and checkpoints of a run; without options only the rows of its tables are kept.

    Args:
        directory: of the run.
        plan: of the run.
        run_id: of a run that begins.
        options: what is kept.
        owner: whose checkpoints they are.
        data_sha256: digest of the data that the owner goes on with; None does not ask for the same.

    Attributes:
        file: of the run.
        resumes: whether the directory holds this run already.
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
        """Return the first round whose update is kept at a round."""
        return self.file.oldest if self.keeps else max(0, round_ - 1)

    def load(self, state: RunState) -> Loaded:
        """Go to the last checkpoint, if there is one, and return what it holds beside the state.

        Raises:
            UserError: no checkpoint is readable, and the file does not begin at the beginning.
        """
        if not self.keeps:
            return Loaded({}, {}, {})
        try:
            checkpoint = self._checkpoints.load(state)
            if checkpoint is None and self.file.oldest_contribution > 0:
                raise UserError(
                    f"{self._checkpoints.folder}: no checkpoint is readable, and {FILE} goes on from one",
                    code="checkpoint-unreadable",
                )
        except UserError:
            self.file.close()
            raise
        return checkpoint or Loaded({}, {}, {})

    def append(self, entry: Entry, round_: int, site: int, body: bytes) -> None:
        """Take a record; `commit` writes it."""
        self.file.append(Record(entry, round_, site, body))

    def commit(self) -> None:
        """Write down all that was taken since the last time, in one transaction.

        Raises:
            UserError: the disk is full or broken.
        """
        self.file.commit()

    def update(self, round_: int) -> bytes | None:
        """Return the update of a round; None if it is not kept.

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
        """Write a checkpoint, and delete what no checkpoint needs any more.

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
        """Return the newest checkpoint for a site that has lost its own; None if there is none."""
        return self._checkpoints.snapshot() if self.keeps else None

    def remove(self) -> None:
        """Remove what is kept, of a run that was refused: nobody goes on with it."""
        self.file.close()
        remove(self.file.path)
        shutil.rmtree(self._checkpoints.folder, ignore_errors=True)

    def close(self) -> None:
        """Write what sites have sent to the present round, and close the file; one of rows alone goes."""
        with suppress(UserError):  # of a disk that is full: they send it again
            self.file.commit_sent()
        self.file.close()
        if not self.keeps:
            remove(self.file.path)
