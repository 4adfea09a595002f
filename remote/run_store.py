"""An aggregator's persistent run: replica, ledger, checkpoints, tables and summary."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from dataclasses import replace
from pathlib import Path

from rankdad.common.errors import ProtocolError, UserError
from rankdad.common.methods import MethodState
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.base import Collected, Ready
from rankdad.common.rounds.checks import Checks
from rankdad.common.rounds.goodbye import Farewell
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step
from rankdad.common.run.artifacts import place_in, save_model
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.common.staleness import Latecomers
from rankdad.remote.persistence import LedgerOptions, Persistence
from rankdad.remote.recorder import Recorder
from rankdad.remote.records import Entry, Record
from rankdad.remote.results.progress import AGGREGATOR
from rankdad.remote.retention import Ending, Retention, end, ending, is_whole
from rankdad.remote.run_directory import check_owner, new_directory
from rankdad.remote.run_reader import FILE
from rankdad.remote.tables import remove_tables
from rankdad.remote.tracking import trackers_of
from rankdad.remote.updates import Source, Update

MAX_SNAPSHOTS = 3  # for each site and round
REPLAY_DIFFERS = "replay-differs"
COMPLETED = ("completed", "", "", "")
_log = logging.getLogger(__name__)


class RunStore:
    """The state of a run and its files. The replica applies each update, like every site's.

    The arguments are those of `Aggregator`.

    Attributes:
        ended: record of the end of a run with deleted contributions; else None.
        outcome: status, reason, code and field to write if this process ends now.
        retention: deletion record of an ended run.
        has_resumed: whether the run was resumed without a checkpoint since then; more crashes may follow.

    Raises:
        UserError: the directory has another run, or one without a ledger.
    """

    def __init__(
        self,
        spec: RunSpec,
        replica: Replica,
        directory: Path,
        ledger: LedgerOptions | None,
        name: str,
        run_id: str | None,
        *,
        goes_on: bool,
    ) -> None:
        self.spec, self.node, self.goes_on = spec, spec.federation.nodes[name], goes_on
        self.plan = make_plan(spec, replica.model)
        self.state = RunState(spec, self.plan, replica)
        self.checks = Checks(spec, self.plan, self.state, self.node)
        trackers = trackers_of(spec, directory) if name == TOP else {}  # missing packages fail first
        if ledger is None or not (directory / FILE).exists():
            new_directory(directory)
        check_owner(directory, name)
        self._every = (ledger or LedgerOptions()).every
        self.persistence = Persistence(directory, self.plan, run_id or secrets.token_hex(8), ledger, owner=name)
        self.retention: Retention | None = None
        try:
            file = self.persistence.file
            self.ended = None if is_whole(file) else ending(file)
            document, self.residuals, *_ = self.persistence.load(self.state)
            if self.persistence.resumes:
                remove_tables(directory)
            self.checks.samples = document.get("samples", {})
            self.checks.retain = document.get("retain", False)
            self.recorder = Recorder(
                directory,
                file,
                spec,
                self.plan,
                self.node.children,
                name=name,
                round_=self.state.round,
                state=document.get("recorder") if self.ended is None else json.loads(self.ended.recorder),
                run=self.persistence.file.run_id,
                trackers=trackers,
            )
        except BaseException:  # such as a full disk; a retry opens the files again
            self.persistence.close()
            raise
        self.outcome = ("interrupted", "", "interrupted", "")
        self.has_resumed = False
        self._given: dict[tuple[str, int], int] = {}  # snapshots to each site in the present round

    def collected(self, ready: Ready) -> Collected:
        """Bundle the inputs of a round's update."""
        state = MethodState(self.residuals, self.state.bases)
        return Collected(self.spec, self.plan, self.node, self.state, ready, state)

    def check(self, site: str, message: Message, ago: int = 0) -> None:
        """Check a contribution against the roster and the plan: see `Round.check`."""
        ROUNDS[message.kind].check(self.checks, site, message, ago)

    def admit(self, site: str, body: bytes, message: Message, round_: int, ago: int = 0) -> None:
        """Check and record a contribution to the open round, or one that is `ago` steps late.

        Raises:
            ProtocolError: it is not due, or invalid.
            UserError: the disk is full or broken.
        """
        if not ago:
            self.state.check(message, 409)
        self.check(site, message, ago)
        self.persistence.append(Entry.LATE if ago else Entry.CONTRIBUTION, round_, self.node.children.index(site), body)
        if ago:
            self.persistence.commit()  # the site will not send it again

    def replay(self, source: Source, ready: Ready, record: Record) -> Update:
        """Return the recorded update of a round, which sites have applied: see `Source.replay`."""
        update = source.replay(self.collected(ready), record)
        if record.damage is not None:
            self.persistence.file.mend(record.round, update.packed)
            return update
        if update.packed == record.body:
            return update
        if REPLAY_DIFFERS not in self.recorder.progress.warnings:
            _log.warning(
                "the update of round %d is computed differently here than it was recorded (other hardware, or other "
                "versions?): the recorded one is applied, as sites have applied it",
                record.round,
            )
        self.recorder.progress.warn(REPLAY_DIFFERS, [AGGREGATOR])
        message = unpack(record.body, self.plan, up=False, device=self.state.replica.device)
        return replace(update, message=message, packed=record.body)

    def follow(self, ready: Ready, update: Update, seconds: float, late: Latecomers) -> None:
        """Apply an update to the replica, commit the round, and write a checkpoint if one is due.

        Args:
            ready: the round's contributions.
            update: the round's update.
            seconds: duration of the aggregation.
            late: late contributions; a new fold clears them, and no checkpoint is written while there are any.

        Raises:
            UserError: the disk is full or broken.
        """
        body, state, fold = update.message.body, self.state, self.state.fold
        state.follow(update.message)
        ROUNDS[ready.kind].remember(self.checks, ready)
        self.residuals = update.residuals if state.fold == fold else {}
        if state.fold != fold:
            late.clear()
        self.recorder.record(ready, body, len(update.packed), seconds)
        self.persistence.commit()
        if isinstance(body, Farewell):
            self.recorder.progress.aggregator_sha256 = state.replica.digest()
            self.outcome = COMPLETED
        elif late:
            return
        elif state.between_steps and (self.has_resumed or (isinstance(body, Step) and state.steps % self._every == 0)):
            self.has_resumed = False
            known = {"recorder": self.recorder.state(), "samples": self.checks.samples, "retain": self.checks.retain}
            self.persistence.save(state, self.residuals, known)

    def release(self) -> None:
        """Delete the contributions to an ended run, unless every site's policy lets them stay.

        Sites hear of the end afterwards. A failed deletion is retried on resuming, and when the service starts.
        """
        ended = Ending(
            run=self.persistence.file.run_id,
            status=self.outcome[0],  # type: ignore[arg-type]
            may_stay=self.checks.retain,
            recorder=json.dumps(self.recorder.state()),
        )
        try:
            self.persistence.commit()
            self.retention = end(self.persistence.file, self.ended or ended, self.node.children)
        except UserError as error:
            _log.error("%s", error)

    def snapshot(self, site: str, round_: int) -> tuple[bytes | None, bool]:
        """Return the last checkpoint for a site at a round, and whether it is the site's first in that round.

        Raises:
            ProtocolError: 429 after `MAX_SNAPSHOTS` in a round.
        """
        count = self._given.get((site, round_), 0)
        if count >= MAX_SNAPSHOTS:
            raise ProtocolError(
                429,
                f"{site} has received the run's state {MAX_SNAPSHOTS} times in round {round_}",
                code="too-many-snapshots",
            )
        snapshot = self.persistence.snapshot()
        if snapshot is not None:
            self._given = {key: known for key, known in self._given.items() if key[1] == round_}
            self._given[site, round_] = count + 1
        return snapshot, count == 0

    def save_model(self) -> None:
        """Save the best and the final weights, however the run ended."""
        state, completed = self.state, self.outcome[0] == "completed"
        last, fit = min(state.fold, self.plan.folds - 1), None
        if state.stage is None:
            with contextlib.suppress(ValueError):  # non-finite totals have ended the run
                fit = Preparing(self.spec).fit(state.totals_of(last))
        where = "" if completed else place_in(self.spec, state.steps, state.fold)
        best, final = state.best_weights, state.replica.weights()
        save_model(self.recorder.directory / "model", self.spec, best, final, fit, cut_short=where)
