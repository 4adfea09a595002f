"""The service without its sockets: who is offered which run, when one begins, and what becomes of it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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
from rankdad.remote.config import Access
from rankdad.remote.connections import ConnectionRegistry
from rankdad.remote.consortium import Consortium
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.retention import end_again, retention
from rankdad.remote.service.logs import LOGS, RunLogs
from rankdad.remote.service.questions import Questions
from rankdad.remote.service.queue import Entry, Queue, QueueError
from rankdad.remote.service.running import Options, RunningRun
from rankdad.remote.service.submissions import checked_run

RUNS = "runs"  # of a service's directory
ENDS: dict[State, Ended] = {
    State.ENDED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "interrupted",
    State.REFUSED: "refused",
}
MAX_AGAIN = 4  # runs that have ended and are held open again at once, for sites that lack their results
RETRY = 5.0  # seconds between two tries to write what the disk does not take
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """When a site's agent was last heard of, in seconds since 1970, which version it is, and whether it fits."""

    time: float
    version: str
    fits: bool


class Service:
    """All runs of a consortium. Everything but the work of a run is called in the event loop.

    Args:
        consortium: who takes part.
        directory: of the service.
        queue: of its runs.
        access: who may connect, and how.
        options: of all runs.
        audit: log of who comes and goes.

    Attributes:
        registry: of all connections.
        agents: of the sites that were heard of.
        running: runs that are held open, by name.
    """

    def __init__(
        self,
        consortium: Consortium,
        directory: Path,
        queue: Queue,
        access: Access,
        options: Options,
        audit: Audit,
    ) -> None:
        self.consortium, self.directory, self.queue, self.audit = consortium, directory, queue, audit
        self.registry = ConnectionRegistry(audit)
        self.identity = access.identity(consortium.members)
        self.agents: dict[str, Seen] = {}
        self.running: dict[str, RunningRun] = {}
        self.questions = Questions(queue)
        self.logs = RunLogs(directory / LOGS)
        self._options, self._known_logs = options, KnownLogs(directory)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: set[asyncio.Future[bytes | None]] = set()
        self._checking, self._scheduling = asyncio.Lock(), asyncio.Lock()
        self._offered = lru_cache(4096)(Offered.model_construct)  # all sites are offered the same runs
        self._beginning = ThreadPoolExecutor(1, "beginning")
        self.leaving = False

    async def resume(self) -> None:
        """Go on with all runs that a process before this one has begun, and delete what it has left of others."""
        for entry in self.queue.in_states(*ENDS):
            if entry.started is not None and not entry.open:
                self._release(entry)
        for entry in self.queue.in_states(State.RUNNING):
            self._hold_open(entry)
        await self.changed()

    def _release(self, entry: Entry) -> None:
        """Delete what the sites of a run that is over have sent to it, where nobody has done so."""
        try:
            end_again(self.directory / RUNS / entry.run, ENDS[entry.state], entry.id)
        except UserError as error:
            _log.error("%s", error)

    def receipt(self, run: str, site: str) -> Receipt:
        """Return what has become of a site's contributions to a run that is over.

        Raises:
            ProtocolError: the run is not the site's, is not over, or never began.
        """
        entry = self._of(run, site)
        found = None if entry.state in OPEN else retention(self.directory / RUNS / run)
        if found is None:
            raise ProtocolError(404, f"{run} has no receipt: {entry.state.value}", code="no-receipt")
        return found.receipt(site)

    async def leave(self) -> None:
        """Stop here: every round in hand is finished, and another process goes on."""
        self.leaving = True
        self._wake()
        for run in self.running.values():
            run.leave()
        await asyncio.gather(*self._tasks)
        self._beginning.shutdown()

    async def submit(self, read: Callable[[], Submission], owner: str) -> Entry:
        """Put a run into the queue.

        Args:
            read: returns it, and raises `ProtocolError` where it cannot be read. It is called in a thread, and of these
                there is one: a large spec takes seconds, in which sites wait for answers.
            owner: who submits it.

        Raises:
            ProtocolError: it is not one for this service, says what is wrong.
            QueueError: the queue cannot be written.
        """
        id_, spec, document = await self._checked(read)
        wanted = (id_, spec.name, owner, spec.federation.sites, document)
        entry = await self.queue.write(self.queue.submit, *wanted, self.consortium.max_queue)
        self.audit.note("submitted", site=owner, run=entry.run)
        await self.changed()
        return entry

    async def ask(self, read: Callable[[], Submission], owner: str) -> Asked:
        """Ask the sites of a run whether they would take part in it: as `submit`, but nothing begins.

        Raises:
            ProtocolError: it is not one for this service, or the owner asks too often.
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
            ProtocolError: it is somebody else's, or is over.
            QueueError: the queue cannot be written.
        """
        self._own(run, who)
        by = f"by {who}" if who else ""
        if not await self.queue.write(self.queue.move, run, State.CANCELLED, by, where=OPEN):
            raise ProtocolError(409, f"{run} is over already: {self.queue.entry(run).state.value}", code="run-over")
        self.audit.note("cancelled", site=who, run=run)
        await self._end(run, f"cancelled {by}".strip())
        return self.queue.entry(run)

    def results(self, run: str, who: str) -> Path:
        """Return the directory of a run that is over.

        Raises:
            ProtocolError: it is somebody else's, goes on, or never began.
        """
        directory = self.over(self._own(run, who))
        self.audit.note("fetched", site=who, run=run)
        return directory

    def over(self, entry: Entry) -> Path:
        """Return the directory of a run that is over.

        Raises:
            ProtocolError: it goes on, or never began.
        """
        directory = self.directory / RUNS / entry.run
        if entry.state in OPEN:
            raise ProtocolError(409, f"{entry.run} is not over yet: {entry.state.value}", code="run-not-over")
        if entry.started is None or not directory.exists():
            raise ProtocolError(
                404, f"{entry.run} has never begun: {entry.state.value}: {entry.reason}", code="run-not-begun"
            )
        return directory

    def _own(self, run: str, who: str) -> Entry:
        entry = self.queue.entry(run)
        if entry.owner != who:
            raise ProtocolError(403, f"{run} is {entry.owner or 'nobody'}'s run", code="not-the-owner")
        return entry

    def offers(self, site: str) -> Offers:
        """Return what concerns a site: runs to answer for, take part in or finish, and questions."""
        runs = []
        for entry in self.queue.concerning(site):
            said = entry.answers.get(site)
            answer = None if said is None else said.answer
            state = "running" if entry.state in (State.RUNNING, State.ENDED) else "waiting"
            is_over = entry.state is State.REFUSED and not (said is None and self.queue.asks(entry))
            if not is_over and answer not in ("refused", "finished"):
                runs.append(self._offered(run=entry.run, id=entry.id, state=state, answer=answer))
        questions = self.questions.of(site)
        text = "\n".join([f"{run.run} {run.id} {run.state} {run.answer}" for run in runs] + questions)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Offers.model_construct(digest=digest, runs=tuple(runs), questions=tuple(questions))

    async def change(self, waiting: asyncio.Future[bytes | None], seconds: float) -> None:
        """Wait until something has changed, or for so long.

        Args:
            waiting: set then, or by whoever ends the wait.
            seconds: at most.
        """
        self._waiters.add(waiting)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(waiting)
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiting)

    def offer(self, run: str, site: str) -> Offer:
        """Return a run to a site that it concerns.

        Raises:
            ProtocolError: it does not.
        """
        entry = self._of(run, site)
        spec = self.queue.spec(run)
        return Offer(run=entry.run, id=entry.id, owner=entry.owner, **OUR_VERSION, spec=spec)

    async def reply(self, run: str, site: str, reply: Reply) -> None:
        """Take what a site says of a run.

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
            await self._end(run, why)
        else:
            await self.changed()

    def _of(self, run: str, site: str) -> Entry:
        entry = self.queue.entry(run)
        if site not in entry.sites:
            raise ProtocolError(404, "no such run for this site", code="run-unknown")
        return entry

    def described(self, entry: Entry) -> Described:
        """Return what owners and viewers see of a run."""
        running = self.running.get(entry.run)
        if running is None:
            return entry.described()
        status = None if running.host is None else running.host.aggregator.status
        problem = running.problem
        if not problem and status is not None:
            problem = "; ".join(f"{name}: {said}" for name, said in status.problems.items())
        described = entry.described(*((0, 0) if status is None else (status.step, status.steps)))
        return described.model_copy(update={"reason": described.reason or visible(problem, MAX_REASON)})

    async def routes(self, run: str) -> Routes:
        """Return what the sites of a run can ask; one that has ended is taken up again for a site that needs it.

        Raises:
            ProtocolError: there is no such run, it is over, or it is being taken up.
        """
        running = self.running.get(run)
        if running is None:
            entry = self.queue.entry(run)
            if entry.state is State.RUNNING:  # this process has let it go: the next one goes on with it
                raise ProtocolError(503, f"{run} goes on when the service has started again", code="run-waits")
            if entry.state is not State.ENDED or not entry.open:
                raise ProtocolError(
                    410, f"{run}: {entry.state.value}" + f": {entry.reason}" * bool(entry.reason), code="run-over"
                )
            if sum(one.entry.state is State.ENDED for one in self.running.values()) >= MAX_AGAIN:
                raise ProtocolError(503, f"{run} is taken up again after others", code="run-waits")
            running = self._hold_open(entry)
        found = await running.routes()
        if found is None:
            raise ProtocolError(503, f"{run} is being taken up", code="run-being-taken-up")
        return found

    async def changed(self) -> None:
        """Let runs begin whose turn it is, and tell all agents that wait what is new."""
        try:
            async with self._scheduling:
                await self._schedule()
        except QueueError as error:
            _log.error("%s; tries again in %.0f s", error, RETRY)
            asyncio.get_running_loop().call_later(RETRY, lambda: self._begin(self.changed()))
        self._wake()

    async def _schedule(self) -> None:
        for entry in self.queue.in_states(State.WAITING):
            if entry.agreed:
                await self.queue.write(self.queue.move, entry.run, State.QUEUED, where=[State.WAITING])
        free = self.consortium.runs_at_once - sum(run.trains for run in self.running.values())
        for entry in self.queue.in_states(State.QUEUED)[: max(0, free)]:
            if self.leaving:
                return
            if await self.queue.write(self.queue.move, entry.run, State.RUNNING, where=[State.QUEUED]):
                moved = self.queue.entry(entry.run)
                if moved.state is State.RUNNING and not self.leaving:  # nobody has cancelled it since
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
        self._begin(self._see_through(run))
        return run

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_through(self, run: RunningRun) -> None:
        name = run.entry.run
        identity = replace(self.identity, sites=run.entry.sites)
        try:
            outcome = await run.run_until_finished(
                self._beginning, identity, self.registry, self.logs, lambda: self.leaving
            )
            if outcome is not None:
                await self._conclude(name, *outcome)
        finally:
            del self.running[name]
            self.logs.shut(name)
            if not self.leaving:
                await self.changed()

    async def _conclude(self, run: str, state: State, reason: str) -> None:
        """Write down how a run has ended, as soon as the disk takes it."""
        if state is not State.ENDED:
            self._release(replace(self.queue.entry(run), state=state))
        while not self.leaving:
            try:
                await self.queue.write(self.queue.move, run, state, reason, where=[State.RUNNING])
                return
            except QueueError as error:
                _log.error("%s", error)
                await asyncio.sleep(RETRY)
