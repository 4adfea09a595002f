"""Carries a trainer's messages by HTTP: one request per round, held by the aggregator until the round is complete."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar

import httpx

from common.errors import (
    REASON_CHARACTERS,
    RankdadError,
    RunFailedError,
    UnreachableError,
    UserError,
)
from common.plan import Plan
from common.protocol import Failure, Kind, Message, pack, unpack

R = TypeVar("R")
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0  # seconds between two tries to reach the aggregator
HELD = 60.0  # seconds after which a held request is sent again: a link may have died without a word
CONTENT_TYPE = {"content-type": "application/msgpack"}


class RefusedError(UserError):
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
        self._rounds = f"{self._url}/rounds/{site}"
        limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
        self._client = httpx.Client(timeout=httpx.Timeout(HELD, connect=10.0), limits=limits)

    def __enter__(self) -> AggregatorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def run(self) -> dict[str, Any]:
        """Ask for the run: its spec, and what to compare.

        Raises:
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        document: dict[str, Any] = self._request("GET", f"{self._url}/run", None).json()
        return document

    def exchange(self, body: bytes) -> bytes:
        """Send a contribution, and return its round's update.

        Raises:
            RefusedError: the aggregator refused it.
            UnreachableError: nobody answered for as long as the site's patience lasts.
        """
        return self._request("POST", self._rounds, body).content

    def _request(self, verb: str, url: str, body: bytes | None) -> httpx.Response:
        delay, since = FIRST_DELAY, time.monotonic()
        while True:
            try:
                answer = self._client.request(verb, url, content=body, headers=CONTENT_TYPE)
                if answer.status_code == 200:
                    return answer
                if answer.status_code < 500:
                    raise RefusedError(f"{self._url} refused ({answer.status_code}): {_reason(answer)}")
                problem = f"answered {answer.status_code}"
            except httpx.ReadTimeout:
                self._say(f"still waiting for the other sites after {time.monotonic() - since:.0f} s")
                since, delay = time.monotonic(), FIRST_DELAY
                continue
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            left = self._patience - (time.monotonic() - since)
            if left <= 0:
                raise UnreachableError(
                    f"{self._url}: no aggregator for {self._patience:.0f} s ({problem}): is it running, and is the "
                    "address right? Raise the site's patience to wait longer"
                )
            self._say(f"{self._url}: {problem}; trying again in {delay:.1f} s, for {left:.0f} s more")
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
    except (RunFailedError, RefusedError, UnreachableError):
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, RankdadError) else f"{type(error).__name__}: {error}"
        failure = Failure(site=site, reason=reason[:REASON_CHARACTERS])
        with contextlib.suppress(RankdadError):
            client.exchange(pack(Message(Kind.FAILURE, round_, failure), plan, up=True))
        raise


def _reason(answer: httpx.Response) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["error"])
    return answer.text[:200]
