"""Carries a trainer's messages by HTTP: one request per round, held by the aggregator until the round is complete."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar

import urllib3

from common.errors import RankdadError, RunFailedError, SpecError, UnreachableError, UserError
from common.plan import Plan
from common.protocol import Message, failure_message, pack, unpack

R = TypeVar("R")
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0  # seconds between two tries to reach the aggregator
HELD = 60.0  # seconds after which a held request is sent again: a link may have died without a word
PROMPT = 10.0  # seconds in which a connection stands, and an answer comes that waits for nobody
SLOWEST = 10_000  # bytes per second of the slowest link on which a body may take its time
CONTENT_TYPE = {"content-type": "application/msgpack"}


class RefusedError(RankdadError):
    """The aggregator refused a request; it says why."""


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
        # urllib3 stays within 1.2 times the cost of bare sockets and http.client; httpx takes 2.2.
        try:
            self._pool = urllib3.connection_from_url(self._url, maxsize=1)
        except urllib3.exceptions.LocationValueError:
            raise SpecError("aggregator", f"{url} is not an address, expected such as http://10.0.0.1:8765") from None
        prefix = urllib3.util.parse_url(self._url).path or ""
        self._run, self._rounds = f"{prefix}/run", f"{prefix}/rounds/{site}"

    def __enter__(self) -> AggregatorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    def run(self) -> dict[str, Any]:
        """Ask for the run: its spec, and what to compare.

        Raises:
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        answer = self._request("GET", self._run, None)
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise UserError(f"{self._url}: what answers there is not an aggregator of rankdad")
        return document

    def exchange(self, body: bytes) -> bytes:
        """Send a contribution, and return its round's update.

        Raises:
            RefusedError: the aggregator refused it.
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        return self._request("POST", self._rounds, body).data

    def _request(self, verb: str, path: str, body: bytes | None) -> urllib3.BaseHTTPResponse:
        """Send a request until it is answered; a body is a contribution, whose answer waits for the other sites."""
        delay, since = FIRST_DELAY, time.monotonic()
        timeout = urllib3.Timeout(connect=PROMPT, read=PROMPT)
        if body is not None:  # urllib3 counts sending as connecting
            timeout = urllib3.Timeout(connect=PROMPT + len(body) / SLOWEST, read=HELD)
        while True:
            try:
                answer = self._pool.urlopen(verb, path, body, CONTENT_TYPE, retries=False, timeout=timeout)
                if answer.status == 200:
                    return answer
                if answer.status < 500:
                    raise RefusedError(f"{self._url} refused ({answer.status}): {_reason(answer)}")
                problem = f"answered {answer.status}"
            except urllib3.exceptions.ReadTimeoutError:
                if body is not None:
                    self._say(f"still waiting for the other sites after {time.monotonic() - since:.0f} s")
                    since, delay = time.monotonic(), FIRST_DELAY
                    continue
                problem = f"no answer within {PROMPT:.0f} s"
            except urllib3.exceptions.HTTPError as error:
                problem = _cause(error)
            left = self._patience - (time.monotonic() - since)
            if left <= 0:
                raise UnreachableError(
                    f"{self._url}: no aggregator for {self._patience:.0f} s ({problem}): is it running, and is the "
                    "address right? Raise the site's patience to wait longer"
                )
            self._say(f"{self._url}: {problem}; trying again in {min(delay, left):.1f} s, for {left:.0f} s more")
            time.sleep(min(delay, left))
            delay = min(delay * 2, LONGEST_DELAY)


def drive(
    training: Generator[Message, Message, R],
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
        with contextlib.suppress(RankdadError):
            client.exchange(pack(failure_message(site, round_, error), plan, up=True))
        raise


def _reason(answer: urllib3.BaseHTTPResponse) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["error"])
    return answer.data[:200].decode(errors="replace")


def _cause(error: BaseException) -> str:
    """Return the operating system's words for what went wrong, where there are any."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror.lower()
        inner = inner.__cause__ or inner.__context__
    return f"{type(error).__name__}: {error}"
