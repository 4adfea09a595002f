"""The aggregator without its sockets: barrier, aggregation, its own replica, ledger and the run's directory.

The replica follows the updates as every site's does. The aggregator so has the model, and a digest to compare.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rankdad.common.errors import ProtocolError, RankdadError, RunFailedError, UserError, one_line, visible
from rankdad.common.lowrank.wire import is_lossless
from rankdad.common.methods import MethodState
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.base import Collected, Ready
from rankdad.common.rounds.checks import Checks
from rankdad.common.rounds.goodbye import Farewell
from rankdad.common.rounds.hello import Hello
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step
from rankdad.common.run.artifacts import place_in, save_model
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.remote.barrier import Answer, Barrier, BarrierState, Effect
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.persistence import LedgerOptions, Persistence
from rankdad.remote.recorder import Recorder
from rankdad.remote.records import NOBODY, Entry, Record
from rankdad.remote.replay import replay
from rankdad.remote.results.progress import AGGREGATOR, Status
from rankdad.remote.retention import Ending, Retention, end, ending, is_whole
from rankdad.remote.run_directory import check_owner, new_directory
from rankdad.remote.run_reader import FILE
from rankdad.remote.tracking import trackers_of

MAX_SNAPSHOTS = 3  # that a site is given in a round
REPLAY_DIFFERS = "replay-differs"
MIN_DELAY, MAX_TRIES = 1.0, 3  # seconds until a round is aggregated again, then twice as many; and how often at all

Answers = dict[str, bytes]  # by site
_log = logging.getLogger(__name__)


class HalfwayError(Exception):
    """An error of the aggregator's own after it recorded a round's update. Only another process can go on."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class PausedError(RankdadError):
    """The aggregator has given up a round: nothing goes on before another process tries it.

    Args:
        round_: its number.
        cause: of the last try's failure.
    """

    def __init__(self, round_: int, cause: Exception) -> None:
        why = (
            f"the run is paused: round {round_} could not be aggregated {MAX_TRIES} times, by an error of the "
            "aggregator's own"
        )
        self._told = f"{why} ({type(cause).__name__}): its log says more"
        super().__init__(f"{why}: {one_line(cause)}; the aggregator, started again, goes on with it", code="run-paused")

    @property
    def public_message(self) -> str:
        """What sites may hear of it: not the error's words, which may come from what another site has sent."""
        return self._told


@dataclass(frozen=True)
class Update:
    """A round's answer: decoded as every site decodes it, and the bytes that every site receives."""

    message: Message
    packed: bytes


class Aggregator:
    """One run. The caller calls `take` for every contribution, and `tick` several times a second.

    Only one thread at a time may call it. `status` is a value that any thread may read.

    Args:
        spec: the run.
        replica: with the initial weights.
        directory: of the run.
        clock: seconds.
        ledger: what is written down; None writes no ledger. A directory that holds a ledger already goes on from it:
            call `resume` first.
        name: of its region; that of the aggregator above all without it.
        run_id: of a run that begins; drawn without it.
        goes_on: whether a run that has failed may go on, in another process; else what sites have sent is deleted then.
        logs: what is known of the sites' logs; what this run alone knows without it.

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
        ledger: LedgerOptions | None = None,
        name: str = TOP,
        run_id: str | None = None,
        goes_on: bool = True,
        logs: KnownLogs | None = None,
    ) -> None:
        self.spec, self.node = spec, spec.federation.nodes[name]
        self.children = self.node.children  # who sends to it: sites, and regions that stand for theirs
        self.plan = make_plan(spec, replica.model)
        self.state, self.device = RunState(spec, self.plan, replica), replica.device
        self._checks = Checks(spec, self.plan, self.state, self.node)
        self._clock, self._logs = clock, logs or KnownLogs(directory)
        trackers = trackers_of(spec, directory) if name == TOP else {}  # what is missing is said first
        if ledger is None or not (directory / FILE).exists():
            new_directory(directory)
        check_owner(directory, name)
        self._every = (ledger or LedgerOptions()).every
        self.persistence = Persistence(directory, self.plan, run_id or secrets.token_hex(8), ledger, owner=name)
        self.run_id, self._goes_on = self.persistence.run_id, goes_on
        self.retention: Retention | None = None  # once the run is over
        try:
            file = self.persistence.file
            self._ending = None if is_whole(file) else ending(file)
            document, self._residuals, *_ = self.persistence.load(self.state)
            self._checks.samples = document.get("samples", {})
            self._checks.retain = document.get("retain", False)
            self.recorder = Recorder(
                directory,
                file,
                spec,
                self.plan,
                self.children,
                name=name,
                again=self.persistence.resumes,
                round_=self.state.round,
                state=document.get("recorder") if self._ending is None else json.loads(self._ending.recorder),
                run=self.run_id,
                trackers=trackers,
            )
        except BaseException:  # a full disk: whoever tries again opens the files anew
            self.persistence.close()
            raise
        self.barrier = Barrier.of(spec.federation, self.children, clock(), self.state.round, len(self.plan.stages))
        self._lossless = is_lossless(self.plan.wire, next(replica.model.parameters()).dtype)
        self._pending: Ready | None = None  # a round that could not be aggregated yet
        self._delay, self._retry_at, self._tries = MIN_DELAY, 0.0, 0
        self.paused: PausedError | None = None  # by a round that it has given up
        self._departed: set[str] = set()
        self._given: dict[tuple[str, int], int] = {}  # snapshots to each site in the present round
        self._outcome = ("interrupted", "", "interrupted", "")
        self._has_resumed = False  # and has written no checkpoint since: where one crash was, more may follow
        self._publish()

    @property
    def ended(self) -> bool:
        """Whether the run is over, well or not."""
        return self.barrier.state is BarrierState.ENDED

    @property
    def outcome(self) -> tuple[str, str]:
        """How the run has ended, and why; that it has not."""
        return self._outcome[:2] if self.ended else ("running", "")

    @property
    def samples(self) -> Mapping[str, Sequence[Sequence[int]]]:
        """Every child's samples in every fold, to train, to validate and to test; none before all have said hello."""
        return self._checks.samples

    def is_last_word(self, answer: bytes) -> bool:
        """Tell whether an answer is the one that ends the run."""
        return self.ended and answer == self.barrier.stored

    def take(self, site: str, body: bytes) -> Answers:
        """Take a contribution: check it, record it, and complete the round if it is the last.

        Returns:
            The round's update for all sites, if it is complete. Otherwise what this site alone is answered: the stored
            update of a round before, or that it has failed. Nothing while the round waits for others.

        Raises:
            ProtocolError: it has to be refused; nothing has changed then.
            UserError: the disk is full or broken.
            HalfwayError: only another process can go on.
            PausedError: likewise, after the round could not be aggregated again and again.
            Exception: the round could not be aggregated; `tick` tries again.
        """
        return self._answers(self._receive(site, body))

    def tick(self) -> Answers:
        """Do what is due by now: close a round whose grace is over, end a run whose quorum does not come together.

        Raises:
            Exception: as `take`.
        """
        now, limit = self._clock(), self.spec.federation.timeout
        if self.ended:
            return {}
        if self._pending is not None:
            return self._complete(self._pending) if now >= self._retry_at and self.paused is None else {}
        effects = self.barrier.tick(now)
        late = limit is not None and self.barrier.round > 0 and now - self.barrier.began > limit
        if effects or not late or self.barrier.has_quorum:
            return self._answers(effects)
        missing = ", ".join(self.barrier.missing())
        return self.fail(
            AGGREGATOR,
            f"round {self.barrier.round} has not had its quorum of {self.barrier.quorum} sites within {limit:g} s "
            f"(federation.timeout): no word from {missing}",
            code="quorum-missing",
            field="federation.timeout",
        )

    def depart(self, site: str, reason: str) -> Answers:
        """Take note that a site cannot go on; end the run if it cannot do without."""
        return self._answers(self._depart(Failure(site=site, reason=visible(reason), code="site-ended")))

    def fail(self, site: str, reason: str, *, status: str = "failed", code: str = "error", field: str = "") -> Answers:
        """End the run because of a site, or of the aggregator itself, and tell everyone."""
        failure = Failure(site=site, reason=visible(reason), code=code, field=visible(field))
        return self._answers(self._fail(failure, status))

    def _receive(self, site: str, body: bytes) -> list[Effect]:
        """Check a contribution and put it in its round.

        Whose it is: before, `Identity.check` in `remote/auth.py`; how large: `read_body` in `remote/app.py`. Form:
        `unpack` in `common/protocol/codec.py`; shapes and rows: `MessageLayout.checked` in `common/lowrank/layout.py`;
        finite numbers: `decode` in `common/lowrank/wire.py`. A repeated or late one: `Barrier.receive`. Kind, round and
        exchange: `RunState.check`. Counts, weights and sizes against the roster: the round's `check`, of a step
        `common/rounds/step.py`.
        """
        if site not in self.children:
            raise ProtocolError(404, "no such site in this run", code="site-unknown")
        message = unpack(body, self.plan, up=True, region=site in self.node.regions, device=self.device)
        if isinstance(message.body, Failure) and not self.ended:
            return self._hear_failure(site, message.body)
        if isinstance(message.body, Hello):
            body = self._meet(site, body, message, message.body)
        stored = self._update(message.round)
        if stored is not None:  # a site that has gone back to its checkpoint, or was late
            if self.plan.staleness and isinstance(message.body, Step) and not self.ended:
                self._take_late(site, body, message)
            if message.round == self.barrier.round - 1:
                self._rejoin(site)
            return [Answer((site,), stored)]

        def admit() -> None:  # what is new in the round that is due: a site that has no answer sends it again
            self.state.check(message, 409)
            self._check(site, message)
            self.persistence.append(Entry.CONTRIBUTION, message.round, self.children.index(site), body)

        effects = self.barrier.receive(site, body, message, self._clock(), admit)
        self._departed.discard(site)
        self.note_problem(site, "")
        return effects

    def _meet(self, site: str, body: bytes, message: Message, hello: Hello) -> bytes:
        """Take what a site says of its log; return its hello, or the one that is here where only the log has gone on.

        Raises:
            ProtocolError: the hello is not of this run, or the log is not the newest.
        """
        held, before = self.barrier.held(site)
        if held == body:  # sent again: another run may have told of a newer log meanwhile
            return body
        self._check(site, message)  # what is refused leaves nothing behind
        self._logs.take(site, hello.log)
        same = isinstance(before, Hello) and hello.model_copy(update={"log": before.log}) == before
        return held if same else body

    def _check(self, site: str, message: Message, ago: int = 0) -> None:
        """Check a contribution against the roster and the plan."""
        ROUNDS[message.kind].check(self._checks, site, message, ago)

    def _collected(self, ready: Ready, state: MethodState) -> Collected:
        return Collected(self.spec, self.plan, self.node, self.state, ready, state)

    def _take_late(self, site: str, body: bytes, message: Message) -> None:
        """Let a contribution to an earlier step join the next, if it is not too late for that."""
        place, late = self.plan.sites.index(site), self.barrier.latecomers
        age = late.age(site, place, message, body, self.state)
        if age and self.barrier.state is BarrierState.AGGREGATING:
            raise ProtocolError(
                503, f"round {self.barrier.round} is being aggregated: send again", code="round-being-aggregated"
            )
        if age:
            self._check(site, message, age)
            self.persistence.append(Entry.LATE, self.barrier.round, place, body)
            self.persistence.commit()  # the site takes it for sent
            late.put(place, age, message, body)

    def _answers(self, effects: list[Effect]) -> Answers:
        """Carry out what the barrier asks for."""
        answers: Answers = {}
        for effect in effects:
            if isinstance(effect, Answer):
                answers |= dict.fromkeys(effect.sites, effect.body)
            else:
                answers |= self._complete(effect)
        self._publish()
        return answers

    def _publish(self) -> None:
        """Put the present status in place of the one before."""
        barrier, progress = self.barrier, self.recorder.progress
        self.status = Status(
            round=barrier.round,
            round_began=barrier.began,
            waiting_for=barrier.missing(),
            without=barrier.without,
            oldest=self.persistence.oldest(barrier.round),
            status=progress.status,
            epoch=progress.epoch,
            step=progress.step,
            steps=progress.steps,
            problems=progress.problems,
        )

    def _complete(self, ready: Ready) -> Answers:
        """Aggregate a round whose contributions are in; without success `tick` tries again."""
        began, self._pending = perf_counter(), ready
        self._publish()
        try:
            update = self._make(ready)
        except RunFailedError as error:
            status = "failed" if ready.round else "refused"
            return self.fail(error.site, error.reason, status=status, code=error.code, field=error.field)
        except Exception as error:
            self._retry_at, self._delay, self._tries = self._clock() + self._delay, 2 * self._delay, self._tries + 1
            if self._tries < MAX_TRIES:
                raise
            if not self.persistence.keeps:  # no other process could go on
                reason = f"an error of the aggregator's own ({type(error).__name__})"
                return self.fail(AGGREGATOR, reason, code="aggregator-failed")
            self.paused = PausedError(ready.round, error)
            raise PausedError(ready.round, error) from error  # the one that stays holds no frames
        self._pending, self._delay, self._tries = None, MIN_DELAY, 0
        return {} if update is None else self._conclude(ready, update, perf_counter() - began)

    def _make(self, ready: Ready) -> Update | None:
        """Return the update of a round; None where it comes later."""
        return self.aggregate(ready)

    def _conclude(self, ready: Ready, update: Update, seconds: float) -> Answers:
        """Record a round's update and follow it, open the next round, and answer."""
        self.persistence.append(Entry.UPDATE, ready.round, NOBODY, update.packed)
        try:
            self.follow(ready, update, seconds)
        except UserError:
            raise
        except Exception as error:
            raise HalfwayError(error) from error
        self.note_problem(AGGREGATOR, "")
        _log.debug("round %d (%s) is complete, step %d", ready.round, ready.kind.name.lower(), self.state.steps)
        effects = self._open_next(ready, update)
        if self.ended:
            self._release()
        return self._answers(effects)

    def _release(self) -> None:
        """Delete what sites have sent to a run that is over, unless every site's policy lets it stay.

        Sites hear of the end after that. What the disk does not let go of is tried again when the run is taken up, or
        the service starts.
        """
        sites = self.children
        ended = Ending(
            run=self.run_id,
            status=self._outcome[0],  # type: ignore[arg-type]
            may_stay=self._checks.retain,
            recorder=json.dumps(self.recorder.state()),
        )
        try:
            self.persistence.commit()
            self.retention = end(self.persistence.file, self._ending or ended, sites)
        except UserError as error:
            _log.error("%s", error)

    def recorded(self, site: str, round_: int) -> bytes | None:
        """Return the update of a completed round to a site; None if the round is not complete.

        Raises:
            ProtocolError: 409 for a round of the future, 410 for one that is no longer kept, or damaged.
        """
        if self.barrier.failed:
            return self.barrier.stored
        if round_ > self.barrier.round:
            raise self.barrier.refusal(round_)
        if round_ >= self.barrier.round - 1:
            self._rejoin(site)
        if round_ == self.barrier.round:
            return None
        last = self.barrier.stored if round_ == self.barrier.round - 1 else None
        stored = last or self._update(round_)
        if stored is None:
            raise ProtocolError(
                410, f"r: round {round_} is no longer kept: start the site again", code="round-gone", field="r"
            )
        return stored

    def _update(self, round_: int) -> bytes | None:
        """Return the update of a round before, if it is kept."""
        return self.persistence.update(round_)

    def _rejoin(self, site: str) -> None:
        self.barrier.rejoin(site)
        self._departed.discard(site)
        self._publish()

    def _depart(self, failure: Failure) -> list[Effect]:
        site = failure.site
        self._departed.add(site)
        present = len(self.children) - len(self._departed)
        if present < self.barrier.quorum:
            problem = self.recorder.progress.problems.get(site)
            refused = problem is not None and self.barrier.round == 0
            said = failure.model_copy(update={"reason": problem or failure.reason})
            return self._fail(said, "refused" if refused else "failed")
        return self.barrier.depart(site, self._clock())

    def _hear_failure(self, site: str, failure: Failure) -> list[Effect]:
        """Note why a site cannot go on. It has departed for good, or until somebody there puts it right."""
        failure = failure.model_copy(update={"site": site})  # a sender's name is not its own to choose
        answer = Answer((site,), self._pack_failure(failure))
        if failure.final:
            effects = self._depart(failure)
        else:
            self.note_problem(site, failure.reason)
            effects = self.barrier.depart(site, self._clock())
        return effects if self.ended else [*effects, answer]

    def note_problem(self, name: str, problem: str) -> None:
        """Show what keeps a site, or the aggregator, from going on; "" removes what was shown."""
        progress = self.recorder.progress
        if progress.problems.get(name, "") != problem:
            others = {known: said for known, said in progress.problems.items() if known != name}
            progress.problems = others | {name: problem} if problem else others  # a new value: others may be reading
            self._publish()
            with contextlib.suppress(UserError):  # a disk that is full ends the run where it has to be written
                self.recorder.summarise()

    def snapshot(self, site: str) -> bytes | None:
        """Return the run's last checkpoint to a site that has lost its own; None if it can start from the beginning.

        The site goes on without residuals, and what it has sent to this round is not waited for: the ledger says so.

        Raises:
            ProtocolError: 404 for an unknown site, 429 for one that has been given it again and again.
            UserError: the ledger cannot be written.
        """
        if site not in self.children:
            raise ProtocolError(404, "no such site in this run", code="site-unknown")
        # What is being aggregated stands, for the ledger too.
        aggregating = self.barrier.state is BarrierState.AGGREGATING
        place, round_ = self.children.index(site), self.barrier.round + aggregating
        if self._given.get((site, round_), 0) >= MAX_SNAPSHOTS:
            raise ProtocolError(
                429,
                f"{site} has been given the run's state {MAX_SNAPSHOTS} times in round {round_}",
                code="too-many-snapshots",
            )
        snapshot = self.persistence.snapshot()
        if snapshot is None:
            return None
        self._given = {key: count for key, count in self._given.items() if key[1] == round_}
        self._given[site, round_] = self._given.get((site, round_), 0) + 1
        if not self.ended and (self.barrier.holds(site) or self._given[site, round_] == 1):
            self.persistence.append(Entry.RESET, round_, place, b"")
            self.persistence.commit()
            self._reset(place, round_)
        return snapshot

    def _reset(self, place: int, round_: int) -> None:
        if round_ == self.barrier.round:  # else what it has sent is being aggregated, and stands
            self.barrier.forget(self.children[place])
        self.recorder.reset(self.children[place], round_)
        self._publish()

    def resume(self) -> None:
        """Go on from checkpoint and ledger; the next `tick` completes the round if all are in.

        Raises:
            UserError: an update does not come out as it was recorded.
            DamageError: a record that is needed is not there, or cannot be read.
        """
        ledger = self.persistence.file
        if self._ending is not None:
            self._follow_to_the_end(self._ending)
            return
        here = (self.plan, self.node, self.barrier, self._clock, self._reset)
        for ready, record in replay(ledger, *here, lambda: self.state.progress.left_out, self.device):
            update = self._make_again(ready, record)
            self.follow(ready, update, 0.0)
            self._open_next(ready, update)
        self._has_resumed = True
        self.recorder.progress.ended.clear()  # told of before
        if self.ended:
            self._release()
        self._publish()

    def _follow_to_the_end(self, ended: Ending) -> None:
        """Go through a run that is over by its updates alone: sites that were away still ask for them.

        Raises:
            UserError: the run has not come to its end, and nobody can go on with it.
            DamageError: an update is not there, or cannot be read.
        """
        ledger = self.persistence.file
        if ended.status != "completed" or ended.recorder == "null":
            raise UserError(
                f"{ledger.path}: the run is over ({ended.status}), and what its sites had sent is deleted: nobody "
                "can go on with it; the model of each step so far is there, by `rankdad export`",
                code="contributions-deleted",
            )
        for record in ledger.records(self.barrier.round):
            if record.entry is not Entry.UPDATE:
                continue
            if record.damage is not None:
                raise record.damage
            message = unpack(record.body, self.plan, up=False, device=self.device)
            self.state.follow(message)
            self.barrier.follow(record.body, self._clock(), last=message.kind is Kind.GOODBYE)
        ledger.check_end(self.barrier.round)
        self._outcome = ("completed", "", "", "")
        self._release()
        self._publish()

    def _make_again(self, ready: Ready, record: Record) -> Update:
        """Return the update of a round as it was recorded: sites have followed it."""
        update, file = self.aggregate(ready), self.persistence.file
        if record.damage is not None:
            file.mend(record.round, update.packed)
            return update
        if update.packed == record.body:
            return update
        if REPLAY_DIFFERS not in self.recorder.progress.warnings:
            _log.warning(
                "the update of round %d comes out differently here than it was recorded (other hardware, or other "
                "versions?): the recorded one is applied, as sites have applied it",
                record.round,
            )
        self.recorder.progress.warn(REPLAY_DIFFERS, [AGGREGATOR])
        return Update(unpack(record.body, self.plan, up=False, device=self.device), record.body)

    def aggregate(self, ready: Ready) -> Update:
        """Return the update of a round.

        Raises:
            RunFailedError: the run cannot go on.
        """
        state = MethodState(self._residuals, self.state.bases)
        try:
            body, state = ROUNDS[ready.kind].aggregate(self._collected(ready, state))
            late = tuple((late.age, late.place) for late in ready.late)
            message = Message(ready.kind, ready.round, body, ready.exchange, ready.missing, late)
            packed = pack(message, self.plan, up=False)
        except RunFailedError:
            raise
        except RankdadError as error:
            raise RunFailedError(AGGREGATOR, str(error), code=error.code, field=error.field) from None
        if isinstance(body, Step) and not self._lossless:
            # What the sites apply, and so this replica.
            message = unpack(packed, self.plan, up=False, device=self.device)
        self._residuals = state.residuals  # last: what fails before is tried again
        return Update(message, packed)

    def _open_next(self, ready: Ready, update: Update) -> list[Effect]:
        return self.barrier.complete(update.packed, self._clock(), last=ready.kind is Kind.GOODBYE)

    def follow(self, ready: Ready, update: Update, seconds: float) -> None:
        """Apply an update to the aggregator's own replica, commit the round, and write a checkpoint where one is due.

        Args:
            ready: the round's contributions.
            update: its answer.
            seconds: that the aggregation took.

        Raises:
            UserError: the disk is full or broken.
        """
        body, state, fold = update.message.body, self.state, self.state.fold
        state.follow(update.message)
        ROUNDS[ready.kind].remember(self._checks, ready)
        if state.fold != fold:
            self._residuals = {}
            self.barrier.latecomers.clear()
        self.recorder.record(ready, body, len(update.packed), seconds)
        self.persistence.commit()
        if isinstance(body, Farewell):
            self.recorder.progress.aggregator_sha256 = state.replica.digest()
            self._outcome = ("completed", "", "", "")
        elif self.barrier.latecomers:  # a checkpoint does not hold them
            return
        elif state.between_steps and (self._has_resumed or (isinstance(body, Step) and state.steps % self._every == 0)):
            self._has_resumed = False
            known = {"recorder": self.recorder.state(), "samples": self._checks.samples, "retain": self._checks.retain}
            self.persistence.save(state, self._residuals, known)

    def _fail(self, failure: Failure, status: str = "failed") -> list[Effect]:
        if self.ended:
            return []
        self._outcome = (status, f"{failure.site}: {failure.reason}", failure.code, failure.field)
        effects = self.barrier.fail(self._pack_failure(failure))
        if not self._goes_on:
            self._release()
        return effects

    def _pack_failure(self, failure: Failure) -> bytes:
        body = failure.model_copy(update={"final": True})
        return pack(Message(Kind.FAILURE, self.barrier.round, body), self.plan, up=False)

    def interrupt(self, reason: str) -> None:
        """Take note of what stops this process; another goes on."""
        if not self.ended:
            self._outcome = ("interrupted", reason, "interrupted", "")

    def abandon(self) -> None:
        """Close the files as they stand, for another process to go on with."""
        self.recorder.close()
        self.persistence.close()

    def close(self) -> None:
        """Write the last summary and the model, however the run has ended."""
        is_over = self.ended and (self._outcome[0] == "completed" or not self._goes_on)
        if is_over and self.retention is None:
            self._release()  # somebody has read what was to be deleted, and maybe reads no more
        try:
            self.recorder.finish(*self._outcome)
            self._publish()
        finally:
            self.persistence.close()
        if self._outcome[0] == "refused":
            self.persistence.remove()
            return
        best, final = self.state.best_weights, self.state.replica.weights()
        last = min(self.state.fold, self.plan.folds - 1)
        fit = None
        if self.state.stage is None:
            with contextlib.suppress(ValueError):  # totals that lead to no finite numbers have ended the run
                fit = Preparing(self.spec).fit(self.state.totals_of(last))
        where = "" if self._outcome[0] == "completed" else place_in(self.spec, self.state.steps, self.state.fold)
        save_model(self.recorder.directory / "model", self.spec, best, final, fit, cut_short=where)
