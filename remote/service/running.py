"""An active run of a service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import RankdadError, SpecError, UserError, one_line
from rankdad.common.logs import log_names
from rankdad.common.protocol.service import State
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.app import Routes
from rankdad.remote.audit import AUDIT, Audit
from rankdad.remote.auth import Identity
from rankdad.remote.beginning import Options, begin, replica_of
from rankdad.remote.connections import ConnectionRegistry
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.open_run import OpenRun
from rankdad.remote.process import waiting_of
from rankdad.remote.report.result_lines import result_lines
from rankdad.remote.results.progress import AGGREGATOR
from rankdad.remote.run_reader import FILE
from rankdad.remote.run_session import RunSession
from rankdad.remote.service.logs import RunLogs
from rankdad.remote.service.queue import Entry
from rankdad.remote.view import PlainView

MIN_DELAY, MAX_DELAY = 1.0, 60.0  # seconds between attempts to resume a run
_log = logging.getLogger(__name__)

Outcome = tuple[State, str]


class RunningRun(OpenRun):
    """A run that a service keeps open for its sites.

    Args:
        entry: the run in the queue.
        spec: the spec as submitted.
        directory: the run's.
        options: the service's.
        known_logs: heads of the sites' logs.
    """

    def __init__(
        self, entry: Entry, spec: dict[str, Any], directory: Path, options: Options, known_logs: KnownLogs
    ) -> None:
        super().__init__()
        self.entry, self.directory = entry, directory
        self._document, self._options, self._known_logs = spec, options, known_logs
        self._cancelled = ""
        self._again = asyncio.Event()

    @property
    def trains(self) -> bool:
        """Whether it occupies one of the places for training."""
        return self.entry.state is not State.ENDED and (self.host is None or not self.host.aggregator.ended)

    def open(self, routes: Routes) -> None:
        """Let the sites connect, if only to learn that it was cancelled."""
        super().open(routes)
        if self._cancelled:
            routes.host.fail(self._cancelled, status="interrupted")

    def end(self, reason: str) -> None:
        """End it for all sites."""
        self._cancelled = reason
        self._again.set()
        if self.host is not None and not self.host.ended.is_set():
            self.host.fail(reason, status="interrupted")

    def leave(self) -> None:
        """Stop it in this process; another one resumes it."""
        self._again.set()
        super().leave()

    async def run_until_finished(
        self,
        beginning: Executor,
        identity: Identity,
        registry: ConnectionRegistry,
        logs: RunLogs,
        leaving: Callable[[], bool],
    ) -> Outcome | None:
        """Serve the run until all its sites know how it ended. Return the outcome, or None if another process resumes
        it.

        Args:
            beginning: executor that builds models one at a time, as they share a random generator.
            identity: authentication of its sites.
            registry: all connections.
            logs: logs of the service's runs.
            leaving: returns whether the service is stopping.
        """
        delay, run = MIN_DELAY, self.entry.run
        with log_names(run=run, site=AGGREGATOR):
            while not leaving() and not self._cancelled:
                fresh = not (self.directory / FILE).exists()
                made: tuple[RunSpec, Replica] | None = None
                try:
                    log = logs.open(run)
                    named, loop = copy_context().run, asyncio.get_running_loop()
                    made = await loop.run_in_executor(beginning, named, self._make)
                    aggregator = await loop.run_in_executor(beginning, named, self._begin, *made)
                    self.problem = ""
                    with closing(Audit(self.directory / AUDIT)) as audit:
                        audit.note("run started" if fresh else "run resumed", run=aggregator.run_id)
                        connected = partial(registry.present, run)
                        host = RunSession(
                            aggregator, audit, registry.timeouts.hold, comes_back=True, connected=connected
                        )
                        console = Console(file=cast(IO[str], log), width=200)
                        view = PlainView(aggregator.recorder.progress, partial(waiting_of, aggregator), console)
                        await self.serve(Routes(host, identity, registry, run), view, leaving)
                    if host.crashed:
                        self.problem = str(host.error)
                    elif aggregator.ended:
                        progress = aggregator.recorder.progress
                        if progress.status != "completed":
                            return State.FAILED, progress.reason
                        with suppress(OSError, UserError):  # a full disk does not change the outcome
                            summary = load_json(self.directory / "summary.json")
                            print(*result_lines(summary, made[0]), sep="\n", file=log)
                        return State.ENDED, ""
                except RankdadError as error:
                    if fresh and (made is None or isinstance(error, SpecError)):  # a retry would not help
                        _log.error("%s", error)
                        return State.FAILED, str(error)
                    self.problem = str(error)
                except Exception as error:
                    _log.exception("internal error")
                    self.problem = one_line(error)
                if self.problem and not leaving():
                    _log.error("%s; retrying in %.0f s", self.problem, delay)
                    self._again.clear()
                    try:
                        async with asyncio.timeout(delay):
                            await self._again.wait()
                    except TimeoutError:
                        delay = min(2 * delay, MAX_DELAY)
        return (State.CANCELLED, self._cancelled) if self._cancelled else None

    def _make(self) -> tuple[RunSpec, Replica]:
        """Build the run's spec and model.

        Raises:
            UserError: the run does not fit this machine or version.
        """
        spec = validate(RunSpec, self._document, file=self.entry.run)
        return spec, replica_of(spec, self._options)

    def _begin(self, spec: RunSpec, replica: Replica) -> Aggregator:
        named = {"run_id": self.entry.id, "goes_on": False, "logs": self._known_logs}
        return begin(spec, replica, self.directory, self._options.ledger, **named)
