"""Calls the aggregator from the event loop and holds requests until their round is complete."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from time import perf_counter, time
from typing import TypeVar

from rankdad.common.devices import limit_threads
from rankdad.common.errors import ENDED, ProtocolError, RankdadError, UserError, one_line
from rankdad.remote.aggregator import Aggregator, Answers
from rankdad.remote.audit import Audit
from rankdad.remote.connections import Timeouts
from rankdad.remote.results.progress import AGGREGATOR
from rankdad.remote.retries import PausedError, UncommittedRoundError
from rankdad.remote.web import HttpConnection

NOTHING = b""  # instead of an update: this site's contribution is missing
AT_ONCE = 8  # requests answered in one turn of the loop
TWO_PROCESSES = "two-processes"  # a warning: see `remote.report.words`
QUIET = 60.0  # seconds before the traceback of one place is logged again

_log = logging.getLogger(__name__)
T = TypeVar("T")
Called = tuple[Answers, int] | ProtocolError  # result of a call: see `RunSession._settle`


@dataclass(eq=False)
class HeldRequest:
    """A request that waits for the update of a round.

    Args:
        site: the caller.
        connection: its connection.
        answer: the round's update; None after `Timeouts.hold`.
        began: round of the run at the request's arrival.
        round: round of the awaited update; None before the aggregator has taken the contribution.
    """

    site: str
    connection: HttpConnection
    answer: asyncio.Future[bytes | None]
    began: int
    round: int | None = None


class RunSession:
    """Calls the aggregator in a worker thread, one call at a time, and passes on its answers.

    The event loop stays free while a round is reduced and written.

    Args:
        aggregator: the run's.
        audit: the audit log.
        hold: seconds for which a request is held, see `Timeouts`.
        comes_back: whether the caller resumes the run after a full disk; sites then only wait.
        connected: returns the sites with a connection.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        audit: Audit,
        hold: float = Timeouts.hold,
        *,
        comes_back: bool = False,
        connected: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self.aggregator, self.audit, self._seconds = aggregator, audit, hold
        self._comes_back, self.connected = comes_back, connected
        self.ended = asyncio.Event()
        self.error: BaseException | None = None
        self.crashed = False  # only another process can resume
        self._drained = asyncio.Event()  # all sites know how the run ended
        self._heard = asyncio.Event()  # a site has sent a contribution
        self._unacknowledged = set(aggregator.children)
        self._departed: set[str] = set()
        self.seen: dict[str, float] = {}  # time of each site's last request, in seconds since 1970
        self.joined: set[str] = set()  # sites that have contributed; `rankdad check` only asks
        self._present: set[str] = set()  # sites that take part
        self._problems: dict[str, str] = {}  # last logged, by site
        self._held: dict[str, list[HeldRequest]] = {}
        self._leaving = self._ticks = self._closed = False
        self._logged: dict[str, float] = {}  # time by place in the code
        self.after: Callable[[], None] = lambda: None  # called after every call of the aggregator
        threads = aggregator.plan.threads  # set for each thread
        self._worker = ThreadPoolExecutor(1, "aggregator", limit_threads, (threads,))

    def note_request(self, site: str) -> None:
        """Record that a site has sent a request."""
        self._departed.discard(site)
        self.seen[site] = time()

    def check_process(self, site: str, process: str) -> None:
        """Refuse a process that another has replaced, and show the owner that its site has two.

        Raises:
            ProtocolError: another has replaced it.
        """
        try:
            self.aggregator.processes.check(site, process)
        except ProtocolError as error:
            self.enter(partial(self.aggregator.note_problem, site, str(error), TWO_PROCESSES))
            raise

    async def contribute(
        self, site: str, body: bytes, connection: HttpConnection, computed: float | None = None, process: str = ""
    ) -> bytes | None:
        """Take a contribution and return its round's update; None after `Timeouts.hold`.

        Args:
            site: the sender.
            body: the received bytes.
            connection: its connection.
            computed: seconds that the site reports to have computed for the step so far.
            process: name of the sending process: see `SiteProcesses`.

        Raises:
            ProtocolError: it is refused; nothing has changed.
        """
        self._heard.set()
        self.joined.add(site)
        if self.crashed:
            raise ProtocolError(500, "the aggregator must be restarted", code="aggregator-stopped")
        if (paused := self.aggregator.retries.paused) is not None and not self.aggregator.ended:
            raise _refusal_of(paused)
        with self._hold(site, connection) as held:
            self.enter(partial(self._take, held, body, computed, process), held)
            return self._acknowledge(site, await held.answer)

    def _take(self, held: HeldRequest, body: bytes, computed: float | None, process: str) -> Answers:
        self.aggregator.recorder.heard(held.site, computed)
        self.aggregator.processes.sender = process
        answers = self.aggregator.take(held.site, body)
        held.round = self.aggregator.barrier.round
        return answers

    async def ask(self, site: str, round_: int, connection: HttpConnection) -> tuple[bytes | None, bool]:
        """Return a round's update or None, and whether the site's contribution is in.

        Raises:
            ProtocolError: see `Aggregator.recorded`.
        """
        with self._hold(site, connection, round_) as held:
            self.enter(partial(self._look, held, round_), held)
            update = await held.answer
        return (None, False) if update == NOTHING else (self._acknowledge(site, update), True)

    def _look(self, held: HeldRequest, round_: int) -> Answers:
        update = self.aggregator.recorded(held.site, round_)
        if update is None and self.aggregator.barrier.holds(held.site):
            if (paused := self.aggregator.retries.paused) is not None and not self.aggregator.ended:
                raise _refusal_of(paused)
            return {}
        return {held.site: NOTHING if update is None else update}

    async def call(self, work: Callable[[], T]) -> T:
        """Call the aggregator after its present call and return the result."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, copy_context().run, work)

    @contextlib.contextmanager
    def _hold(self, site: str, connection: HttpConnection, round_: int | None = None) -> Iterator[HeldRequest]:
        """Register a request that waits for the update of a round."""
        loop = asyncio.get_running_loop()
        held = HeldRequest(site, connection, loop.create_future(), self.aggregator.barrier.round, round_)
        self._held.setdefault(site, []).append(held)
        connection.waiting = held.answer
        timer = loop.call_later(0 if self._leaving else self._seconds, _answer, held.answer, None)
        try:
            yield held
        finally:
            timer.cancel()
            connection.waiting = None
            self._held[site].remove(held)

    def enter(self, work: Callable[[], Answers | None], held: HeldRequest | None = None) -> None:
        """Queue a call of the aggregator and pass on its answers; ignored after `close`."""
        if self._closed:
            return
        loop, names = asyncio.get_running_loop(), copy_context()  # keeps the run's name in log records
        done = self._worker.submit(names.run, self._call, work)

        def settle(done: Future[Called]) -> None:
            loop.call_soon_threadsafe(partial(self._settle, done.result, held), context=names)

        done.add_done_callback(settle)

    def _call(self, work: Callable[[], Answers | None]) -> Called:
        """Call the aggregator in its thread."""
        try:
            return work() or {}, self.aggregator.barrier.round - 1
        except ProtocolError as error:
            return _without_frames(error)

    def _settle(self, result: Callable[[], Called], held: HeldRequest | None) -> None:
        """Pass on the result of a call: answers and the last complete round, or an error."""
        try:
            called = result()
        except UserError as error:  # a full or broken disk
            self.error = error
            if self.aggregator.persistence.keeps and (self._comes_back or error.is_recoverable):
                waits = "the aggregator's disk is full or broken: the run is paused until that is mended"
                self._refuse_all(ProtocolError(503, waits, code="disk-full"))
                self.stop(error)
            else:
                self.fail(str(error), code=error.code)
            return
        except UncommittedRoundError as error:
            self._crash(error.cause)
            return
        except PausedError as error:
            _log.error("%s", error)
            self.audit.note("paused", reason=str(error))
            self.enter(partial(self.aggregator.note_problem, AGGREGATOR, str(error)))
            self._refuse_all(_refusal_of(error))
            return
        except Exception as error:  # nothing has changed; the aggregator retries
            self._refuse_all(self.note_fault(error))
            return
        if isinstance(called, ProtocolError):
            if held is not None:
                _refuse(held.answer, called)
            return
        answers, complete = called
        if held is not None:
            self._note_presence(held)
            if held.site in answers:
                _answer(held.answer, answers[held.site])
        failed = self.aggregator.barrier.failed
        _hand_out(
            [
                (one.answer, body)
                for site, body in answers.items()
                for one in self._held.get(site, ())
                if one.round == complete or failed  # not for earlier rounds
            ]
        )
        self.after()
        self._look_whether_ended()

    def _note_presence(self, held: HeldRequest) -> None:
        """Log a site that begins to take part, or a new reason why it cannot."""
        site, barrier = held.site, self.aggregator.barrier
        problem = self.aggregator.recorder.progress.problems.get(site, "")
        if problem and problem != self._problems.get(site):
            self.audit.note("cannot take part", address=held.connection.address, site=site, reason=problem)
            self._present.discard(site)
        self._problems[site] = problem
        if not problem and site not in self._present and (barrier.round or barrier.holds(site)):
            self._present.add(site)
            what = "returned" if held.began else "accepted hello"
            self.audit.note(what, address=held.connection.address, site=site, round=held.began)

    def _acknowledge(self, site: str, answer: bytes | None) -> bytes | None:
        """Return an answer to a site. A failure needs no acknowledgement; a completed run does (`/done`)."""
        if answer is not None and self.aggregator.barrier.failed and answer == self.aggregator.barrier.stored:
            self.mark_acknowledged(site)
        return answer

    def tick(self) -> None:
        """Do what is due; call this several times a second."""
        if not self._ticks:
            self._ticks = True
            self.enter(self._tick)

    def _tick(self) -> Answers:
        self._ticks = False
        return self.aggregator.tick()

    def fail(self, reason: str, *, status: str = "failed", code: str = ENDED) -> None:
        """End the run because of the aggregator, and tell all sites."""
        self.enter(partial(self.aggregator.fail, AGGREGATOR, reason, status=status, code=code))

    def depart(self, site: str, reason: str) -> None:
        """Record that a site's process has died. The run's end does not wait for it."""
        self.audit.note("departed", site=site, reason=reason)
        self._departed.add(site)
        self._present.discard(site)
        self.enter(partial(self.aggregator.depart, site, reason))
        self._look_whether_ended()

    def note_fault(self, error: Exception) -> ProtocolError:
        """Log an internal error and return the error for requests that met it."""
        place = "{0.filename}:{0.lineno}".format(traceback.extract_tb(error.__traceback__)[-1])
        now, known = perf_counter(), self._logged.get(place)
        if known is None or now - known > QUIET:
            self._logged[place] = now
            _log.error("internal error", exc_info=error)
            self.audit.note("internal error", reason=one_line(error), place=place)
        self.enter(partial(self.aggregator.note_problem, AGGREGATOR, one_line(error)))
        return ProtocolError(
            500,
            f"an internal error of the aggregator ({type(error).__name__}): see its log",
            code="aggregator-failed",
        )

    def _crash(self, error: Exception) -> None:
        """End this process: the update is recorded but not applied, so only the ledger is right."""
        self._refuse_all(self.note_fault(error))
        reason = f"an internal error of the aggregator: {one_line(error)}"
        self.error = RankdadError(reason, code="aggregator-failed")
        if self.aggregator.persistence.keeps:
            self.stop(
                RankdadError(
                    f"{reason}; the ledger is complete, and the same command resumes the run",
                    code="aggregator-stopped",
                )
            )
        else:
            self.fail(reason, code="aggregator-failed")

    def stop(self, error: RankdadError) -> None:
        """End this process with an error; another one resumes the run."""
        self.error, self.crashed = error, True
        self.ended.set()

    def _refuse_all(self, refusal: ProtocolError) -> None:
        for waiting in self._held.values():
            for held in waiting:
                _refuse(held.answer, refusal)

    def mark_acknowledged(self, *sites: str) -> None:
        """Record that sites know the end of the run, or never will."""
        self._unacknowledged -= set(sites)
        self._look_whether_ended()

    def _look_whether_ended(self) -> None:
        if self.aggregator.ended:
            self.ended.set()
            if not self._unacknowledged - self._departed:
                self._drained.set()

    async def drain(self, seconds: float) -> None:
        """Wait until every site knows the end of the run, or none has sent anything for so many seconds.

        Sites may still be computing, or replaying the run after a crash.
        """
        while not self._drained.is_set():
            self._heard.clear()
            waits = [asyncio.ensure_future(event.wait()) for event in (self._drained, self._heard)]
            done, rest = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for wait in rest:
                wait.cancel()
            if not done:
                return

    async def leave(self) -> None:
        """Finish the present call, then answer all held requests with "not yet": the sites ask again."""
        self._leaving = True
        await self.call(lambda: None)
        for waiting in self._held.values():
            for held in waiting:
                _answer(held.answer, None)

    async def close(self) -> None:
        """Wait for the present call and close the aggregator."""
        await self.call(lambda: None)
        self._closed = True
        try:
            await self.call(self.aggregator.close)
        except UserError as error:
            self.error = self.error or error
        finally:
            self._worker.shutdown()


def _refusal_of(paused: PausedError) -> ProtocolError:
    return ProtocolError(500, paused.public_message, code=paused.code)


def _hand_out(answers: list[tuple[asyncio.Future[bytes | None], bytes]]) -> None:
    """Answer requests a few at a time, so that the loop can handle others in between."""
    for waiting, body in answers[:AT_ONCE]:
        _answer(waiting, body)
    if rest := answers[AT_ONCE:]:
        asyncio.get_running_loop().call_soon(_hand_out, rest)


def _answer(waiting: asyncio.Future[bytes | None], body: bytes | None) -> None:
    if not waiting.done():
        waiting.set_result(body)


def _refuse(waiting: asyncio.Future[bytes | None], refusal: ProtocolError) -> None:
    if not waiting.done():
        waiting.set_exception(_without_frames(refusal))


def _without_frames(refusal: ProtocolError) -> ProtocolError:
    """Copy an error without its traceback, which would keep the future and decoded data alive."""
    return ProtocolError(refusal.status, str(refusal), code=refusal.code, field=refusal.field)
