"""A run at the server of an engine: what nodes say comes in one by one, and replies go out.

The engine learns which node gets which bytes, and no more.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from rankdad.common.devices import CPU, Device, device_here, limit_threads
from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import RunFailedError, SpecError
from rankdad.common.memory import check_memory
from rankdad.common.numbers import PositiveFloat
from rankdad.common.protocol.calls import Reply, packed
from rankdad.common.protocol.lost import Lost
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.common.user_code import Permitted
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.calls import Calls, StoppedRunError
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.run_reader import FILE
from rankdad.remote.signs import PATIENCE

ID = r"[0-9a-f]{16}"
TICK = 0.25  # seconds between ticks
WAITING = 60.0  # seconds without a message after which the engine's log says for whom the run waits
SILENCE = 60.0  # seconds after a run's end to wait for silent sites
_log = logging.getLogger(__name__)


class ServerSettings(Part):
    """Settings of the server. Relative paths start at the file's folder."""

    directory: str
    """Persistent folder of the runs' directories, outside of jobs' workspaces."""
    allow_factories: tuple[Permitted, ...] = ()
    """Permitted model factories."""
    weights: str | None = None
    """Folder of the pretrained weights that a run's spec may name."""
    device: Device = CPU
    """Device of reductions: cpu, cuda:N, cuda or auto."""
    patience: PositiveFloat = PATIENCE
    """Seconds of silence after which a hospital's process is lost."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the server's file.

        Raises:
            UserError: it is unreadable, or a field is wrong.
        """
        settings = validate(cls, load_json(path), file=path)
        weights = settings.weights and str(path.parent / settings.weights)
        return settings.model_copy(update={"directory": str(path.parent / settings.directory), "weights": weights})


def host(
    document: object,
    settings: ServerSettings,
    inbox: SimpleQueue[tuple[str, object]],
    post: Callable[[str, bytes], None],
    stops: Callable[[], bool],
    say: Callable[[str], None],
) -> str:
    """Run a job's aggregator to its end, and return a sentence about it.

    Args:
        document: the job's file: the run and its identity.
        settings: the server's.
        inbox: messages of nodes: a node's name, and bytes or a `Lost`.
        post: sends a reply to a node.
        stops: returns whether the engine ends the job.
        say: writes a line to the engine's log.

    Raises:
        RankdadError: the reason for the job's end, with a public message.
    """
    aggregator = _open(document, settings)
    name, progress = f"{aggregator.spec.name} ({aggregator.run_id})", aggregator.recorder.progress
    calls = Calls(aggregator)
    try:
        say(f"{name}: begins in round {aggregator.barrier.round}; its directory is {aggregator.recorder.directory}")
        for site in sorted(calls.open):
            post(site, packed(Reply(number=0)))
        heard = told = time.monotonic()
        while calls.open and not (aggregator.ended and time.monotonic() - heard > SILENCE):
            if stops():
                waits = f" while it waited for {', '.join(sorted(calls.awaited))}" * bool(calls.awaited)
                raise StoppedRunError(f"{name}: stopped by the engine{waits}", code="stopped")
            replies: Mapping[str, bytes] = {}
            with suppress(Empty):
                site, message = inbox.get(timeout=TICK)
                heard = time.monotonic()
                replies = calls.lose(site, message.reason) if isinstance(message, Lost) else calls.take(site, message)
            for site, reply in {**replies, **calls.tick()}.items():
                post(site, reply)
            if calls.awaited and time.monotonic() - max(heard, told) > WAITING:
                told = time.monotonic()
                say(f"{name}: waits for {', '.join(sorted(calls.awaited))}, without a message for {told - heard:.0f} s")
    except StoppedRunError as error:
        aggregator.interrupt(str(error), error.code)
        for site, reply in calls.stop(error).items():
            post(site, reply)
        raise
    except BaseException as error:
        aggregator.interrupt(type(error).__name__)
        raise
    finally:
        aggregator.close()
    if progress.status != "completed":
        site, _, reason = progress.reason.partition(": ")
        raise RunFailedError(site, reason or progress.status, code=progress.code or "run-failed", field=progress.about)
    return f"{name}: completed, weights {next(iter(progress.weights_sha256.values()), '')}"


def _open(document: object, settings: ServerSettings) -> Aggregator:
    """Create or resume the aggregator of a job's run.

    Raises:
        UserError: the job or the run's directory is invalid.
    """
    number, spec = read_job(document)
    limit_threads(spec.training.threads)
    check_memory(spec)
    directory = Path(settings.directory) / f"{spec.name}-{number}"
    weights = None if settings.weights is None else Path(settings.weights)
    replica = Replica(spec, settings.allow_factories, device_here(settings.device), weights)
    resumes = (directory / FILE).exists()
    options = LedgerOptions()
    aggregator = Aggregator(spec, replica, directory, time.perf_counter, ledger=options, run_id=number)
    if resumes:
        aggregator.resume()
    for warning in aggregator.plan.warnings:
        _log.warning(warning)
    return aggregator


def read_job(document: object) -> tuple[str, RunSpec]:
    """Parse a job's file: the run and its identity.

    Raises:
        SpecError: it is invalid.
    """
    number = document.get("id") if isinstance(document, dict) else None
    if not isinstance(document, dict) or set(document) != {"id", "run"}:
        raise SpecError("the job", "has other keys than id and run: create it again", code="job-malformed")
    if not isinstance(number, str) or not re.fullmatch(ID, number):
        raise SpecError("id", "is not 16 hexadecimal digits: create the job again", code="id-malformed")
    spec = validate(RunSpec, document["run"], under="run")
    if spec.federation.regions:
        text = "an engine's server has no regions below it: expected none"
        raise SpecError("run.federation.regions", text, code="regions-unsupported")
    return number, spec
