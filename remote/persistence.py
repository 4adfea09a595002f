"""A run's ledger and checkpoints: what it goes on from after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
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
from rankdad.remote.ledger import Durability, Ledger, Retention
from rankdad.remote.records import DamageError, Entry, Record

LEDGER, CHECKPOINTS = "ledger", "checkpoints"  # of a run's directory


@dataclass(frozen=True)
class LedgerOptions:
    """What is written down for the run to go on after a crash.

    Args:
        durability: against what; every record is written before anybody is answered.
        retention: what of it is kept.
        every: steps between two checkpoints.
    """

    durability: Durability = Durability.PROCESS
    retention: Retention = Retention.ALL
    every: int = EVERY


class Persistence:
    """A process's ledger and checkpoints of a run; without options there are none, and nothing is kept.

    Args:
        directory: of the run.
        plan: of the run.
        run_id: of a run that begins.
        options: of the ledger.
        owner: whose checkpoints they are.
        data_sha256: digest of the data that the owner goes on with; None does not ask for the same.

    Attributes:
        run_id: of the run.
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
        self.run_id = run_id
        self.resumes = options is not None and (directory / LEDGER).exists()
        self._ledger: Ledger | None = None
        if options is not None:
            sync, self._retention = options.durability is Durability.POWER, options.retention
            self._ledger = Ledger(directory / LEDGER, plan.sha256(), run_id, sync=sync)
            self.run_id = self._ledger.run_id
            folder = directory / CHECKPOINTS
            self._checkpoints = Checkpoints(folder, plan, owner, data_sha256=data_sha256, sync=sync)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept."""
        return self._ledger is not None

    @property
    def ledger(self) -> Ledger:
        """The ledger of a run that keeps one."""
        assert self._ledger is not None
        return self._ledger

    def oldest(self, round_: int) -> int:
        """Return the first round whose update is kept at a round."""
        return self._ledger.oldest if self._ledger else max(0, round_ - 1)

    def load(self, state: RunState) -> Loaded:
        """Go to the last checkpoint, if there is one, and return what it holds beside the state.

        Raises:
            UserError: no checkpoint is readable, and the ledger does not begin at the beginning.
        """
        if self._ledger is None:
            return Loaded({}, {}, {})
        try:
            checkpoint = self._checkpoints.load(state)
            if checkpoint is None and self._ledger.oldest_contribution > 0:
                folder = self._checkpoints.folder
                raise UserError(
                    f"{folder}: no checkpoint is readable, and the ledger goes on from one",
                    code="checkpoint-unreadable",
                )
        except UserError:
            self._ledger.close()
            raise
        return checkpoint or Loaded({}, {}, {})

    def append(self, entry: Entry, round_: int, site: int, body: bytes) -> None:
        """Write a record down.

        Raises:
            UserError: the ledger cannot be written.
        """
        if self._ledger:
            self._ledger.append(Record(entry, round_, site, body))

    def update(self, round_: int) -> bytes | None:
        """Return the update of a round; None if it is not kept.

        Raises:
            ProtocolError: 410 for one that is damaged.
        """
        try:
            return self._ledger.update(round_) if self._ledger else None
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
        """Write a checkpoint, and remove what no checkpoint needs any more.

        Raises:
            UserError: the disk is full or broken.
        """
        if self._ledger is None:
            return
        self._checkpoints.save(state, residuals, document, moments, changes)
        self._ledger.begin(state.round, self._retention)
        oldest = self._checkpoints.oldest()
        if oldest is not None:
            self._ledger.retire(oldest, self._retention)

    def snapshot(self) -> bytes | None:
        """Return the newest checkpoint for a site that has lost its own; None if there is none."""
        return self._checkpoints.snapshot() if self._ledger else None

    def release(self) -> None:
        """Close the files of contributions: the run is over, and nobody sends any more."""
        if self._ledger:
            self._ledger.release()

    def unlock(self) -> None:
        """Let another process go on with the run until `relock`."""
        if self._ledger:
            self._ledger.unlock()

    def relock(self) -> bool:
        """Go on with the run; return whether nobody else has.

        Raises:
            UserError: another process does.
        """
        return self._ledger is None or self._ledger.relock()

    def remove(self) -> None:
        """Remove what is kept, of a run that was refused: nobody goes on with it."""
        if self._ledger:
            for folder in (self._ledger.folder, self._checkpoints.folder):
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Close the files."""
        if self._ledger:
            self._ledger.close()
