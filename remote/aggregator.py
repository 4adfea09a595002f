"""The aggregator without its sockets: barrier, aggregation, its own replica, ledger and the run's directory.

The replica follows the updates as every site does; so the model is saved here too, and its digest is one more check.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts import save_model
from common.checkpoints import EVERY, Checkpoints
from common.course import Course
from common.errors import ProtocolError, RankdadError, RunFailedError, UserError, visible
from common.messages import Body, Failure, Farewell, Hello, Kind, Message, Roster, Step
from common.methods import State
from common.plan import make_plan
from common.preparation import Preparing
from common.protocol import pack, unpack
from common.reduction.feedback import Residuals
from common.replica import Replica
from common.spec import RunSpec
from common.wire import is_lossless
from remote.aggregation import aggregate
from remote.checks import Checks
from remote.ledger import Durability, Ledger, Retention
from remote.recorder import Recorder, new_directory
from remote.records import NOBODY, DamageError, Entry, Record
from remote.rounds import Answer, Barrier, Effect, Phase, Ready
from remote.turns import check_turn

LEDGER, CHECKPOINTS = "ledger", "checkpoints"  # of a run's directory
MOST_SNAPSHOTS = 3  # that a site is given in a round


@dataclass(frozen=True)
class Update:
    """A round's answer: decoded as every site decodes it, and the bytes that every site receives."""

    message: Message
    packed: bytes


@dataclass(frozen=True)
class Keeping:
    """What is written down for the run to go on after a crash.

    Args:
        durability: against what; every record is written before anybody is answered.
        retention: what of it is kept.
    """

    durability: Durability = Durability.PROCESS
    retention: Retention = Retention.ALL


class Aggregator:
    """One run.

    The caller feeds `receive`, and `tick` several times a second, and carries out their effects. For every `Ready` it
    calls `aggregate`, `complete` and then `follow`.

    Args:
        spec: the run.
        replica: with the initial weights.
        directory: of the run.
        clock: seconds.
        keeping: what is written down; None writes no ledger. A directory that holds a ledger already goes on from it:
            call `resume` first.

    Raises:
        UserError: the directory holds another run, or one without a ledger.

    Source: arXiv 2102.09631, Algorithm 1 (the aggregator's part).
    """

    def __init__(
        self,
        spec: RunSpec,
        replica: Replica,
        directory: Path,
        clock: Callable[[], float],
        *,
        keeping: Keeping | None = None,
    ) -> None:
        self.spec = spec
        self.plan = make_plan(spec, replica.model)
        self.run_id = secrets.token_hex(8)
        self.course = Course(spec, self.plan, replica)
        self._checks = Checks(spec, self.plan, self.course)
        self._clock, self._keeping = clock, keeping
        self._ledger: Ledger | None = None
        self._checkpoints: Checkpoints | None = None
        self._residuals: Residuals = {}
        recorded: dict[str, Any] | None = None
        resumes = keeping is not None and (directory / LEDGER).exists()
        if not resumes:
            new_directory(directory)
        if keeping is not None:
            sync = keeping.durability is Durability.POWER
            self._ledger = Ledger(directory / LEDGER, self.plan.sha256(), self.run_id, sync=sync)
            self.run_id = self._ledger.run_id
            self._checkpoints = Checkpoints(directory / CHECKPOINTS, self.plan, "aggregator", sync=sync)
            try:
                recorded = self._load(self._checkpoints, self._ledger)
            except UserError:
                self._ledger.close()
                raise
        self.recorder = Recorder(directory, spec, self.plan, again=resumes, state=recorded)
        self.barrier = Barrier.of(spec.federation, clock(), self.course.round, len(self.plan.stages))
        self._lossless = is_lossless(self.plan.wire, next(replica.model.parameters()).dtype)
        self._phase = 0  # of the next step message
        self._last: Kind | None = None  # kind of the last update
        self._departed: set[str] = set()
        self._given: dict[tuple[str, int], int] = {}  # snapshots to each site in the present round
        self._outcome = ("interrupted", "")
        self._came_back = False  # and has written no checkpoint since: where one crash was, more may follow

    def _load(self, checkpoints: Checkpoints, ledger: Ledger) -> dict[str, Any] | None:
        """Go to the last checkpoint, if there is one, and return the recorder's state there."""
        loaded = checkpoints.load(self.course)
        if loaded is None and ledger.oldest_contribution > 0:
            raise UserError(f"{checkpoints.folder}: no checkpoint is readable, and the ledger goes on from one")
        document, self._residuals = loaded or ({}, {})
        if loaded is not None:
            self._checks.samples = document["samples"]
        return document.get("recorder")

    @property
    def ended(self) -> bool:
        """Whether the run is over, well or not."""
        return self.barrier.phase is Phase.ENDED

    @property
    def keeps_ledger(self) -> bool:
        """Whether the run can go on after this process has ended."""
        return self._ledger is not None

    @property
    def oldest(self) -> int:
        """The first round whose update is kept for sites that come late."""
        return self._ledger.oldest if self._ledger else max(0, self.barrier.round - 1)

    def is_last_word(self, answer: bytes) -> bool:
        """Tell whether an answer is the one that ends the run."""
        return self.ended and answer == self.barrier.stored

    def receive(self, site: str, body: bytes) -> list[Effect]:
        """Check a contribution and put it in its round.

        Raises:
            ProtocolError: it has to be refused; nothing has changed then.
            UserError: the ledger cannot be written.
        """
        if site not in self.plan.sites:
            raise ProtocolError(404, "no such site in this run")
        message = unpack(body, self.plan, up=True)
        if isinstance(message.body, Failure) and not self.ended:
            return self._hear_failure(site, message.body)
        stored = self._stored(message.round)
        if stored is not None:  # a site that has gone back to its checkpoint, or was late
            if message.round == self.barrier.round - 1:
                self._hear_of(site)
            return [Answer((site,), stored)]
        current = message.round == self.barrier.round and not self.ended
        if current and message.phase != (self._phase if isinstance(message.body, Step) else 0):
            raise ProtocolError(409, f"p: got phase {message.phase}, but the run is in phase {self._phase} of a step")
        if current:
            check_turn(self.plan, self.course, self._last, message)
        is_new = self.barrier.known(site, body, message) is None
        if current and is_new:
            self._checks.check(site, message)
        if is_new and self._ledger:  # before it counts, and can be lost
            self._ledger.append(Record(Entry.CONTRIBUTION, message.round, self.plan.sites.index(site), body))
        effects = self.barrier.receive(site, body, message, self._clock())
        self._departed.discard(site)
        self.note_problem(site, "")
        return effects

    def recorded(self, site: str, round_: int) -> bytes | None:
        """Return the update of a completed round to a site; None if the round is not complete.

        Raises:
            ProtocolError: 409 for a round of the future, 410 for one that is no longer kept, or damaged.
        """
        if self.barrier.failed:
            return self.barrier.stored
        if round_ > self.barrier.round:
            raise ProtocolError(409, f"r: got round {round_}, but the run is in round {self.barrier.round}")
        if round_ >= self.barrier.round - 1:
            self._hear_of(site)
        if round_ == self.barrier.round:
            return None
        last = self.barrier.stored if round_ == self.barrier.round - 1 else None
        stored = last or self._stored(round_)
        if stored is None:
            raise ProtocolError(410, f"r: round {round_} is no longer kept: start the site again")
        return stored

    def _stored(self, round_: int) -> bytes | None:
        try:
            return self._ledger.update(round_) if self._ledger else None
        except DamageError as error:
            raise ProtocolError(410, f"r: the aggregator's ledger has lost round {round_}: {error.named}") from None

    def _hear_of(self, site: str) -> None:
        self.barrier.back(site)
        self._departed.discard(site)

    def tick(self) -> list[Effect]:
        """Do what is due by now: close a round whose grace is over, end a run whose quorum does not come together."""
        now, limit = self._clock(), self.spec.federation.timeout
        if self.ended:
            return []
        effects = self.barrier.tick(now)
        late = limit is not None and self.barrier.round > 0 and self.barrier.waiting(now) > limit
        if effects or not late or self.barrier.phase is not Phase.COLLECTING or self.barrier.has_quorum:
            return effects
        missing = ", ".join(self.barrier.missing())
        return self.fail(
            "aggregator",
            f"round {self.barrier.round} has not had its quorum of {self.barrier.quorum} sites within {limit:g} s "
            f"(federation.timeout): no word from {missing}",
        )

    def depart(self, site: str, reason: str) -> list[Effect]:
        """Take note that a site cannot go on; end the run if it cannot do without."""
        self._departed.add(site)
        present = len(self.plan.sites) - len(self._departed)
        if present < self.barrier.quorum:
            return self.fail(site, self.recorder.progress.problems.get(site, reason))
        return self.barrier.depart(site, self._clock())

    def _hear_failure(self, site: str, failure: Failure) -> list[Effect]:
        """Take note of why a site cannot go on: for good, or until it has been put right there."""
        answer = Answer((site,), self._pack_failure(site, failure.reason))
        if failure.final:
            effects = self.depart(site, failure.reason)
        else:
            self.note_problem(site, failure.reason)
            effects = self.barrier.depart(site, self._clock())
        return effects if self.ended else [*effects, answer]

    def note_problem(self, name: str, problem: str) -> None:
        """Let people see what keeps a site from taking part, or the aggregator from going on; "" if nothing does."""
        problems = self.recorder.progress.problems
        if problems.get(name, "") != problem:
            problems[name] = problem
            if not problem:
                del problems[name]
            with contextlib.suppress(UserError):  # a disk that is full ends the run where it has to be written
                self.recorder.summarise()

    def snapshot(self, site: str) -> bytes | None:
        """Return the run's last checkpoint to a site that has lost its own; None if it can start from the beginning.

        The site goes on without residuals, and what it has sent to this round is not waited for: the ledger says so.

        Raises:
            ProtocolError: 404 for an unknown site, 429 for one that has been given it again and again.
            UserError: the ledger cannot be written.
        """
        if site not in self.plan.sites:
            raise ProtocolError(404, "no such site in this run")
        # What is being aggregated stands, for the ledger too.
        place, round_ = self.plan.sites.index(site), self.barrier.round + (self.barrier.phase is Phase.AGGREGATING)
        if self._given.get((site, round_), 0) >= MOST_SNAPSHOTS:
            raise ProtocolError(429, f"{site} has been given the run's state {MOST_SNAPSHOTS} times in round {round_}")
        found = self._checkpoints.snapshot() if self._checkpoints else None
        if found is None or self._ledger is None:
            return found
        self._given = {key: count for key, count in self._given.items() if key[1] == round_}
        self._given[site, round_] = self._given.get((site, round_), 0) + 1
        if self.barrier.holds(site) or self._given[site, round_] == 1:
            self._ledger.append(Record(Entry.RESET, round_, place, b""))
            self._reset(place, round_)
        return found

    def _reset(self, place: int, round_: int) -> None:
        self.barrier.forget(self.plan.sites[place])
        self.recorder.reset(self.plan.sites[place], round_)

    def resume(self) -> list[Effect]:
        """Go on from checkpoint and ledger, and return what is left to do.

        Raises:
            UserError: an update does not come out as it was recorded.
            DamageError: a record that is needed is not there, or cannot be read.
        """
        assert self._ledger is not None
        self._ledger.check_end(self.barrier.round)
        damage: dict[int, DamageError] = {}  # of contributions to this round, by site
        for record in self._ledger.records(self.barrier.round):
            if record.entry is Entry.RESET:
                self._reset(record.site, record.round)
            elif record.round != self.barrier.round:
                raise self._ledger.lacks(Entry.UPDATE, self.barrier.round)
            elif record.entry is Entry.UPDATE:
                self._repeat(record, damage)
                damage = {}
            elif record.damage is not None:  # the site sends it again, unless the round is complete
                damage[record.site] = record.damage
            else:
                message = unpack(record.body, self.plan, up=True)
                self.barrier.put(self.plan.sites[record.site], record.body, message, self._clock())
        self._came_back = True
        return self.barrier.tick(self._clock())

    def _repeat(self, record: Record, damage: Mapping[int, DamageError]) -> None:
        """Make an update again from what the ledger says that was in."""
        assert self._ledger is not None
        lost = {place for place, site in enumerate(self.plan.sites) if not self.barrier.holds(site)}
        if record.damage is None:
            lost -= unpack(record.body, self.plan, up=False).missing
        elif len(lost) < len(self.plan.sites):  # maybe it was made without them: its checksum will tell
            lost = set()
        for place in lost:
            raise damage.get(place) or self._ledger.lacks(Entry.CONTRIBUTION, record.round)
        (ready,) = self.barrier.close(self._clock())
        assert isinstance(ready, Ready)
        update = self.aggregate(ready)
        if record.damage is not None:
            self._ledger.mend(record.round, update.packed)
        elif update.packed != record.body:
            raise UserError(
                f"{self._ledger.folder}: the update of round {record.round} comes out differently here than it was "
                "recorded: other hardware, or other versions? Go on where the run began"
            )
        self._open_next(ready, update)
        self.follow(ready, update, 0.0)

    def aggregate(self, ready: Ready) -> Update:
        """Return the update of a round.

        Raises:
            RunFailedError: the run cannot go on.
        """
        state = State(self._residuals, self.course.bases)
        try:
            body, state = aggregate(self.spec, self.plan, self.course, ready, state)
            message = Message(ready.kind, ready.round, body, ready.phase, ready.missing)
            packed = pack(message, self.plan, up=False)
        except RunFailedError:
            raise
        except RankdadError as error:
            raise RunFailedError("aggregator", str(error)) from None
        if isinstance(body, Step) and not self._lossless:
            message = unpack(packed, self.plan, up=False)  # what the sites apply, and so this replica
        self._residuals = state.residuals  # last: what fails before is tried again
        return Update(message, packed)

    def complete(self, ready: Ready, update: Update) -> list[Effect]:
        """Answer a round and open the next.

        Raises:
            UserError: the ledger cannot be written.
        """
        if self._ledger:
            self._ledger.append(Record(Entry.UPDATE, ready.round, NOBODY, update.packed))
        return self._open_next(ready, update)

    def _open_next(self, ready: Ready, update: Update) -> list[Effect]:
        step = isinstance(update.message.body, Step)
        self._phase = (ready.phase + 1) % len(self.plan.exchanges) if step else 0
        return self.barrier.complete(update.packed, self._clock(), last=ready.kind is Kind.GOODBYE)

    def follow(self, ready: Ready, update: Update, seconds: float) -> None:
        """Apply an update to the aggregator's own replica, record the round, and write a checkpoint where one is due.

        Args:
            ready: the round's contributions.
            update: its answer.
            seconds: that the aggregation took.

        Raises:
            UserError: the disk is full or broken.
        """
        body, course, fold = update.message.body, self.course, self.course.fold
        course.follow(update.message)
        if isinstance(body, Roster):
            self._checks.meet([sent.body for sent in ready.messages if isinstance(sent.body, Hello)])
        if course.fold != fold:
            self._residuals = {}
        self._last = ready.kind
        self.recorder.record(ready, body, len(update.packed), seconds)
        if isinstance(body, Farewell):
            self.recorder.progress.aggregator_sha256 = course.replica.digest()
            self._outcome = ("completed", "")
        elif course.between_steps and (self._came_back or self._is_due(body)):
            self._write_checkpoint()

    def _is_due(self, body: Body) -> bool:
        return isinstance(body, Step) and self.course.steps % EVERY == 0

    def _write_checkpoint(self) -> None:
        if self._checkpoints is None or self._ledger is None or self._keeping is None:
            return
        self._came_back = False
        known = {"recorder": self.recorder.state(), "samples": self._checks.samples}
        self._checkpoints.save(self.course, self._residuals, known)
        self._ledger.begin(self.course.round, self._keeping.retention)
        oldest = self._checkpoints.oldest()
        if oldest is not None:
            self._ledger.retire(oldest, self._keeping.retention)

    def fail(self, site: str, reason: str, *, status: str = "failed") -> list[Effect]:
        """End the run because of a site, or of the aggregator itself, and tell everyone."""
        if self.ended:
            return []
        self._outcome = (status, f"{site}: {visible(reason)}")
        return self.barrier.fail(self._pack_failure(site, reason))

    def _pack_failure(self, site: str, reason: str) -> bytes:
        body = Failure(site=site, reason=visible(reason))
        return pack(Message(Kind.FAILURE, self.barrier.round, body), self.plan, up=False)

    def leave(self) -> None:
        """Let another process go on with the run until `back`."""
        if self._ledger:
            self._ledger.leave()

    def back(self) -> bool:
        """Go on with the run; return whether nobody else has.

        Raises:
            UserError: another process does.
        """
        return self._ledger is None or self._ledger.back()

    def abandon(self) -> None:
        """Let go of the files as they stand: another process goes on with them."""
        self.recorder.close()
        if self._ledger:
            self._ledger.close()

    def close(self) -> None:
        """Write the last summary and the model, however the run has ended."""
        self.recorder.finish(*self._outcome)
        if self._ledger:
            self._ledger.close()
        best, final = self.course.best_weights, self.course.replica.weights()
        last = min(self.course.fold, self.plan.folds - 1)
        fit = None
        if self.course.stage is None:
            with contextlib.suppress(ValueError):  # totals that lead to no finite numbers have ended the run
                fit = Preparing(self.spec).fit(self.course.totals_of(last))
        save_model(self.recorder.directory / "model", self.spec, best, final, fit)
