"""A run at the server, and a site at a client, without a line of the engine: `controller.py` and `executor.py` have it.

Heavy imports wait until a job begins: the engine gives a node a minute to load one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankdad.local.drivers.carried import CarriedConnection
    from rankdad.platforms.nvflare.settings import ServerSettings
    from rankdad.remote.aggregator import Aggregator

KEY = "rankdad"  # of the bytes in what the engine carries, and the name of its tasks
RUN = "run.json"  # in a job's config folder: the run and its identity
ID = r"[0-9a-f]{16}"
TICK = 0.25  # seconds between two looks at the clock
SILENCE = 60.0  # seconds after a run's end in which sites that say nothing are waited for
_log = logging.getLogger(__name__)

Inbox = SimpleQueue[tuple[str, object]]  # a node's name, and the bytes that it sent, or a `Lost`
Post = Callable[[str, bytes], None]


class Lost:
    """In place of a call: the engine has lost a node's process.

    Args:
        reason: in words that others may hear.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason


def host(
    document: object,
    settings: ServerSettings,
    inbox: Inbox,
    post: Post,
    stops: Callable[[], bool],
    say: Callable[[str], None],
) -> str:
    """See a run through, and return in a sentence how it has ended.

    Args:
        document: what the job's file says: the run and its identity.
        settings: of the server.
        inbox: what nodes say.
        post: hands a reply over to a node.
        stops: tells whether the engine ends the job.
        say: told what the engine's log should have.

    Raises:
        RankdadError: what ends the job, in words that may be shown.
    """
    from rankdad.common.errors import RunFailedError
    from rankdad.common.protocol.calls import Reply, packed
    from rankdad.remote.calls import Calls, StoppedRunError

    aggregator = _open(document, settings)
    name, progress = f"{aggregator.spec.name} ({aggregator.run_id})", aggregator.recorder.progress
    try:
        calls = Calls(aggregator)
        say(f"{name}: begins in round {aggregator.barrier.round}; its directory is {aggregator.recorder.directory}")
        for site in sorted(calls.open):
            post(site, packed(Reply(number=0)))
        heard = time.monotonic()
        while calls.open and not (aggregator.ended and time.monotonic() - heard > SILENCE):
            if stops():
                raise StoppedRunError(f"{name}: stopped by the engine", code="stopped")
            replies: Mapping[str, bytes] = {}
            with suppress(Empty):
                site, said = inbox.get(timeout=TICK)
                heard = time.monotonic()
                replies = calls.lose(site, said.reason) if isinstance(said, Lost) else calls.take(site, said)
            for site, reply in {**replies, **calls.tick()}.items():
                post(site, reply)
    except BaseException as error:
        aggregator.interrupt(str(error) if isinstance(error, StoppedRunError) else type(error).__name__)
        raise
    finally:
        aggregator.close()
    if progress.status != "completed":
        site, _, reason = progress.reason.partition(": ")
        raise RunFailedError(site, reason or progress.status, code=progress.code or "run-failed", field=progress.about)
    return f"{name}: completed, weights {next(iter(progress.weights_sha256.values()), '')}"


def _open(document: object, settings: ServerSettings) -> Aggregator:
    """Return the aggregator of a job's run, where its ledger left it.

    Raises:
        UserError: the job, or what lies in the run's directory, cannot be used.
    """
    from rankdad.common.devices import device_here, limit_threads
    from rankdad.common.memory import check_memory
    from rankdad.common.run.replica import Replica
    from rankdad.remote.aggregator import Aggregator
    from rankdad.remote.persistence import LedgerOptions
    from rankdad.remote.run_reader import FILE

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


def read_job(document: object) -> tuple[str, Any]:
    """Return the identity and the run that a job's file holds.

    Raises:
        SpecError: it was edited, and holds something else.
    """
    from rankdad.common.documents import validate
    from rankdad.common.errors import SpecError
    from rankdad.common.spec import RunSpec

    number = document.get("id") if isinstance(document, dict) else None
    if not isinstance(document, dict) or set(document) != {"id", "run"}:
        raise SpecError("the job", f"{RUN} holds other keys than id and run: make the job again", code="job-malformed")
    if not isinstance(number, str) or not re.fullmatch(ID, number):
        raise SpecError("id", f"{RUN} has no identity of 16 hexadecimal digits", code="id-malformed")
    spec = validate(RunSpec, document["run"], under="run")
    if spec.federation.regions:
        said = "an NVFlare server has no regions below it: expected none"
        raise SpecError("run.federation.regions", said, code="regions-unsupported")
    return number, spec


def site_life(node: str, kit: str | None, owner: str) -> Callable[[CarriedConnection], None]:
    """Return the life of a site in a job.

    Args:
        node: the site's name, as the engine has checked it.
        kit: the folder `local` of its startup kit.
        owner: who has submitted the job.
    """

    def live(connection: CarriedConnection) -> None:
        from rankdad.common.logs import LogOptions, set_up
        from rankdad.local.agent.started import take_part
        from rankdad.platforms.nvflare.settings import site_settings

        set_up(LogOptions())
        try:
            config = site_settings(node, kit)
        except Exception as error:
            _log.error("%s", error)
            raise
        take_part(config, connection, owner)

    return live
