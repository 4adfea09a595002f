"""The aggregator without sockets: it takes contributions and returns answers. `remote.run_store` stores the run."""

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
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import NOBODY, Entry
from rankdad.remote.replay import replay, updates_to_the_end
from rankdad.remote.results.progress import AGGREGATOR, Status
from rankdad.remote.retention import Retention
from rankdad.remote.retries import PausedError, Retries, UncommittedRoundError
from rankdad.remote.run_store import COMPLETED, RunStore
from rankdad.remote.site_processes import SiteProcesses
from rankdad.remote.updates import Reduction, Source, Update

Answers = dict[str, bytes]  # by site
_log = logging.getLogger(__name__)


class Aggregator:
    """One run. The caller calls `take` for every contribution, and `tick` several times a second.

    Only one thread at a time may call it. `status` is a value that any thread may read.

    Args:
        spec: the run.
        replica: has the initial weights.
        directory: the run's.
        clock: seconds.
        ledger: options of the ledger; None writes none. Call `resume` if the directory already has a ledger.
        name: its region's name; the top aggregator's by default.
        run_id: of a new run; random by default.
        goes_on: whether another process may resume a failed run; else contributions are deleted after a failure.
        logs: known heads of the sites' logs; those of this run by default.

    Raises:
        UserError: the directory has another run, or one without a ledger.
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
        self.store = store = RunStore(spec, replica, directory, ledger, name, run_id, goes_on=goes_on)
        self.spec, self.node, self.plan, self.state = spec, store.node, store.plan, store.state
        self.children = self.node.children  # sites and regions
        self.device, self.recorder = replica.device, store.recorder
        self.persistence, self.run_id = store.persistence, store.persistence.file.run_id
        self._clock, self._logs = clock, logs or KnownLogs(directory)
        self.source: Source = Reduction()  # replaced by a region
        self.barrier = Barrier.of(spec.federation, self.children, clock(), self.state.round, len(self.plan.stages))
        self.retries, self.processes = Retries(), SiteProcesses(clock)
        self._departed: set[str] = set()
        self._publish()

    @property
    def ended(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return self.barrier.state is BarrierState.ENDED

    @property
    def outcome(self) -> tuple[str, str]:
        """The run's status, and the reason for it."""
        return self.store.outcome[:2] if self.ended else ("running", "")

    @property
    def retention(self) -> Retention | None:
        """What became of the contributions, once the run has ended."""
        return self.store.retention

    def take(self, site: str, body: bytes) -> Answers:
        """Take a contribution: check it, record it, and complete the round if it is the last one.

        Returns:
            The round's update for all sites, if it is complete. Otherwise an answer to this site alone: an earlier
            round's update, or a failure. Empty while the round waits for others.

        Raises:
            ProtocolError: it is refused; nothing has changed.
            UserError: the disk is full or broken.
            UncommittedRoundError: only another process can resume.
            PausedError: only another process can resume, as aggregation has failed repeatedly.
            Exception: the round could not be aggregated; `tick` retries it.
        """
        return self._answers(self._receive(site, body))

    def tick(self) -> Answers:
        """Do what is due: close a round after its grace, retry an aggregation, fail a run without quorum.

        Raises:
            Exception: see `take`.
        """
        now, limit = self._clock(), self.spec.federation.timeout
        if self.ended:
            return {}
        if self.retries.pending is not None:
            return self._complete(self.retries.pending) if self.retries.is_due(now) else {}
        effects = self.barrier.tick(now)
        late = limit is not None and self.barrier.round > 0 and now - self.barrier.began > limit
        if effects or not late or self.barrier.has_quorum:
            return self._answers(effects)
        missing = ", ".join(self.barrier.missing())
        return self.fail(
            AGGREGATOR,
            f"round {self.barrier.round} did not reach its quorum of {self.barrier.quorum} sites within {limit:g} s "
            f"(federation.timeout): no word from {missing}",
            code="quorum-missing",
            field="federation.timeout",
        )

    def depart(self, site: str, reason: str) -> Answers:
        """Mark a site as departed; fail the run if it is required."""
        return self._answers(self._depart(Failure(site=site, reason=visible(reason), code="site-ended")))

    def fail(
        self,
        site: str,
        reason: str,
        *,
        status: str = "failed",
        code: str = "error",
        field: str = "",
        packed: bytes | None = None,
    ) -> Answers:
        """End the run because of a site or the aggregator, and tell all sites; `packed` replaces the message."""
        failure = Failure(site=site, reason=visible(reason), code=code, field=visible(field))
        return self._answers(self._fail(failure, status, packed))

    def _receive(self, site: str, body: bytes) -> list[Effect]:
        """Check a contribution and add it to its round.

        Checks by place: sender `Identity.check` in `remote/auth.py`, size `read_body` in `remote/connections.py`, form
        `unpack` in `common/protocol/codec.py`, shapes and rows `MessageLayout.checked` in `common/lowrank/layout.py`,
        finite numbers `decode` in `common/lowrank/wire.py`, repeated or late contributions `Barrier.receive`, kind,
        round and exchange `RunState.check`, counts, weights and sizes the round's `check`.
        """
        if site not in self.children:
            raise ProtocolError(404, "no such site in this run", code="site-unknown")
        message = unpack(body, self.plan, up=True, region=site in self.node.regions, device=self.device)
        if isinstance(message.body, Failure) and not self.ended:
            return self._hear_failure(site, message.body)
        if isinstance(message.body, Hello):
            body = self._meet(site, body, message, message.body)
        # Checks and records new contributions: a site without an answer sends its own again.
        admit = partial(self.store.admit, site, body, message, self.barrier.round)
        stored = self.persistence.update(message.round)
        if stored is not None:  # the site has resumed from its checkpoint, or was late
            if self.plan.staleness and isinstance(message.body, Step) and not self.ended:
                self.barrier.receive_late(site, body, message, self.state, admit)
            if message.round == self.barrier.round - 1:
                self._rejoin(site)
            return [Answer((site,), stored)]
        effects = self.barrier.receive(site, body, message, self._clock(), admit)
        self._departed.discard(site)
        if not self.processes.claim(site):
            self.note_problem(site, "")
        return effects

    def _meet(self, site: str, body: bytes, message: Message, hello: Hello) -> bytes:
        """Take the head of a site's log. Return its hello, or the stored one if only the log has advanced.

        Raises:
            ProtocolError: the hello is of another run, or the log is not the newest.
        """
        held, before = self.barrier.held(site)
        if held == body:  # sent again: another run may know a newer log by now
            return body
        self.store.check(site, message)  # before anything is stored
        self._logs.take(site, hello.log)
        same = isinstance(before, Hello) and hello.model_copy(update={"log": before.log}) == before
        return held if same else body

    def _answers(self, effects: list[Effect]) -> Answers:
        """Apply the barrier's effects."""
        answers: Answers = {}
        for effect in effects:
            if isinstance(effect, Answer):
                answers |= dict.fromkeys(effect.sites, effect.body)
            else:
                answers |= self._complete(effect)
        self._publish()
        return answers

    def _publish(self) -> None:
        """Replace the status."""
        self.status = Status.of(self.barrier, self.recorder.progress, self.persistence.oldest(self.barrier.round))

    def _complete(self, ready: Ready) -> Answers:
        """Aggregate a complete round; on failure, `tick` retries."""
        began, self.retries.pending = perf_counter(), ready
        self._publish()
        try:
            update = self.source.make(self.store.collected(ready))
        except RunFailedError as error:
            status = "failed" if ready.round else "refused"
            return self.fail(error.site, error.reason, status=status, code=error.code, field=error.field)
        except Exception as error:
            if not self.retries.fail(self._clock()):
                raise
            if not self.persistence.keeps:  # no other process could go on
                reason = f"an internal error ({type(error).__name__})"
                return self.fail(AGGREGATOR, reason, code="aggregator-failed")
            self.retries.paused = PausedError(ready.round, error)
            raise PausedError(ready.round, error) from error  # the stored one keeps no frames
        self.retries.succeed()
        return {} if update is None else self.conclude(ready, update, perf_counter() - began)

    def conclude(self, ready: Ready, update: Update, seconds: float) -> Answers:
        """Record and apply a round's update, open the next round, and answer.

        Raises:
            UserError: the disk is full or broken.
            UncommittedRoundError: only another process can resume.
        """
        self.persistence.append(Entry.UPDATE, ready.round, NOBODY, update.packed)
        try:
            self.store.follow(ready, update, seconds, self.barrier.stale)
        except UserError:
            raise
        except Exception as error:
            raise UncommittedRoundError(error) from error
        self.note_problem(AGGREGATOR, "")
        _log.debug("round %d (%s) is complete, step %d", ready.round, ready.kind.name.lower(), self.state.steps)
        effects = self._open_next(ready, update)
        if self.ended:
            self.store.release()
        return self._answers(effects)

    def recorded(self, site: str, round_: int) -> bytes | None:
        """Return the update of a completed round; None if the round is not complete.

        Raises:
            ProtocolError: 409 for a future round, 410 for one that is deleted or damaged.
        """
        if self.barrier.failed:
            return self.barrier.stored
        if round_ > self.barrier.round:
            raise self.barrier.refusal(round_)
        if round_ >= self.barrier.round - 1:
            self._rejoin(site)
        if round_ == self.barrier.round:
            return None
        stored = (self.barrier.stored if round_ == self.barrier.round - 1 else None) or self.persistence.update(round_)
        if stored is None:
            raise ProtocolError(
                410, f"r: round {round_} is no longer stored: start the site again", code="round-gone", field="r"
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
            status = "failed" if problem is None or self.barrier.round else "refused"
            return self._fail(failure.model_copy(update={"reason": problem or failure.reason}), status)
        return self.barrier.depart(site, self._clock())

    def _hear_failure(self, site: str, failure: Failure) -> list[Effect]:
        """Handle a site's failure: final, or until its staff fixes the problem."""
        failure = failure.model_copy(update={"site": site})  # the sender cannot choose its name
        answer = Answer((site,), self._pack_failure(failure))
        if failure.final:
            effects = self._depart(failure)
        else:
            self.note_problem(site, failure.reason)
            effects = self.barrier.depart(site, self._clock())
        return effects if self.ended else [*effects, answer]

    def note_problem(self, name: str, problem: str, warning: str = "") -> None:
        """Show what blocks a site or the aggregator, and a warning that stays; "" clears it."""
        if warning:
            self.recorder.progress.warn(warning, [name])
        if self.recorder.progress.note_problem(name, problem):
            self._publish()
            with contextlib.suppress(UserError):  # a full disk ends the run at the next commit
                self.recorder.summarise()

    def snapshot(self, site: str) -> bytes | None:
        """Return the last checkpoint to a site that lost its own; None if it can start from the beginning.

        The ledger records the reset: the site continues without residuals, and its contribution to this round is void.

        Raises:
            ProtocolError: 404 for an unknown site, 429 after too many snapshots.
            UserError: the ledger cannot be written.
        """
        if site not in self.children:
            raise ProtocolError(404, "no such site in this run", code="site-unknown")
        aggregating = self.barrier.state is BarrierState.AGGREGATING  # its contribution is already in use
        place, round_ = self.children.index(site), self.barrier.round + aggregating
        snapshot, first = self.store.snapshot(site, round_)
        if snapshot is not None and not self.ended and (first or self.barrier.holds(site)):
            self.persistence.append(Entry.RESET, round_, place, b"")
            self.persistence.commit()
            self._reset(place, round_)
        return snapshot

    def _reset(self, place: int, round_: int) -> None:
        if round_ == self.barrier.round:  # else its contribution is already in use
            self.barrier.forget(self.children[place])
        self.recorder.reset(self.children[place], round_)
        self._publish()

    def resume(self) -> None:
        """Resume from checkpoint and ledger; the next `tick` completes the round if all contributions are in.

        Raises:
            UserError: the run has ended and cannot be resumed.
            DamageError: a required record is missing or unreadable.
        """
        store, ledger = self.store, self.persistence.file
        if store.ended is None:
            here = (self.plan, self.node, self.barrier, self._clock, self._reset)
            for ready, record in replay(ledger, *here, lambda: self.state.progress.left_out, self.device):
                update = store.replay(self.source, ready, record)
                store.follow(ready, update, 0.0, self.barrier.stale)
                self._open_next(ready, update)
            store.has_resumed = True
            self.recorder.progress.ended.clear()  # already shown
        else:  # absent sites still ask for its updates
            for message, body in updates_to_the_end(ledger, store.ended, self.plan, self.barrier.round, self.device):
                self.state.follow(message)
                self.barrier.follow(body, self._clock(), last=message.kind is Kind.GOODBYE)
            store.outcome = COMPLETED
        if self.ended:
            store.release()
        self._publish()

    def _open_next(self, ready: Ready, update: Update) -> list[Effect]:
        return self.barrier.complete(update.packed, self._clock(), last=ready.kind is Kind.GOODBYE)

    def _fail(self, failure: Failure, status: str = "failed", packed: bytes | None = None) -> list[Effect]:
        if self.ended:
            return []
        self.store.outcome = (status, f"{failure.site}: {failure.reason}", failure.code, failure.field)
        effects = self.barrier.fail(packed or self._pack_failure(failure))
        if not self.store.goes_on:
            self.store.release()
        return effects

    def _pack_failure(self, failure: Failure) -> bytes:
        body = failure.model_copy(update={"final": True})
        return pack(Message(Kind.FAILURE, self.barrier.round, body), self.plan, up=False)

    def interrupt(self, reason: str, code: str = "interrupted") -> None:
        """Record what stops this process; another one may resume."""
        if not self.ended:
            self.store.outcome = ("interrupted", reason, code, "")

    def abandon(self) -> None:
        """Close the files for another process to resume."""
        self.recorder.close()
        self.persistence.close()

    def close(self) -> None:
        """Write the final summary and the model, however the run ended."""
        store, status = self.store, self.store.outcome[0]
        if self.ended and (status == "completed" or not store.goes_on) and store.retention is None:
            store.release()  # a reader may have blocked the deletion before
        try:
            self.recorder.finish(*store.outcome)
            self._publish()
        finally:
            self.persistence.close()
        if status == "refused":
            self.persistence.remove()
        else:
            store.save_model()
