"""Carries a trainer's messages by HTTP: one request per round, held by the aggregator until the round is complete."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from common.errors import RankdadError, RunFailedError, UnreachableError, UserError, one_line
from common.messages import Ask, Message, failure_message
from common.plan import Plan
from common.protocol import body_limit, pack, pack_failure, unpack
from local.config import SiteConfig
from local.drivers.connecting import open_connection, said_by_tls

R = TypeVar("R")
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0  # seconds between two tries to reach the aggregator
HELD = 60.0  # seconds after which a held request is sent again: the aggregator answers earlier, so the link has died
REPORT = 60.0  # seconds between two lines that say that others are waited for
PROMPT = 10.0  # seconds in which a connection stands, and an answer comes that waits for nobody
PATIENCE_AT_THE_END = 2.0  # seconds: the work is done
SLOWEST = 10_000  # bytes per second of the slowest link on which a body may take its time
TOO_SLOW, TOO_MANY, PROXY_DENIES = 408, 429, 407


class RefusedError(RankdadError):
    """The aggregator refused a request; it says why."""


class HeldError(Exception):
    """A request was sent and is not answered yet."""


@dataclass(frozen=True)
class _Request:
    verb: str
    path: str
    body: bytes | None = None
    held: bool = False  # until other sites have contributed


class AggregatorClient:
    """One persistent connection to the aggregator.

    Args:
        url: of the aggregator.
        site: this site's name.
        patience: seconds for which an aggregator that does not answer is tried again.
        say: told what a person should know, one line at a time.
        config: the site's, for its token, its certificates and its proxy; without it there are none.
    """

    def __init__(
        self, url: str, site: str, patience: float, say: Callable[[str], None], config: SiteConfig | None = None
    ) -> None:
        self._url, self._patience, self._say = url.rstrip("/"), patience, say
        self._config = config
        self._connection, base = open_connection(self._url, config)
        self._run, self._rounds, self._snapshots = f"{base}/run", f"{base}/rounds/{site}", f"{base}/snapshots/{site}"
        token = None if config is None else config.token()
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._knows_run = False
        self._limit = 1 << 20  # bytes of an answer

    @classmethod
    def of(cls, config: SiteConfig, say: Callable[[str], None]) -> AggregatorClient:
        """Return the client of a site."""
        return cls(config.aggregator, config.name, config.patience, say, config)

    def __enter__(self) -> AggregatorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def run(self) -> dict[str, Any]:
        """Ask for the run: its spec, and what to compare. Every later request names this run.

        Raises:
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        try:
            document = json.loads(self._request(_Request("GET", self._run))[1])
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise UserError(f"{self._url}: what answers there is not an aggregator of rankdad")
        named = str(document.get("id", ""))
        if named.isascii() and named.isalnum():  # whatever else it is, the site refuses it by itself
            self._headers["x-rankdad-run"] = named
        self._knows_run = True
        return document

    def expect(self, plan: Plan) -> None:
        """Take answers as large as this plan's, a snapshot with best weights included, and none larger."""
        self._limit = max(self._limit, 2 * body_limit(plan, up=False) + 2 * plan.replica_bytes)

    def give_up(self, body: bytes) -> None:
        """Say that this site cannot go on, unless nobody answers within seconds."""
        self._connection.close()  # a request may be half done
        self._patience = min(self._patience, PROMPT)
        with contextlib.suppress(RankdadError):
            self._request(_Request("POST", self._rounds, body))

    def exchange(self, body: bytes, round_: int) -> bytes:
        """Send a contribution, and return its round's update.

        Raises:
            RefusedError: the aggregator refused it.
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        if not self._knows_run:
            self.run()
        send, ask = _Request("POST", self._rounds, body, held=True), self._asking(round_)
        request, since, said = send, time.monotonic(), 0.0
        while True:
            status, answer = self._request(request)
            if status == 200:
                return answer
            request = ask if status == 202 else send  # the contribution is there, or it is not
            waited = time.monotonic() - since
            if waited - said >= REPORT:
                said = waited
                self._say(f"still waiting for the other sites after {waited:.0f} s")

    def recorded(self, round_: int) -> bytes | None:
        """Return the update of a round if it is complete.

        Raises:
            RefusedError: the round is one of the future, or is no longer kept.
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        if not self._knows_run:
            self.run()
        status, answer = self._request(self._asking(round_))
        return answer if status == 200 else None

    def snapshot(self) -> bytes | None:
        """Return the run's newest state, for a site that has lost its own; None if there is none yet."""
        if not self._knows_run:
            self.run()
        status, answer = self._request(_Request("POST", self._snapshots, b"", held=True))
        return answer if status == 200 else None

    def done(self) -> None:
        """Say that this site has all that it needs of the run: the aggregator need not stay for it."""
        self._patience = min(self._patience, PATIENCE_AT_THE_END)
        with contextlib.suppress(RankdadError):
            self._request(_Request("POST", f"{self._rounds}/done", b""))

    def _asking(self, round_: int) -> _Request:
        return _Request("GET", f"{self._rounds}/{round_}", held=True)

    def _request(self, request: _Request) -> tuple[int, bytes]:
        """Send a request until it is answered with 200, 202 or 204."""
        delay, silent = FIRST_DELAY, False
        since: float | None = None  # when nobody answered first: an answer that waits for other sites is no silence
        while True:
            try:
                status, answer = self._once(request)
                if status in (200, 202, 204):
                    return status, answer
                if status < 500 and status not in (TOO_SLOW, TOO_MANY):
                    raise RefusedError(f"{self._url} refused ({status}): {_reason(answer)}")
                problem = f"answered {status}"
            except HeldError:
                if request.held and not silent:  # one that works on a round for so long is not silent yet
                    silent = True
                    self._say(f"no answer for {HELD:.0f} s; sending again")
                    continue
                problem = f"no answer within {HELD if request.held else PROMPT:.0f} s"
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                refusal = said_by_tls(error, self._config)
                if refusal is not None:
                    raise UserError(f"{self._url}: {refusal}") from None
                problem = (getattr(error, "strerror", None) or one_line(error)).lower()
                if f"tunnel connection failed: {PROXY_DENIES}" in problem:
                    raise UserError("proxy: asks for another user and password than the site's file holds") from None
            now = time.monotonic()
            since = now if since is None else since
            left = self._patience - (now - since)
            if left <= 0:
                raise UnreachableError(
                    f"{self._url}: no aggregator for {self._patience:.0f} s ({problem}): is it running, and is the "
                    "address right? Raise the site's patience to wait longer"
                )
            self._say(f"{self._url}: {problem}; trying again in {min(delay, left):.1f} s, for {left:.0f} s more")
            time.sleep(min(delay, left))  # nobody is there to be asked
            delay = min(delay * 2, LONGEST_DELAY)

    def _once(self, request: _Request) -> tuple[int, bytes]:
        """Send a request on the open connection, or on a new one.

        Raises:
            HeldError: it was sent, but not answered in time.
        """
        connection = self._connection
        if connection.sock is None:
            connection.timeout = PROMPT
            connection.connect()
        connection.sock.settimeout(PROMPT + len(request.body or b"") / SLOWEST)
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # refused before all was sent: the answer says why
            connection.request(request.verb, request.path, request.body, self._headers)
        connection.sock.settimeout(HELD if request.held else PROMPT)
        try:
            response = connection.getresponse()
        except TimeoutError:
            connection.close()
            raise HeldError from None
        if response.length is None and not response.chunked:
            raise http.client.IncompleteRead(b"")  # http.client takes a head that broke off for a whole one
        answer = response.read(self._limit + 1)
        if len(answer) > self._limit:
            connection.close()
            raise UserError(f"{self._url}: answered with more than {self._limit:,} bytes, which nothing in a run has")
        if response.length:
            raise http.client.IncompleteRead(answer, response.length)
        return response.status, answer


def drive(
    training: Generator[Message | Ask, Message | None, R],
    client: AggregatorClient,
    plan: Plan,
    site: str,
    *,
    device: str = "cpu",
    lap: Callable[[str], None] = lambda name: None,
    quietly: tuple[type[RankdadError], ...] = (),
) -> R:
    """Run a trainer to its end.

    Args:
        training: the trainer: sent an update for a message, and for an `Ask` an update or None.
        client: connected to the aggregator.
        plan: of the run.
        site: this site's name.
        device: of the replica.
        lap: told the name of each stretch of work when it ends, for timings.
        quietly: errors of this site that the aggregator is not told of: it comes back.

    Raises:
        RunFailedError: another site, or the aggregator, could not go on.
        RankdadError: this site could not; the aggregator has been told.
    """
    round_ = 0
    client.expect(plan)
    try:
        message = next(training)
        while True:
            round_ = message.round
            answer: bytes | None
            if isinstance(message, Ask):
                answer = client.recorded(round_)
            else:
                body = pack(message, plan, up=True)
                lap("pack")
                answer = client.exchange(body, round_)
            lap("wait")
            update = None if answer is None else unpack(answer, plan, up=False, device=device)
            lap("pack")
            message = training.send(update)
    except StopIteration as stop:
        result: R = stop.value
        return result
    except (RunFailedError, UnreachableError):
        raise
    except quietly:
        raise
    except (Exception, KeyboardInterrupt) as error:
        client.give_up(pack_failure(failure_message(site, round_, error, final=round_ > 0)))
        raise


def _reason(answer: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(answer)["error"])
    return answer[:200].decode(errors="replace")
