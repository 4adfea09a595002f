"""What carries a region's contributions to the aggregator above, and the updates back, while it serves its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from select import select
from threading import Event, Thread
from urllib.parse import urlsplit

from rankdad.common import __version__
from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError, UserError, visible
from rankdad.common.protocol.plan import Plan
from rankdad.common.spec.federation import Federation
from rankdad.common.spec.tree import TOP
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import AggregatorClient, RefusedError
from rankdad.local.starting import run_id
from rankdad.remote.host import Host
from rankdad.remote.region import Outgoing, Region

REGION_HEADER = "x-rankdad-region"  # of a question for the run: which region asks
BRIEF = 0.5  # seconds
GRACE = 5.0  # seconds in which the last words reach the aggregator above


def above(upstream: str, region: str | None, output: Path, *, allow_plain_http: bool) -> SiteConfig:
    """Return how a region reaches the aggregator above.

    Args:
        upstream: an address, or a file such as a site has, in which the region is the site.
        region: its name; a file has that.
        output: of the region.
        allow_plain_http: whether an address on another machine may be reached without encryption.

    Raises:
        UserError: the file is unreadable, or something is missing or too much.
    """
    if upstream.startswith(("http://", "https://")):
        if region is None:
            raise UserError(
                "--region is missing: whose aggregator this is, one of federation.regions",
                code="region-missing",
                field="--region",
            )
        fields = {"name": region, "aggregator": upstream, "data": str(output), "output": str(output)}
        made = validate(SiteConfig, fields | {"allow_plain_http": allow_plain_http}, file="--upstream")
        return made.checked("--upstream")
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
    return config


def check_region(name: str, federation: Federation) -> None:
    """Check that a run has a region.

    Raises:
        UserError: it has not.
    """
    regions = sorted(set(federation.nodes) - {TOP})
    if name not in regions:
        expected = f"expected one of {', '.join(regions[:20])}" if regions else "whose federation.regions has none"
        raise UserError(
            f"--region: {name} is no region of this run, {expected}", code="region-unknown", field="--region"
        )


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


def ask(config: SiteConfig, plan: Plan, federation: Federation, *, begins: bool = False) -> str:
    """Return the number of the run above, if that is the region's, and the aggregator there is the one above it.

    Args:
        config: how the aggregator above is reached.
        plan: of the run.
        federation: of the run.
        begins: whether the region has nothing of the run: only its first round can be begun so.

    Raises:
        UserError: it is another.
        UnreachableError: nobody answered.
    """
    with AggregatorClient(config, headers={REGION_HEADER: config.name}) as client:
        try:
            offered = client.run()
        except RefusedError as error:
            raise UserError(f"--upstream: {error}", code=error.code, field="--upstream") from None
    for field, own in (("version", __version__), ("plan_sha256", plan.sha256())):
        if (got := offered.get(field)) != own:
            problem = f"{field} is {visible(str(got), 64)}, here {own}"
            raise UserError(
                f"--upstream: {config.aggregator} has another run than this file: its {problem}",
                code="run-differs",
                field="--upstream",
            )
    above = federation.nodes[config.name].above
    if (got := offered.get("aggregator")) != above:
        raise UserError(
            f"--upstream: {config.aggregator} is the aggregator of {visible(str(got), 64)}, but {config.name} is a "
            f"member of {above}",
            code="region-differs",
            field="--upstream",
        )
    if begins and offered.get("round", 0) != 0:
        raise UserError(
            f"--output: is new, but the run of {config.aggregator} is in round {visible(str(offered['round']), 20)}: "
            f"{config.name} can go on from the directory alone that it began with",
            code="run-in-progress",
            field="--output",
        )
    return run_id(offered)


def recorded(config: SiteConfig, plan: Plan, round_: int) -> bytes | None:
    """Return the update of a round as the aggregator above has recorded it; None if it has not.

    Raises:
        UnreachableError: nobody answered.
    """
    with AggregatorClient(config) as client, contextlib.suppress(RefusedError):
        client.expect(plan)
        return client.recorded(round_)
    return None


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
            if not select([listening], [], [], 0)[0]:
                continue
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
        status, code, said = (
            "409 Conflict",
            "region-differs",
            f"is the aggregator of {name}, but {asks[1].decode()} is {above}",
        )
    body = json.dumps({"error": said, "code": code, "field": ""})
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


class Upstream:
    """A thread that brings up what a region makes, one contribution at a time.

    Args:
        config: how the aggregator above is reached.
        region: whose contributions these are.
    """

    def __init__(self, config: SiteConfig, region: Region) -> None:
        self._config, self._region = config, region
        self._queue: SimpleQueue[Outgoing | None] = SimpleQueue()
        self._last: Outgoing | None = None
        self._closed = False
        self._thread: Thread | None = None

    def attach(self, host: Host) -> None:
        """Begin: what the region has to send goes up, and what comes back is handed to its host."""
        if self._region.ended:  # in a process before this one
            return
        host.after = self._look
        call = asyncio.get_running_loop().call_soon_threadsafe

        def answered(body: bytes) -> None:
            call(host.enter, partial(self._region.answer, body))

        def lost(error: RankdadError) -> None:
            call(host.lose_upstream, error)

        self._thread = Thread(target=self._carry, args=(answered, lost), name="upstream", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        """Take what has to go up, once."""
        region = self._region
        if region.outgoing is not None and region.outgoing is not self._last:
            self._last = region.outgoing
            self._queue.put(self._last)
        if region.ended and not self._closed:
            self._closed = True
            self._queue.put(None)

    def _carry(self, answered: Callable[[bytes], object], lost: Callable[[RankdadError], object]) -> None:
        """Send what is in the queue until the run has ended here."""
        try:
            with AggregatorClient(self._config) as client:
                client.expect(self._region.plan)
                while (outgoing := self._queue.get()) is not None:
                    answered(client.exchange(outgoing.body, outgoing.ready.round))
                self._end(client)
        except RankdadError as error:
            with contextlib.suppress(RuntimeError):  # this process has ended meanwhile
                lost(error)

    def _end(self, client: AggregatorClient) -> None:
        """Say above that all is done here, or why the run has failed, if that is not known there."""
        region = self._region
        if not region.barrier.failed:
            client.done()
        elif not region.told:
            client.run()
            client.give_up(region.failure())
            region.told = True

    def close(self) -> None:
        """See that the aggregator above knows how the run has ended here."""
        if self._thread is None or not self._region.ended:
            return
        self._thread.join(GRACE)
        unsaid = self._region.barrier.failed and not self._region.told
        if unsaid or self._thread.is_alive():  # it was refused, or waits for a round's end, which may take long
            config = self._config.model_copy(update={"patience": GRACE})
            with AggregatorClient(config) as client, contextlib.suppress(RankdadError):
                self._end(client)
