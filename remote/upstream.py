"""What carries a region's contributions to the aggregator above, and the updates back, while it serves its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from time import perf_counter
from urllib.parse import urlsplit

from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError, UnreachableError, UserError, visible
from rankdad.common.protocol.plan import Plan
from rankdad.common.protocol.versions import check_versions
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.common.spec.federation import Federation
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import AggregatorClient, RefusedError
from rankdad.local.starting import run_id
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.host import Host
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.region import Outgoing, Region
from rankdad.remote.run_reader import FILE

REGION_HEADER = "x-rankdad-region"  # of a question for the run: which region asks
BRIEF = 0.5  # seconds
GRACE = 5.0  # seconds in which the last words reach the aggregator above


def above(
    upstream: str, region: str | None, federation: Federation, output: Path, *, allow_plain_http: bool
) -> SiteConfig:
    """Return how a region of a run reaches the aggregator above.

    Args:
        upstream: an address, or a file such as a site has, in which the region is the site.
        region: its name; a file has that.
        federation: of the run.
        output: of the region.
        allow_plain_http: whether an address on another machine may be reached without encryption.

    Raises:
        UserError: the file is unreadable, or something is missing or too much, or the run has no such region.
    """
    if not upstream.startswith(("http://", "https://")):
        if not Path(upstream).is_file():
            raise UserError(
                f"--upstream: {upstream!r} is neither a file nor an address that begins with http:// or https://",
                code="address-malformed",
                field="--upstream",
            )
        config = SiteConfig.read(Path(upstream))
        if region not in (None, config.name):
            raise UserError(
                f"--region: got {region}, but {upstream} is the file of {config.name}",
                code="region-differs",
                field="--region",
            )
    elif region is None:
        raise UserError(
            "--region is missing: whose aggregator this is, one of federation.regions",
            code="region-missing",
            field="--region",
        )
    else:
        fields = {"name": region, "aggregator": upstream, "data": str(output), "output": str(output)}
        made = validate(SiteConfig, fields | {"allow_plain_http": allow_plain_http}, file="--upstream")
        config = made.checked("--upstream")
    if config.name not in (regions := sorted(federation.regions)):
        expected = f"expected one of {', '.join(regions[:20])}" if regions else "whose federation.regions has none"
        raise UserError(
            f"--region: {config.name} is no region of this run, {expected}", code="region-unknown", field="--region"
        )
    return config


def check_not_here(upstream: str, port: int) -> None:
    """Check that the aggregator above is not the one that has just begun to listen on a port of this machine.

    Raises:
        UserError: it is, and would wait for itself.
    """
    address = urlsplit(upstream)
    if (address.port or (443 if address.scheme == "https" else 80)) != port:
        return
    with contextlib.suppress(OSError):  # no address of this machine's, or none at all
        family, *_, (host, *_) = socket.getaddrinfo(address.hostname, 0)[0]
        with socket.socket(family) as probe:
            probe.bind((host, 0))
        raise UserError(
            f"--upstream: {upstream} is this aggregator's own address, expected that of the one above",
            code="upstream-is-itself",
            field="--upstream",
        )


class Upstream:
    """The aggregator above a region: asked for its run, then sent one contribution at a time by a thread.

    Args:
        config: how it is reached.
        spec: the run.
        plan: of the run.
    """

    def __init__(self, config: SiteConfig, spec: RunSpec, plan: Plan) -> None:
        self._config, self._spec, self._plan = config, spec, plan
        self._queue: SimpleQueue[Outgoing | None] = SimpleQueue()
        self._thread: Thread | None = None

    def ask(self, *, begins: bool = False) -> str:
        """Return the number of the run above, if that is the region's, and the aggregator there is the one above it.

        Args:
            begins: whether the region has nothing of the run: only its first round can be begun so.

        Raises:
            UserError: it is another.
            UnreachableError: nobody answered.
        """
        address, name = self._config.aggregator, self._config.name
        with AggregatorClient(self._config, headers={REGION_HEADER: name}) as client:
            try:
                offered = client.run()
            except RefusedError as error:
                raise UserError(f"--upstream: {error}", code=error.code, field="--upstream") from None
        check_versions(address, offered, name)
        if (got := offered.get("plan_sha256")) != (own := self._plan.sha256()):
            raise UserError(
                f"--upstream: {address} has another run than this file: its plan_sha256 is {visible(str(got), 64)}, "
                f"here {own}",
                code="run-differs",
                field="--upstream",
            )
        above = self._spec.federation.nodes[name].above
        if (got := offered.get("aggregator")) != above:
            raise UserError(
                f"--upstream: {address} is the aggregator of {visible(str(got), 64)}, but {name} is a member of "
                f"{above}",
                code="region-differs",
                field="--upstream",
            )
        if begins and offered.get("round", 0) != 0:
            raise UserError(
                f"--output: is new, but the run of {address} is in round {visible(str(offered['round']), 20)}: {name} "
                "can go on from the directory alone that it began with",
                code="run-in-progress",
                field="--output",
            )
        return run_id(offered)

    def begin(
        self, replica: Replica, output: Path, ledger: LedgerOptions | None, early: AbstractContextManager[None]
    ) -> Aggregator:
        """Return the region's aggregator, at the run's beginning or where its ledger ends; it asks within `early`.

        Raises:
            UserError: the directory cannot be made, or the aggregator above has another run.
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
                raise UserError(
                    f"--upstream: {self._config.aggregator} has another run than {output}: choose another --output",
                    code="run-differs",
                    field="--upstream",
                )
        return own

    def _recorded(self, round_: int) -> bytes | None:
        """Return the update of a round as the aggregator above has recorded it; None if it has not."""
        with AggregatorClient(self._config) as client, contextlib.suppress(RefusedError):
            client.expect(self._plan)
            return client.recorded(round_)
        return None

    def attach(self, host: Host) -> None:
        """Let a thread bring up what the region has to send, and hand its host what comes back."""
        if self._region.aggregator.ended:  # in a process before this one
            return
        host.after = self._look
        call = asyncio.get_running_loop().call_soon_threadsafe
        self._thread = Thread(target=self._carry, args=(host, call), name="upstream", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        """Let the thread end with the run."""
        if self._region.aggregator.ended:
            self._queue.put(None)

    def _carry(self, host: Host, call: Callable[..., object]) -> None:
        """Send what is in the queue until the run has ended here."""
        try:
            with AggregatorClient(self._config) as client:
                client.expect(self._plan)
                while (outgoing := self._queue.get()) is not None:
                    body = client.exchange(outgoing.body, outgoing.ready.round)
                    call(host.enter, partial(self._region.answer, body))
                self._end(client)
        except RankdadError as error:
            with contextlib.suppress(RuntimeError):  # this process has ended meanwhile
                call(_lost, host, error)

    def _end(self, client: AggregatorClient) -> None:
        """Say above that all is done here, or why the run has failed, if that is not known there."""
        region = self._region
        if not region.aggregator.barrier.failed:
            client.done()
        elif not region.told:
            client.run()
            client.give_up(region.failure())
            region.told = True

    def close(self) -> None:
        """See that the aggregator above knows how the run has ended here."""
        own = self._region.aggregator
        if self._thread is None or not own.ended:
            return
        self._thread.join(GRACE)
        unsaid = own.barrier.failed and not self._region.told
        if unsaid or self._thread.is_alive():  # it was refused, or waits for a round's end, which may take long
            config = self._config.model_copy(update={"patience": GRACE})
            with AggregatorClient(config) as client, contextlib.suppress(RankdadError):
                self._end(client)


def _lost(host: Host, error: RankdadError) -> None:
    """Take note that nothing more goes up: another process may go on, unless the region was refused."""
    if isinstance(error, UnreachableError) and host.aggregator.persistence.keeps:
        host.stop(RankdadError(f"{error}; the same command goes on with the run", code="aggregator-stopped"))
    elif not host.aggregator.ended:
        host.fail(str(error), code=error.code)


@contextlib.contextmanager
def answering(listening: socket.socket, name: str, federation: Federation) -> Iterator[None]:
    """Answer whoever asks while this region waits for the aggregator above: of two that name each other, one ends.

    Args:
        listening: socket that nobody serves yet.
        name: of the region.
        federation: of the run.
    """
    over = Event()
    listening.setblocking(False)

    def answer() -> None:
        while not over.wait(BRIEF):  # a pause first: in most cases there is nothing to wait for
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                connection.settimeout(1.0)
                connection.sendall(_not_yet(connection.recv(4096), name, federation))

    thread = Thread(target=answer, name="answering", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _not_yet(request: bytes, name: str, federation: Federation) -> bytes:
    """Return the answer to a request: to come again, or, to a region that is none of its own, that it is wrong."""
    asks = re.search(rf"\r\n{REGION_HEADER}: *([a-z0-9._-]{{1,63}})\r\n".encode(), request)
    region = federation.nodes.get(asks[1].decode()) if asks else None
    status, code, said = "503 Service Unavailable", "upstream-waits", f"{name} waits for the aggregator above it"
    if asks and (region is None or region.above != name):
        above = "no region of its run" if region is None else f"a member of {region.above}"
        status, code = "409 Conflict", "region-differs"
        said = f"is the aggregator of {name}, but {asks[1].decode()} is {above}"
    body = json.dumps({"error": said, "code": code, "field": ""})
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
