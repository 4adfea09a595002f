"""Carries a trainer's messages by HTTP: one request per round, held by the aggregator until the round is complete."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from common.errors import RankdadError, RunFailedError, SpecError, UnreachableError, UserError, one_line
from common.messages import Ask, Message, failure_message
from common.plan import Plan
from common.protocol import pack, unpack

R = TypeVar("R")
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0  # seconds between two tries to reach the aggregator
HELD = 60.0  # seconds after which a held request is sent again: a link may have died without a word
PROMPT = 10.0  # seconds in which a connection stands, and an answer comes that waits for nobody
SLOWEST = 10_000  # bytes per second of the slowest link on which a body may take its time
CONTENT_TYPE = {"content-type": "application/msgpack"}


class RefusedError(RankdadError):
    """The aggregator refused a request; it says why."""


class HeldError(Exception):
    """A request was sent and is not answered yet."""


class AggregatorClient:
    """One persistent connection to the aggregator.

    Args:
        url: of the aggregator.
        site: this site's name.
        patience: seconds for which an aggregator that does not answer is tried again.
        say: told what a person should know, one line at a time.
    """

    def __init__(self, url: str, site: str, patience: float, say: Callable[[str], None]) -> None:
        self._url, self._patience, self._say = url.rstrip("/"), patience, say
        try:
            # Beside the barest step of 200 KB httpx takes 2.2 times as long by itself, urllib3 1.2 times.
            parts = urlsplit(self._url)
            kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(parts.hostname or "", parts.port)
        except (ValueError, http.client.InvalidURL):
            raise SpecError("aggregator", f"{url} is not an address, expected such as http://10.0.0.1:8765") from None
        self._run, self._rounds = f"{parts.path}/run", f"{parts.path}/rounds/{site}"

    def __enter__(self) -> AggregatorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def run(self) -> dict[str, Any]:
        """Ask for the run: its spec, and what to compare.

        Raises:
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        try:
            document = json.loads(self._request("GET", self._run, None))
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise UserError(f"{self._url}: what answers there is not an aggregator of rankdad")
        return document

    def give_up(self, body: bytes) -> None:
        """Say that this site cannot go on, unless nobody answers within seconds."""
        self._connection.close()  # a request may be half done
        self._patience = min(self._patience, PROMPT)
        with contextlib.suppress(RankdadError):
            self._request("POST", self._rounds, body)

    def exchange(self, body: bytes) -> bytes:
        """Send a contribution, and return its round's update.

        Raises:
            RefusedError: the aggregator refused it.
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        return self._request("POST", self._rounds, body)

    def recorded(self, round_: int) -> bytes | None:
        return None

    def snapshot(self) -> bytes | None:
        return None

    def _request(self, verb: str, path: str, body: bytes | None) -> bytes:
        """Send a request until it is answered; a body is a contribution, whose answer waits for the other sites."""
        delay, since = FIRST_DELAY, time.monotonic()
        while True:
            try:
                status, answer = self._once(verb, path, body)
                if status == 200:
                    return answer
                if status < 500:
                    raise RefusedError(f"{self._url} refused ({status}): {_reason(answer)}")
                problem = f"answered {status}"
            except HeldError:
                if body is not None:
                    self._say(f"still waiting for the other sites after {time.monotonic() - since:.0f} s")
                    since, delay = time.monotonic(), FIRST_DELAY
                    continue
                problem = f"no answer within {PROMPT:.0f} s"
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                problem = (getattr(error, "strerror", None) or one_line(error)).lower()
            left = self._patience - (time.monotonic() - since)
            if left <= 0:
                raise UnreachableError(
                    f"{self._url}: no aggregator for {self._patience:.0f} s ({problem}): is it running, and is the "
                    "address right? Raise the site's patience to wait longer"
                )
            self._say(f"{self._url}: {problem}; trying again in {min(delay, left):.1f} s, for {left:.0f} s more")
            time.sleep(min(delay, left))  # nobody is there to be asked
            delay = min(delay * 2, LONGEST_DELAY)

    def _once(self, verb: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Send a request on the open connection, or on a new one.

        Raises:
            HeldError: it was sent, but not answered in time.
        """
        connection = self._connection
        if connection.sock is None:
            connection.timeout = PROMPT
            connection.connect()
        connection.sock.settimeout(PROMPT + len(body or b"") / SLOWEST)
        connection.request(verb, path, body, CONTENT_TYPE)
        connection.sock.settimeout(PROMPT if body is None else HELD)
        try:
            response = connection.getresponse()
        except TimeoutError:
            connection.close()
            raise HeldError from None
        if response.length is None and not response.chunked:
            raise http.client.IncompleteRead(b"")  # http.client takes a head that broke off for a whole one
        return response.status, response.read()


def drive(
    training: Generator[Message | Ask, Message | None, R],
    client: AggregatorClient,
    plan: Plan,
    site: str,
    *,
    device: str = "cpu",
    lap: Callable[[str], None] = lambda name: None,
) -> R:
    """Run a trainer to its end.

    Args:
        training: the trainer.
        client: connected to the aggregator.
        plan: of the run.
        site: this site's name.
        device: of the replica.
        lap: told the name of each stretch of work when it ends, for timings.

    Raises:
        RunFailedError: another site, or the aggregator, could not go on.
        RankdadError: this site could not; the aggregator has been told.
    """
    round_ = 0
    try:
        message = next(training)
        while True:
            round_ = message.round
            if isinstance(message, Ask):
                known = client.recorded(round_)
                message = training.send(None if known is None else unpack(known, plan, up=False, device=device))
                continue
            body = pack(message, plan, up=True)
            lap("pack")
            answer = client.exchange(body)
            lap("wait")
            update = unpack(answer, plan, up=False, device=device)
            lap("pack")
            message = training.send(update)
    except StopIteration as stop:
        result: R = stop.value
        return result
    except (RunFailedError, UnreachableError):
        raise
    except (Exception, KeyboardInterrupt) as error:
        client.give_up(pack(failure_message(site, round_, error), plan, up=True))
        raise


def _reason(answer: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(answer)["error"])
    return answer[:200].decode(errors="replace")
