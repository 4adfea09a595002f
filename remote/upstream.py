"""A region's connection to the aggregator above, in a thread, while the region serves its own members."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from urllib.parse import urlsplit

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError, UnreachableError, UserError, visible
from rankdad.common.protocol.plan import Plan
from rankdad.common.protocol.versions import check_versions
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.common.spec.federation import Federation
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import PROCESS_HEADER, AggregatorClient, RefusedError
from rankdad.local.starting import run_id
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.region import Outgoing, Region
from rankdad.remote.run_reader import FILE
from rankdad.remote.run_session import RunSession

REGION_HEADER = "x-rankdad-region"  # names the region in a request for the run
GRACE = 5.0  # seconds for the last message to the aggregator above
_log = logging.getLogger(__name__)


def above(
    upstream: str, region: str | None, federation: Federation, output: Path, *, allow_plain_http: bool
) -> SiteConfig:
    """Return the configuration of a region's connection to the aggregator above.

    Args:
        upstream: an address, or a file like a site's SITE.json, for the region.
        region: its name, required with an address.
        federation: the run's.
        output: the region's directory.
        allow_plain_http: whether to allow an unencrypted connection to another machine.

    Raises:
        UserError: the file is unreadable, options are missing or conflict, or the run has no such region.
    """
    if not upstream.startswith(("http://", "https://")):
        if not Path(upstream).is_file():
            problem = f"--upstream: {upstream!r} is neither a file nor an address that begins with http:// or https://"
            raise UserError(problem, code="address-malformed", field="--upstream")
        config = SiteConfig.read(Path(upstream))
        if region not in (None, config.name):
            problem = f"--region: got {region}, but {upstream} is the file of {config.name}"
            raise UserError(problem, code="region-differs", field="--region")
    elif region is None:
        problem = "--region is missing: the region of this aggregator, one of federation.regions"
        raise UserError(problem, code="region-missing", field="--region")
    else:
        fields = {"name": region, "aggregator": upstream, "data": str(output), "output": str(output)}
        made = validate(SiteConfig, fields | {"allow_plain_http": allow_plain_http}, file="--upstream")
        config = made.checked("--upstream")
    if config.name not in (regions := sorted(federation.regions)):
        expected = f"expected one of {', '.join(regions[:20])}" if regions else "whose federation.regions has none"
        problem = f"--region: {config.name} is not a region of this run, {expected}"
        raise UserError(problem, code="region-unknown", field="--region")
    return config


def check_not_here(upstream: str, port: int) -> None:
    """Check that the aggregator above is not this process, by its address and port.

    Raises:
        UserError: it is this process.
    """
    address = urlsplit(upstream)
    if (address.port or (443 if address.scheme == "https" else 80)) != port:
        return
    with contextlib.suppress(OSError):  # not an address of this machine
        family, *_, (host, *_) = socket.getaddrinfo(address.hostname, 0)[0]
        with socket.socket(family) as probe:
            probe.bind((host, 0))
        problem = f"--upstream: {upstream} is the address of this aggregator, expected that of the one above"
        raise UserError(problem, code="upstream-is-itself", field="--upstream")


class Upstream:
    """The aggregator above a region.

    Args:
        config: its connection.
        spec: the run's.
        plan: the run's.
    """

    def __init__(self, config: SiteConfig, spec: RunSpec, plan: Plan) -> None:
        self._config, self._spec, self._plan = config, spec, plan
        self._own = {PROCESS_HEADER: secrets.token_hex(8)}  # of all its connections
        self._queue: SimpleQueue[Outgoing | None] = SimpleQueue()
        self._thread: Thread | None = None

    def ask(self, *, begins: bool = False) -> str:
        """Return the identity of the run above, after checking that it is the region's run.

        Args:
            begins: whether the region is new: it can only join in the first round.

        Raises:
            UserError: it is another run or aggregator.
            UnreachableError: nobody answered.
        """
        address, name = self._config.aggregator, self._config.name
        with AggregatorClient(self._config, headers=self._own | {REGION_HEADER: name}) as client:
            try:
                offered = client.run()
            except RefusedError as error:
                raise UserError(f"--upstream: {error}", code=error.code, field="--upstream") from None
        check_versions(address, offered, name)
        if (got := offered.get("plan_sha256")) != (own := self._plan.sha256()):
            problem = (
                f"--upstream: {address} has another run than this file: its plan_sha256 is {visible(str(got), 64)}, "
                f"here {own}"
            )
            raise UserError(problem, code="run-differs", field="--upstream")
        above = self._spec.federation.nodes[name].above
        if (got := offered.get("aggregator")) != above:
            problem = (
                f"--upstream: {address} is the aggregator of {visible(str(got), 64)}, but {name} is a member of {above}"
            )
            raise UserError(problem, code="region-differs", field="--upstream")
        if begins and offered.get("round", 0) != 0:
            raise UserError(
                f"--output: is new, but the run of {address} is in round {visible(str(offered['round']), 20)}: {name} "
                "can only resume from its original directory",
                code="run-in-progress",
                field="--output",
            )
        return run_id(offered)

    def begin(
        self, replica: Replica, output: Path, ledger: LedgerOptions | None, early: AbstractContextManager[None]
    ) -> Aggregator:
        """Return the region's aggregator, new or resumed; `early` surrounds requests to the aggregator above.

        Raises:
            UserError: the directory cannot be created, or the aggregator above has another run.
            UnreachableError: nobody answered.
        """
        resumes, run = ledger is not None and (output / FILE).exists(), None
        if not resumes:
            with early:
                run = self.ask(begins=True)
        name, clock = self._config.name, perf_counter
        own = Aggregator(self._spec, replica, output, clock, ledger=ledger, name=name, run_id=run)
        self._region = Region(own, self._recorded, self._queue.put)
        if resumes:
            own.resume()
        if resumes and not own.ended:
            with early:
                run = self.ask()
            if run != own.run_id:
                problem = f"--upstream: {self._config.aggregator} has another run: choose another --output"
                raise UserError(problem, code="run-differs", field="--upstream")
        for warning in self._plan.warnings:
            _log.warning(warning)
        return own

    def _recorded(self, round_: int) -> bytes | None:
        """Fetch the recorded update of a round from above; None if it has none."""
        with AggregatorClient(self._config, headers=self._own) as client, contextlib.suppress(RefusedError):
            client.expect(self._plan)
            return client.recorded(round_)
        return None

    def attach(self, host: RunSession) -> None:
        """Start the thread that sends the region's contributions and returns updates."""
        if self._region.aggregator.ended:  # in an earlier process
            return
        host.after = self._look
        call = asyncio.get_running_loop().call_soon_threadsafe
        self._thread = Thread(target=self._carry, args=(host, call), name="upstream", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        """Stop the thread at the end of the run."""
        if self._region.aggregator.ended:
            self._queue.put(None)

    def _carry(self, host: RunSession, call: Callable[..., object]) -> None:
        """Send queued contributions until the run has ended here."""
        try:
            with AggregatorClient(self._config, headers=self._own) as client:
                client.expect(self._plan)
                while (outgoing := self._queue.get()) is not None:
                    body = client.exchange(outgoing.body, outgoing.ready.round)
                    call(host.enter, partial(self._region.answer, body))
                self._end(client)
        except RankdadError as error:
            with contextlib.suppress(RuntimeError):  # this process has ended meanwhile
                call(_lost, host, error)

    def _end(self, client: AggregatorClient) -> None:
        """Report the end of the run here, or its failure, to the aggregator above."""
        region = self._region
        if not region.aggregator.barrier.failed:
            client.done()
        elif not region.is_reported:
            client.run()
            client.give_up(region.failure())
            region.is_reported = True

    def close(self) -> None:
        """Make sure that the aggregator above knows how the run ended here."""
        own = self._region.aggregator
        if self._thread is None or not own.ended:
            return
        self._thread.join(GRACE)
        unsaid = own.barrier.failed and not self._region.is_reported
        if unsaid or self._thread.is_alive():  # refused, or waiting for a round's update
            config = self._config.model_copy(update={"patience": GRACE})
            with AggregatorClient(config, headers=self._own) as client, contextlib.suppress(RankdadError):
                self._end(client)


def _lost(host: RunSession, error: RankdadError) -> None:
    """Handle the end of the connection: another process may resume, unless the region was refused."""
    if isinstance(error, UnreachableError) and host.aggregator.persistence.keeps:
        host.stop(RankdadError(f"{error}; the same command resumes the run", code="aggregator-stopped"))
    elif not host.aggregator.ended:
        host.fail(str(error), code=error.code)


@contextlib.contextmanager
def answering(listening: socket.socket, name: str, federation: Federation) -> Iterator[None]:
    """Answer requests while this region waits for the aggregator above, so that regions in a loop detect it.

    Args:
        listening: socket that is not served yet.
        name: the region's.
        federation: the run's.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        """Tell a caller to retry or, if it is a region that is not a member, that it is wrong here."""
        if scope["path"] == "/healthz":
            await PlainTextResponse("ok\n")(scope, receive, send)
            return
        asking = Request(scope).headers.get(REGION_HEADER)
        region = federation.nodes.get(asking) if asking else None
        status, code, reason = 503, "upstream-waits", f"{name} waits for the aggregator above it"
        if asking and (region is None or region.above != name):
            above = "not a region of its run" if region is None else f"a member of {region.above}"
            status, code = 409, "region-differs"
            reason = f"is the aggregator of {name}, but {visible(asking, 63)} is {above}"
        await JSONResponse({"error": reason, "code": code, "field": ""}, status)(scope, receive, send)

    config = uvicorn.Config(
        answer,
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="critical",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, args=([listening.dup()],), name="answering", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
