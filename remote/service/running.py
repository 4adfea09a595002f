"""One run of a service, from its first round or from where its ledger ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from rankdad.common.devices import CPU, device_here, limit_threads
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import RankdadError, SpecError, UserError, one_line
from rankdad.common.files import cannot_write
from rankdad.common.logs import LogFile, log_names
from rankdad.common.memory import check_memory
from rankdad.common.protocol.service import State
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.page.serving import Page
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.app import Routes
from rankdad.remote.audit import AUDIT, Audit
from rankdad.remote.auth import Identity
from rankdad.remote.connections import ConnectionRegistry
from rankdad.remote.host import Host
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.process import waiting_of
from rankdad.remote.report.result_lines import result_lines
from rankdad.remote.results.progress import AGGREGATOR
from rankdad.remote.run_reader import FILE
from rankdad.remote.server import see_through
from rankdad.remote.service.logs import RunLogs
from rankdad.remote.service.queue import Entry
from rankdad.remote.view import PlainView

MIN_DELAY, MAX_DELAY = 1.0, 60.0  # seconds between two tries to go on with a run
LOADING = 5.0  # seconds for which a request waits for a run that is being taken up
_log = logging.getLogger(__name__)

Outcome = tuple[State, str]


@dataclass(frozen=True)
class Options:
    """What holds for all runs of a service.

    Args:
        allowed_factories: model factories that the operator permits.
        weights: folder of the pretrained weights that specs may name.
        ledger: what is written down.
        device: where it reduces, and follows the runs.
    """

    allowed_factories: Collection[str] = ()
    weights: Path | None = None
    ledger: LedgerOptions = LedgerOptions()  # noqa: RUF009
    device: str = CPU


class RunningRun:
    """A run that a service holds open for its sites.

    Args:
        entry: of the queue.
        spec: as it was submitted.
        directory: of the run.
        options: of the service.
        known_logs: of the service's sites.

    Attributes:
        host: what calls its aggregator; None while it is being taken up.
        problem: why it cannot go on at the moment; "" where it does.
        page: about it, once somebody has asked for that; closed with each of its hosts.
    """

    def __init__(
        self, entry: Entry, spec: dict[str, Any], directory: Path, options: Options, known_logs: KnownLogs
    ) -> None:
        self.entry, self.directory = entry, directory
        self._document, self._options, self._known_logs = spec, options, known_logs
        self.host: Host | None = None
        self.problem = ""
        self.page: Page | None = None
        self._routes: Routes | None = None
        self._ready = asyncio.Event()
        self._cancelled = ""
        self._again = asyncio.Event()

    @property
    def trains(self) -> bool:
        """Whether it takes a place of those that train at once."""
        return self.entry.state is not State.ENDED and (self.host is None or not self.host.aggregator.ended)

    @property
    def served(self) -> Host | None:
        """Return what calls its aggregator, while its sites are let in."""
        return self.host if self._ready.is_set() else None

    async def routes(self) -> Routes | None:
        """Return what its sites can ask; None while it is being taken up."""
        try:
            async with asyncio.timeout(LOADING):
                await self._ready.wait()
        except TimeoutError:
            return None
        return self._routes

    def end(self, reason: str) -> None:
        """End it for all sites, because of somebody who may."""
        self._cancelled = reason
        self._again.set()
        if self.host is not None and not self.host.ended.is_set():
            self.host.fail(reason, status="interrupted")

    def leave(self) -> None:
        """Stop here; another process goes on."""
        self._again.set()
        if self.host is not None:
            self.host.ended.set()

    async def see_through(
        self,
        beginning: Executor,
        identity: Identity,
        registry: ConnectionRegistry,
        logs: RunLogs,
        leaving: Callable[[], bool],
    ) -> Outcome | None:
        """Serve the run until all its sites know how it ended; return that, or None if another process goes on.

        Args:
            beginning: where models are made, one after the other: they draw from one generator of random numbers.
            identity: how its sites prove who they are.
            registry: of all connections.
            logs: of the service's runs.
            leaving: tells whether the service stops.
        """
        delay, run = MIN_DELAY, self.entry.run
        with log_names(run=run, site=AGGREGATOR):
            while not leaving() and not self._cancelled:
                fresh = not (self.directory / FILE).exists()
                made: tuple[RunSpec, Replica] | None = None
                try:
                    log = logs.open(run)
                    begin, loop = copy_context().run, asyncio.get_running_loop()
                    made = await loop.run_in_executor(beginning, begin, self._make)
                    aggregator = await loop.run_in_executor(beginning, begin, self._begin, *made)
                    self.problem = ""
                    with closing(Audit(self.directory / AUDIT)) as audit:
                        audit.note("run started" if fresh else "run resumed", run=aggregator.run_id)
                        host = await self._serve(aggregator, audit, identity, registry, log, leaving)
                    if host.crashed:
                        self.problem = str(host.error)
                    elif aggregator.ended:
                        progress = aggregator.recorder.progress
                        if progress.status != "completed":
                            return State.FAILED, progress.reason
                        with suppress(OSError, UserError):  # the disk is full: the run has ended all the same
                            summary = load_json(self.directory / "summary.json")
                            print(*result_lines(summary, made[0]), sep="\n", file=log)
                        return State.ENDED, ""
                except RankdadError as error:
                    if fresh and (made is None or isinstance(error, SpecError)):  # another try would not mend it
                        _log.error("%s", error)
                        return State.FAILED, str(error)
                    self.problem = str(error)
                except Exception as error:
                    _log.exception("an error of the service's own")
                    self.problem = one_line(error)
                if self.problem and not leaving():
                    _log.error("%s; tries again in %.0f s", self.problem, delay)
                    self._again.clear()
                    try:
                        async with asyncio.timeout(delay):
                            await self._again.wait()
                    except TimeoutError:
                        delay = min(2 * delay, MAX_DELAY)
        return (State.CANCELLED, self._cancelled) if self._cancelled else None

    async def _serve(
        self,
        aggregator: Aggregator,
        audit: Audit,
        identity: Identity,
        registry: ConnectionRegistry,
        log: LogFile,
        leaving: Callable[[], bool],
    ) -> Host:
        """Let the sites in, see the run through, and return what called its aggregator."""
        connected = partial(registry.present, self.entry.run)
        host = Host(aggregator, audit, registry.timeouts.hold, comes_back=True, connected=connected)
        self._routes = Routes(host, identity, registry, self.entry.run)
        self.host = host
        if aggregator.ended:
            host.ended.set()
        if self._cancelled:
            host.fail(self._cancelled, status="interrupted")
        self._ready.set()
        try:
            progress, console = aggregator.recorder.progress, Console(file=cast(IO[str], log), width=200)
            view = PlainView(progress, partial(waiting_of, aggregator), console)
            await see_through(host, view, lambda: leaving() and not aggregator.ended)
        finally:
            self._ready.clear()
            if self.page is not None:
                self.page.close()
                self.page = None
        return host

    def _make(self) -> tuple[RunSpec, Replica]:
        """Return the run's spec and model.

        Raises:
            UserError: the run is not one for this machine or version.
        """
        spec = validate(RunSpec, self._document, file=self.entry.run)
        limit_threads(spec.training.threads)
        check_memory(spec)
        options = self._options
        device = device_here(options.device, "--device")
        return spec, Replica(spec, options.allowed_factories, device, options.weights)

    def _begin(self, spec: RunSpec, replica: Replica) -> Aggregator:
        """Return the run's aggregator, where its ledger ends.

        Raises:
            UserError: the run's directory cannot be written, or is damaged.
        """
        resumes, ledger = (self.directory / FILE).exists(), self._options.ledger
        try:
            aggregator = Aggregator(
                spec,
                replica,
                self.directory,
                time.perf_counter,
                ledger=ledger,
                run_id=self.entry.id,
                goes_on=False,
                logs=self._known_logs,
            )
        except OSError as error:
            raise cannot_write(self.directory, error) from None
        if resumes:
            try:
                aggregator.resume()
            except BaseException:
                aggregator.abandon()
                raise
        for warning in aggregator.plan.warnings:
            _log.warning(warning)
        return aggregator
