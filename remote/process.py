"""An aggregator's process: build the model, serve the run, end with a status."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import closing, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console

from rankdad.common.devices import CPU, device_here, limit_threads
from rankdad.common.errors import INTERRUPTED, RankdadError, RunFailedError
from rankdad.common.logs import log_names
from rankdad.common.memory import check_memory
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.audit import AUDIT, Audit
from rankdad.remote.config import Access
from rankdad.remote.persistence import LedgerOptions
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


def run_aggregator(
    spec: RunSpec,
    output: Path,
    listening: socket.socket,
    console: Console,
    allowed_factories: Collection[str] = (),
    lifeline: Connection | None = None,
    *,
    ledger: LedgerOptions | None = LedgerOptions(),  # noqa: B008
    access: Access | None = None,
    weights: Path | None = None,
    upstream: SiteConfig | None = None,
    device: str = CPU,
    viewers: Mapping[str, str] | None = None,
) -> None:
    """Serve a run until it ends.

    Args:
        spec: the run.
        output: the run's directory.
        listening: socket for the sites.
        console: shows progress.
        allowed_factories: permitted model factories.
        lifeline: see `remote.server.serve`.
        ledger: see `Aggregator`; an interrupted run resumes from it.
        access: network options; by default, anyone on this machine may connect.
        weights: folder of the pretrained weights that the spec names.
        upstream: connection of a region's aggregator to the one above; None for the top aggregator.
        device: device of reductions and the replica.
        viewers: see `remote.server.serve`.

    Raises:
        UserError: the model or directory cannot be created, or the aggregator above has another run.
        UnreachableError: the aggregator above does not answer.
        RunFailedError: the run failed.
        InterruptedRunError: a signal came.
    """
    with log_names(run=spec.name, site=upstream.name if upstream else AGGREGATOR):
        access, interrupted = access or Access(), ""
        limit_threads(spec.training.threads)
        check_memory(spec)
        resumes = ledger is not None and (output / FILE).exists()
        replica = Replica(spec, allowed_factories, device_here(device, "--device"), weights)
        if upstream:
            is_open = access.tokens is None and access.tls_cert is None  # without authentication
            early = answering(listening, upstream.name, spec.federation) if is_open else nullcontext()
            climb = Upstream(upstream, spec, make_plan(spec, replica.model))
            aggregator = climb.begin(replica, output, ledger, early)
        else:
            aggregator, climb = Aggregator(spec, replica, output, time.perf_counter, ledger=ledger), None
            if resumes:
                aggregator.resume()
        if resumes:
            _log.info("resumed from the ledger in round %d", aggregator.barrier.round)
        for warning in aggregator.plan.warnings:
            _log.warning(warning)
        attach = climb.attach if climb else lambda host: None
        run = partial(serve, lifeline=lifeline, resumable=aggregator.persistence.keeps, attach=attach, viewers=viewers)
        progress = aggregator.recorder.progress
        with closing(Audit(output / AUDIT)) as audit:
            audit.note("run resumed" if resumes else "run started", run=aggregator.run_id)
            try:
                interrupted = run(aggregator, listening, partial(_view, console), audit, access)
            finally:
                audit.note("run ended", status=progress.status, reason=progress.reason or interrupted)
        if climb:
            climb.close()
        if len(set(progress.weights_sha256.values())) > 1:
            _log.warning("the sites' final weights differ; do they compute on different hardware?")
    if progress.status == "interrupted":
        resume = "; the same command resumes it" if ledger is not None and lifeline is None else ""
        raise InterruptedRunError(
            f"{progress.reason or interrupted}; the records are in {output}{resume}", code="interrupted"
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
