"""The aggregator without its sockets: what it hears, and what it answers. What it keeps is in `remote.kept_run`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from rankdad.common.errors import ProtocolError, RunFailedError, UserError, visible
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.rounds.base import Ready
from rankdad.common.rounds.hello import Hello
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.remote.barrier import Answer, Barrier, BarrierState, Effect
from rankdad.remote.kept_run import COMPLETED, KeptRun
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import NOBODY, Entry
from rankdad.remote.replay import replay, updates_to_the_end
from rankdad.remote.results.progress import AGGREGATOR, Status
from rankdad.remote.retention import Retention
from rankdad.remote.tries import HalfwayError, PausedError, Tries
from rankdad.remote.updates import Reduction, Source, Update

Answers = dict[str, bytes]  # by site
_log = logging.getLogger(__name__)


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
        self.kept = kept = KeptRun(spec, replica, directory, ledger, name, run_id, goes_on=goes_on)
        self.spec, self.node, self.plan, self.state = spec, kept.node, kept.plan, kept.state
        self.children = self.node.children  # who sends to it: sites, and regions that stand for theirs
        self.device, self.recorder = replica.device, kept.recorder
        self.persistence, self.run_id = kept.persistence, kept.persistence.file.run_id
        self._clock, self._logs = clock, logs or KnownLogs(directory)
        self.source: Source = Reduction()  # of the updates; a region puts itself there
        self.barrier = Barrier.of(spec.federation, self.children, clock(), self.state.round, len(self.plan.stages))
        self.tries = Tries()
        self._departed: set[str] = set()
        self._publish()

    @property
    def ended(self) -> bool:
        """Whether the run is over, well or not."""
        return self.barrier.state is BarrierState.ENDED

    @property
    def outcome(self) -> tuple[str, str]:
        """How the run has ended, and why; that it has not."""
        return self.kept.outcome[:2] if self.ended else ("running", "")

    @property
    def retention(self) -> Retention | None:
        """What has become of the contributions, once the run is over."""
        return self.kept.retention

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
        if self.tries.pending is not None:
            return self._complete(self.tries.pending) if self.tries.is_due(now) else {}
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

    def fail(
        self,
        site: str,
        reason: str,
        *,
        status: str = "failed",
        code: str = "error",
        field: str = "",
        told: bytes | None = None,
    ) -> Answers:
        """End the run because of a site, or of the aggregator itself, and tell everyone: by `told` if it is there."""
        failure = Failure(site=site, reason=visible(reason), code=code, field=visible(field))
        return self._answers(self._fail(failure, status, told))

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
        # What is new is checked and recorded: a site that has no answer sends it again.
        admit = partial(self.kept.admit, site, body, message, self.barrier.round)
        stored = self.persistence.update(message.round)
        if stored is not None:  # a site that has gone back to its checkpoint, or was late
            if self.plan.staleness and isinstance(message.body, Step) and not self.ended:
                self.barrier.receive_late(site, body, message, self.state, admit)
            if message.round == self.barrier.round - 1:
                self._rejoin(site)
            return [Answer((site,), stored)]
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
        self.kept.check(site, message)  # what is refused leaves nothing behind
        self._logs.take(site, hello.log)
        same = isinstance(before, Hello) and hello.model_copy(update={"log": before.log}) == before
        return held if same else body

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
        self.status = Status.of(self.barrier, self.recorder.progress, self.persistence.oldest(self.barrier.round))

    def _complete(self, ready: Ready) -> Answers:
        """Aggregate a round whose contributions are in; without success `tick` tries again."""
        began, self.tries.pending = perf_counter(), ready
        self._publish()
        try:
            update = self.source.make(self.kept.collected(ready))
        except RunFailedError as error:
            status = "failed" if ready.round else "refused"
            return self.fail(error.site, error.reason, status=status, code=error.code, field=error.field)
        except Exception as error:
            if not self.tries.fail(self._clock()):
                raise
            if not self.persistence.keeps:  # no other process could go on
                reason = f"an error of the aggregator's own ({type(error).__name__})"
                return self.fail(AGGREGATOR, reason, code="aggregator-failed")
            self.tries.paused = PausedError(ready.round, error)
            raise PausedError(ready.round, error) from error  # the one that stays holds no frames
        self.tries.succeed()
        return {} if update is None else self.conclude(ready, update, perf_counter() - began)

    def conclude(self, ready: Ready, update: Update, seconds: float) -> Answers:
        """Record a round's update and follow it, open the next round, and answer.

        Raises:
            UserError: the disk is full or broken.
            HalfwayError: only another process can go on.
        """
        self.persistence.append(Entry.UPDATE, ready.round, NOBODY, update.packed)
        try:
            self.kept.follow(ready, update, seconds, self.barrier.latecomers)
        except UserError:
            raise
        except Exception as error:
            raise HalfwayError(error) from error
        self.note_problem(AGGREGATOR, "")
        _log.debug("round %d (%s) is complete, step %d", ready.round, ready.kind.name.lower(), self.state.steps)
        effects = self._open_next(ready, update)
        if self.ended:
            self.kept.release()
        return self._answers(effects)

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
        stored = last or self.persistence.update(round_)
        if stored is None:
            raise ProtocolError(
                410, f"r: round {round_} is no longer kept: start the site again", code="round-gone", field="r"
            )
        return stored

    def _rejoin(self, site: str) -> None:
        self.barrier.rejoin(site)
        self._departed.discard(site)
        self._publish()

    def _depart(self, failure: Failure) -> list[Effect]:
        site = failure.site
        self._departed.add(site)
        if len(self.children) - len(self._departed) < self.barrier.quorum:
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
        if self.recorder.progress.note_problem(name, problem):
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
        aggregating = self.barrier.state is BarrierState.AGGREGATING  # what is so stands, for the ledger too
        place, round_ = self.children.index(site), self.barrier.round + aggregating
        snapshot, first = self.kept.snapshot(site, round_)
        if snapshot is not None and not self.ended and (first or self.barrier.holds(site)):
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
        kept, ledger = self.kept, self.persistence.file
        if kept.ended is None:
            here = (self.plan, self.node, self.barrier, self._clock, self._reset)
            for ready, record in replay(ledger, *here, lambda: self.state.progress.left_out, self.device):
                update = kept.again(self.source, ready, record)
                kept.follow(ready, update, 0.0, self.barrier.latecomers)
                self._open_next(ready, update)
            kept.has_resumed = True
            self.recorder.progress.ended.clear()  # told of before
        else:  # sites that were away still ask for its updates
            for message, body in updates_to_the_end(ledger, kept.ended, self.plan, self.barrier.round, self.device):
                self.state.follow(message)
                self.barrier.follow(body, self._clock(), last=message.kind is Kind.GOODBYE)
            kept.outcome = COMPLETED
        if self.ended:
            kept.release()
        self._publish()

    def _open_next(self, ready: Ready, update: Update) -> list[Effect]:
        return self.barrier.complete(update.packed, self._clock(), last=ready.kind is Kind.GOODBYE)

    def _fail(self, failure: Failure, status: str = "failed", told: bytes | None = None) -> list[Effect]:
        if self.ended:
            return []
        self.kept.outcome = (status, f"{failure.site}: {failure.reason}", failure.code, failure.field)
        effects = self.barrier.fail(told or self._pack_failure(failure))
        if not self.kept.goes_on:
            self.kept.release()
        return effects

    def _pack_failure(self, failure: Failure) -> bytes:
        body = failure.model_copy(update={"final": True})
        return pack(Message(Kind.FAILURE, self.barrier.round, body), self.plan, up=False)

    def interrupt(self, reason: str) -> None:
        """Take note of what stops this process; another goes on."""
        if not self.ended:
            self.kept.outcome = ("interrupted", reason, "interrupted", "")

    def abandon(self) -> None:
        """Close the files as they stand, for another process to go on with."""
        self.recorder.close()
        self.persistence.close()

    def close(self) -> None:
        """Write the last summary and the model, however the run has ended."""
        kept, status = self.kept, self.kept.outcome[0]
        if self.ended and (status == "completed" or not kept.goes_on) and kept.retention is None:
            kept.release()  # somebody has read what was to be deleted, and maybe reads no more
        try:
            self.recorder.finish(*kept.outcome)
            self._publish()
        finally:
            self.persistence.close()
        if status == "refused":
            self.persistence.remove()
        else:
            kept.save_model()
