"""An aggregator's process: build the model, serve the run, end with a status."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console

from rankdad.common.errors import INTERRUPTED, ProtocolError, RankdadError, RunFailedError
from rankdad.common.logs import log_names
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.page.tail import Line, Tail
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.app import Routes
from rankdad.remote.application import application
from rankdad.remote.audit import AUDIT, Audit
from rankdad.remote.auth import Identity
from rankdad.remote.beginning import Options, begin, replica_of
from rankdad.remote.config import Access
from rankdad.remote.consortium import Consortium
from rankdad.remote.live import Pages
from rankdad.remote.open_run import OpenRun, Runs
from rankdad.remote.results.progress import AGGREGATOR
from rankdad.remote.run_reader import FILE
from rankdad.remote.run_session import RunSession
from rankdad.remote.server import serve
from rankdad.remote.site_status import site_statuses
from rankdad.remote.upstream import Upstream, answering
from rankdad.remote.view import View, Waiting, view_of

_log = logging.getLogger(__name__)


class InterruptedRunError(RankdadError):
    """A signal ended the run; its directory is readable."""

    exit_code = INTERRUPTED + signal.SIGINT


class OneRun(Runs):
    """The runs of a server that has one, accepted from the beginning.

    Args:
        aggregator: the run's.
        audit: the audit log.
        identity: authentication of the sites.
        viewers: hashed tokens of those who may see the run.
        show: creates the view of a session.
        attach: called with the session before it is served.
        lifeline: see `run_aggregator`.

    Attributes:
        host: the run's session.
        reason: reason for an interruption, or "".
    """

    def __init__(
        self,
        aggregator: Aggregator,
        audit: Audit,
        identity: Identity,
        viewers: Mapping[str, str],
        *,
        show: Callable[[RunSession], View],
        attach: Callable[[RunSession], None] = lambda host: None,
        lifeline: Connection | None = None,
    ) -> None:
        sites, owners = aggregator.children, tuple(viewers)
        consortium = Consortium.model_construct(name=aggregator.spec.name, aggregator="", sites=sites, owners=owners)
        super().__init__(consortium, identity, Identity(tuple(viewers), viewers), audit)
        self.host = RunSession(aggregator, audit, connected=self.registry.present)
        self.open, self.reason, self.tail, self.only = OpenRun(), "", Tail(), aggregator.run_id
        self.running[self.only] = self.open
        self._show, self._attach, self._lifeline = show, attach, lifeline
        self._resumable = aggregator.persistence.keeps
        self._task: asyncio.Task[None]

    async def resume(self) -> None:
        """Begin or resume the run."""
        loop = asyncio.get_running_loop()
        if self._lifeline is not None:
            loop.add_reader(self._lifeline.fileno(), self._hear, self._lifeline)
        self._attach(self.host)
        self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        routes = Routes(self.host, self.identity, self.registry)
        try:
            await self.open.serve(routes, self._show(self.host), lambda: bool(self.reason) and self._resumable)
        finally:
            self.over.set()

    async def leave(self) -> None:
        """Stop after the present round."""
        self.open.leave()
        await self._task
        self.tail.stop()

    def interrupt(self, cause: str) -> None:
        """Interrupt the run: for good, or only in this process if it can be resumed; sites then reconnect."""
        host, sites = self.host, self.host.aggregator.children
        if host.aggregator.ended:
            host.mark_acknowledged(*sites)  # does not wait for computing sites
            return
        self.reason = f"stopped by {cause}"
        host.aggregator.interrupt(self.reason)
        if not self._resumable:
            host.fail(self.reason, status="interrupted")
            host.mark_acknowledged(*sites)
        host.ended.set()

    def _hear(self, lifeline: Connection) -> None:
        """Read the parent's message about a dead site, or its end."""
        try:
            site, _, reason = lifeline.recv_bytes().decode(errors="replace").partition("\t")
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(lifeline.fileno())
            self.interrupt("the end of its parent process")
        else:
            self.host.depart(site, reason)

    async def routes(self, run: str) -> Routes:
        """Refuse a request for another run, or for this one when it is not served.

        Raises:
            ProtocolError: in any case.
        """
        if run != self.only:
            raise ProtocolError(404, "no such run here: this aggregator has one, see /run", code="run-unknown")
        raise ProtocolError(503, "the aggregator stops: ask again when it is back", code="run-waits")

    def lines(self, run: str) -> Callable[[], list[Line]]:
        """Return a function that returns the last lines of the log."""
        return self.tail.lines


def run_aggregator(
    spec: RunSpec,
    output: Path,
    listening: socket.socket,
    console: Console,
    options: Options = Options(),  # noqa: B008
    access: Access = Access(),  # noqa: B008
    *,
    upstream: SiteConfig | None = None,
    viewers: Mapping[str, str] | None = None,
    lifeline: Connection | None = None,
) -> None:
    """Serve a run until it ends.

    Args:
        spec: the run.
        output: the run's directory.
        listening: socket for the sites.
        console: shows progress.
        options: the run's; with a ledger, an interrupted run resumes from it.
        access: network options; by default, anyone on this machine may connect.
        upstream: connection of a region's aggregator to the one above; None for the top aggregator.
        viewers: hashed tokens of those who may see the page, its figures and the documentation of its routes.
        lifeline: pipe from the parent process. "site<tab>reason" reports the death of a site; its end, the parent's.

    Raises:
        UserError: the model or directory cannot be created, or the aggregator above has another run.
        UnreachableError: the aggregator above does not answer.
        RunFailedError: the run failed.
        InterruptedRunError: a signal came.
    """
    with log_names(run=spec.name, site=upstream.name if upstream else AGGREGATOR):
        ledger, climb = options.ledger, None
        resumes = ledger is not None and (output / FILE).exists()
        replica = replica_of(spec, options)
        if upstream:
            is_open = access.tokens is None and access.tls_cert is None  # without authentication
            early = answering(listening, upstream.name, spec.federation) if is_open else nullcontext()
            climb = Upstream(upstream, spec, make_plan(spec, replica.model))
            aggregator = climb.begin(replica, output, ledger, early)
        else:
            aggregator = begin(spec, replica, output, ledger)
        if resumes:
            _log.info("resumed from the ledger in round %d", aggregator.barrier.round)
        progress = aggregator.recorder.progress
        with closing(Audit(output / AUDIT)) as audit:
            audit.note("run resumed" if resumes else "run started", run=aggregator.run_id)
            identity, attach = access.identity(aggregator.children), climb.attach if climb else lambda host: None
            show, tokens = partial(_view, console), viewers or {}
            runs = OneRun(aggregator, audit, identity, tokens, show=show, attach=attach, lifeline=lifeline)
            try:
                serve(runs, application(runs, Pages(runs)), listening, access)
                if runs.host.error is not None:
                    raise runs.host.error
            finally:
                audit.note("run ended", status=progress.status, reason=progress.reason or runs.reason)
        if climb:
            climb.close()
        if len(set(progress.weights_sha256.values())) > 1:
            _log.warning("the sites' final weights differ; do they compute on different hardware?")
    if progress.status == "interrupted":
        resume = "; the same command resumes it" if ledger is not None and lifeline is None else ""
        raise InterruptedRunError(
            f"{progress.reason or runs.reason}; the records are in {output}{resume}", code="interrupted"
        )
    if progress.status in ("failed", "refused"):
        site, _, reason = progress.reason.partition(": ")
        raise RunFailedError(site, reason, code=progress.code, field=progress.about)


def _view(console: Console, host: RunSession) -> View:
    aggregator = host.aggregator
    waiting, history = partial(waiting_of, aggregator), aggregator.recorder.history
    return view_of(aggregator.recorder.progress, waiting, console, history, partial(site_statuses, host))


def waiting_of(aggregator: Aggregator) -> Waiting:
    """Return the state of the present round."""
    status = aggregator.status
    return Waiting(status.waiting_for, time.perf_counter() - status.round_began, status.without, aggregator.ended)
