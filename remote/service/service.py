"""The service without sockets: offers runs to sites, starts them, and records outcomes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rankdad.common.errors import ProtocolError, UserError, visible
from rankdad.common.protocol.retention import Ended, Receipt
from rankdad.common.protocol.service import (
    MAX_REASON,
    OPEN,
    Asked,
    Described,
    Offer,
    Offered,
    Offers,
    Reply,
    State,
    Submission,
)
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.spec import RunSpec
from rankdad.remote.app import Routes
from rankdad.remote.audit import Audit
from rankdad.remote.beginning import Options
from rankdad.remote.config import Access
from rankdad.remote.consortium import Consortium
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.open_run import Runs
from rankdad.remote.retention import end_again, retention
from rankdad.remote.service.logs import LOGS, LastLines, RunLogs
from rankdad.remote.service.questions import Questions
from rankdad.remote.service.queue import Entry, Queue, QueueError
from rankdad.remote.service.running import RunningRun
from rankdad.remote.service.submissions import checked_run

RUNS = "runs"  # in a service's directory
ENDS: dict[State, Ended] = {
    State.ENDED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "interrupted",
    State.REFUSED: "refused",
}
MAX_AGAIN = 4  # ended runs that are open at once for sites without their results
RETRY = 5.0  # seconds between attempts to write
_log = logging.getLogger(__name__)


class Service(Runs):
    """All runs of a consortium.

    Args:
        consortium: the members.
        directory: the service's.
        queue: the queue of runs.
        access: network options.
        options: options for all runs.
        audit: the audit log.
    """

    running: dict[str, RunningRun]  # type: ignore[assignment]

    def __init__(
        self, consortium: Consortium, directory: Path, queue: Queue, access: Access, options: Options, audit: Audit
    ) -> None:
        identity = access.identity(consortium.members)
        super().__init__(consortium, identity, identity, audit)
        self.directory, self.queue = directory, queue
        self.questions = Questions(queue)
        self.logs = RunLogs(directory / LOGS)
        self._options, self._known_logs = options, KnownLogs(directory)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: set[asyncio.Future[bytes | None]] = set()
        self._checking, self._scheduling = asyncio.Lock(), asyncio.Lock()
        self._offered = lru_cache(4096)(Offered.model_construct)  # shared by all sites
        self._beginning = ThreadPoolExecutor(1, "beginning")

    async def resume(self) -> None:
        """Resume all runs that an earlier process began, and finish pending deletions."""
        for entry in self.queue.in_states(*ENDS):
            if entry.started is not None and not entry.open:
                self._release(entry)
        for entry in self.queue.in_states(State.RUNNING):
            self._hold_open(entry)
        await self.changed()

    def _release(self, entry: Entry) -> None:
        """Finish the deletion of contributions to an ended run."""
        try:
            end_again(self.directory / RUNS / entry.run, ENDS[entry.state], entry.id)
        except UserError as error:
            _log.error("%s", error)

    def receipt(self, run: str, site: str) -> Receipt:
        """Return a site's receipt for an ended run.

        Raises:
            ProtocolError: the run is not the site's, has not ended, or never began.
        """
        entry = self._of(run, site)
        found = None if entry.state in OPEN else retention(self.directory / RUNS / run)
        if found is None and (run in self.running or entry.state in OPEN):
            raise ProtocolError(409, f"{run} has not ended yet: {entry.state.value}", code="run-not-over")
        if found is None:
            raise ProtocolError(404, f"{run} has no receipt: {entry.state.value}", code="no-receipt")
        return found.receipt(site)

    async def leave(self) -> None:
        """Stop after the present rounds; another process resumes."""
        self.over.set()
        self._wake()
        for run in self.running.values():
            run.leave()
        await asyncio.gather(*self._tasks)
        self._beginning.shutdown()

    async def submit(self, read: Callable[[], Submission], owner: str) -> Entry:
        """Add a run to the queue.

        Args:
            read: parses the submission or raises `ProtocolError`. It runs in a thread, one at a time, as a large spec
                takes seconds.
            owner: its owner.

        Raises:
            ProtocolError: it is invalid for this service.
            QueueError: the queue cannot be written.
        """
        id_, spec, document = await self._checked(read)
        wanted = (id_, spec.name, owner, spec.federation.sites, document)
        entry = await self.queue.write(self.queue.submit, *wanted, self.consortium.max_queue)
        self.audit.note("submitted", site=owner, run=entry.run)
        await self.changed()
        return entry

    async def ask(self, read: Callable[[], Submission], owner: str) -> Asked:
        """Ask the sites of a run whether they would take part; nothing begins.

        Raises:
            ProtocolError: it is invalid for this service, or there are too many questions.
            QueueError: the question cannot be written.
        """
        id_, spec, document = await self._checked(read)
        wanted = (id_, spec.name, owner, spec.federation.sites, document)
        asked = await self.queue.write(self.questions.ask, *wanted)
        self.audit.note("asked the sites", site=owner, question=id_)
        self._wake()
        return asked

    async def _checked(self, read: Callable[[], Submission]) -> tuple[str, RunSpec, dict[str, Any]]:
        def checked() -> tuple[str, RunSpec, dict[str, Any]]:
            submission = read()
            return submission.id, *checked_run(submission, self.consortium.sites)

        async with self._checking:
            return await asyncio.to_thread(checked)

    async def cancel(self, run: str, who: str) -> Entry:
        """Cancel a run that has not ended.

        Raises:
            ProtocolError: it belongs to another owner, or has ended.
            QueueError: the queue cannot be written.
        """
        self._own(run, who)
        by = f"by {who}" if who else ""
        if not await self.queue.write(self.queue.move, run, State.CANCELLED, by, where=OPEN):
            raise ProtocolError(409, f"{run} has already ended: {self.queue.entry(run).state.value}", code="run-over")
        self.audit.note("cancelled", site=who, run=run)
        await self._end(run, f"cancelled {by}".strip())
        return self.queue.entry(run)

    def results(self, run: str, who: str) -> Path:
        """Return the directory of an ended run for its owner.

        Raises:
            ProtocolError: it belongs to another owner, is active, or never began.
        """
        directory = self.ended_directory(self._own(run, who))
        self.audit.note("fetched", site=who, run=run)
        return directory

    def ended_directory(self, entry: Entry) -> Path:
        """Return the directory of an ended run.

        Raises:
            ProtocolError: it is active, or never began.
        """
        directory = self.directory / RUNS / entry.run
        if entry.state in OPEN:
            raise ProtocolError(409, f"{entry.run} has not ended yet: {entry.state.value}", code="run-not-over")
        if entry.started is None or not directory.exists():
            problem = f"{entry.run} never began: {entry.state.value}: {entry.reason}"
            raise ProtocolError(404, problem, code="run-not-begun")
        return directory

    def _own(self, run: str, who: str) -> Entry:
        entry = self.queue.entry(run)
        if entry.owner != who:
            raise ProtocolError(403, f"{run} belongs to {entry.owner or 'nobody'}", code="not-the-owner")
        return entry

    def offers(self, site: str) -> Offers:
        """Return a site's runs to answer for, take part in or finish, and its questions."""
        runs = []
        for entry in self.queue.concerning(site):
            answered = entry.answers.get(site)
            answer = None if answered is None else answered.answer
            state = "running" if entry.state in (State.RUNNING, State.ENDED) else "waiting"
            is_over = entry.state is State.REFUSED and not (answered is None and self.queue.asks(entry))
            if not is_over and answer not in ("refused", "finished"):
                runs.append(self._offered(run=entry.run, id=entry.id, state=state, answer=answer))
        questions = self.questions.of(site)
        text = "\n".join([f"{run.run} {run.id} {run.state} {run.answer}" for run in runs] + questions)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Offers.model_construct(digest=digest, runs=tuple(runs), questions=tuple(questions))

    async def change(self, waiting: asyncio.Future[bytes | None], seconds: float) -> None:
        """Wait for a change, or for so many seconds.

        Args:
            waiting: set by a change, or to end the wait.
            seconds: at most.
        """
        self._waiters.add(waiting)
        try:
            for over in (await asyncio.wait([waiting], timeout=seconds))[0]:
                over.result()  # or the error with which the connection was closed
        finally:
            self._waiters.discard(waiting)

    def offer(self, run: str, site: str) -> Offer:
        """Return a run to one of its sites.

        Raises:
            ProtocolError: it is unknown, or of other sites.
        """
        entry = self._of(run, site)
        spec = self.queue.spec(run)
        return Offer(run=entry.run, id=entry.id, owner=entry.owner, **OUR_VERSION, spec=spec)

    async def reply(self, run: str, site: str, reply: Reply) -> None:
        """Store a site's answer about a run, and act on it.

        Raises:
            ProtocolError: the run is not the site's.
            QueueError: the queue cannot be written.
        """
        entry, reason = self._of(run, site), visible(reply.reason)
        if reply.id != entry.id:
            raise ProtocolError(409, "id: is another run's", code="id-taken", field="id")
        if not await self.queue.write(self.queue.answer, run, site, reply.answer, reason):
            return
        self.audit.note(f"run {reply.answer}", site=site, run=run, reason=reason)
        why = f"{site}: {reason}"
        if reply.answer == "refused" and await self.queue.write(self.queue.move, run, State.REFUSED, why, where=OPEN):
            await self._end(run, f"{site} refused it: {reason}")
        else:
            await self.changed()

    def _of(self, run: str, site: str) -> Entry:
        entry = self.queue.entry(run)
        if site not in entry.sites:
            raise ProtocolError(404, "no such run for this site", code="run-unknown")
        return entry

    def described(self, entry: Entry) -> Described:
        """Return a run for owners and viewers."""
        running = self.running.get(entry.run)
        if running is None:
            return entry.described()
        status = None if running.host is None else running.host.aggregator.status
        problem = running.problem
        if not problem and status is not None:
            problem = "; ".join(f"{name}: {text}" for name, text in status.problems.items())
        described = entry.described(*((0, 0) if status is None else (status.step, status.steps)))
        return described.model_copy(update={"reason": described.reason or visible(problem, MAX_REASON)})

    def lines(self, run: str) -> LastLines:
        """Return a function that returns the last lines of a run's log."""
        return LastLines(self.directory / LOGS, run)

    def counts(self) -> dict[str, int]:
        """Return the number of runs by state."""
        return self.queue.counts()

    async def unready(self) -> str:
        """Return why no run can be accepted, or ""."""
        try:
            await self.queue.write(self.queue.check)
        except QueueError:
            return "the queue cannot be written: see the service's log"
        return await super().unready()

    async def routes(self, run: str) -> Routes:
        """Return a run's routes; reopen an ended run for a site that needs it.

        Raises:
            ProtocolError: it is unknown, has ended, or is being opened.
        """
        if not run:
            problem = "this is a service of several runs: start the site with --stay"
            raise ProtocolError(404, problem, code="service-of-several-runs")
        running = self.running.get(run)
        if running is None:
            entry = self.queue.entry(run)
            if entry.state in OPEN:  # stopped here, or it waits once more in an older copy of the queue
                when = "resumes when the service restarts" if entry.state is State.RUNNING else "has not begun"
                raise ProtocolError(503, f"{run} {when}", code="run-waits")
            if entry.state is not State.ENDED or not entry.open:
                problem = f"{run}: {entry.state.value}" + f": {entry.reason}" * bool(entry.reason)
                raise ProtocolError(410, problem, code="run-over")
            if sum(one.entry.state is State.ENDED for one in self.running.values()) >= MAX_AGAIN:
                raise ProtocolError(503, f"{run} is reopened after others", code="run-waits")
            running = self._hold_open(entry)
        found = await running.routes()
        if found is None:
            raise ProtocolError(503, f"{run} is being opened", code="run-being-taken-up")
        return found

    async def changed(self) -> None:
        """Start runs that are due, and notify waiting agents."""
        try:
            async with self._scheduling:
                await self._schedule()
        except QueueError as error:
            _log.error("%s; retrying in %.0f s", error, RETRY)
            asyncio.get_running_loop().call_later(RETRY, lambda: self._begin(self.changed()))
        self._wake()

    async def _schedule(self) -> None:
        for entry in self.queue.in_states(State.WAITING):
            if entry.agreed:
                await self.queue.write(self.queue.move, entry.run, State.QUEUED, where=[State.WAITING])
        free = self.consortium.runs_at_once - sum(run.trains for run in self.running.values())
        for entry in self.queue.in_states(State.QUEUED)[: max(0, free)]:
            if self.over.is_set():
                return
            if await self.queue.write(self.queue.move, entry.run, State.RUNNING, where=[State.QUEUED]):
                moved = self.queue.entry(entry.run)
                if moved.state is State.RUNNING and not self.over.is_set():  # not cancelled meanwhile
                    self._hold_open(moved)

    def _wake(self) -> None:
        for waiting in self._waiters:
            if not waiting.done():
                waiting.set_result(None)

    async def _end(self, run: str, reason: str) -> None:
        if run in self.running:
            self.running[run].end(reason)
        await self.changed()

    def _hold_open(self, entry: Entry) -> RunningRun:
        run = RunningRun(
            entry, self.queue.spec(entry.run), self.directory / RUNS / entry.run, self._options, self._known_logs
        )
        self.running[entry.run] = run
        self._begin(self._run_to_end(run))
        return run

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_to_end(self, run: RunningRun) -> None:
        name = run.entry.run
        identity = replace(self.identity, sites=run.entry.sites)
        try:
            outcome = await run.run_until_finished(
                self._beginning, identity, self.registry, self.logs, lambda: self.over.is_set()
            )
            if outcome is not None:
                await self._conclude(name, *outcome)
        finally:
            del self.running[name]
            self.logs.shut(name)
            if not self.over.is_set():
                await self.changed()

    async def _conclude(self, run: str, state: State, reason: str) -> None:
        """Record a run's outcome, retrying until the disk accepts it."""
        if state is not State.ENDED:
            self._release(replace(self.queue.entry(run), state=state))
        while not self.over.is_set():
            try:
                await self.queue.write(self.queue.move, run, state, reason, where=[State.RUNNING])
                return
            except QueueError as error:
                _log.error("%s", error)
                await asyncio.sleep(RETRY)
