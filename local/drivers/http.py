"""Carries a trainer's messages by HTTP: one request per round, held by the aggregator until the round is complete."""

from __future__ import annotations

import contextlib
import http.client
import re
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from common.documents import parse_json
from common.errors import ProtocolError, RankdadError, RunFailedError, UnreachableError, UserError, one_line, visible
from common.memory import available
from common.messages import Ask, Message, failure_message
from common.plan import Plan
from common.protocol import body_limit, pack, pack_failure, unpack
from local.config import SiteConfig
from local.drivers.bounded import Answer, HeldError, TooLargeError
from local.drivers.connecting import open_connection, said_by_tls

R = TypeVar("R")
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0  # seconds between two tries to reach the aggregator
HELD = 60.0  # seconds after which a held request is sent again: the aggregator answers earlier, so the link has died
REPORT = 60.0  # seconds between two lines that say that others are waited for
PROMPT = 10.0  # seconds in which a connection stands, and an answer comes that waits for nobody
PATIENCE_AT_THE_END = 2.0  # seconds: the work is done
HASTE = 1.0  # seconds: whoever answers "not yet" sooner is not asked again at once
RUN = 8 << 20  # bytes of the run's spec
TOO_SLOW, TOO_MANY, PROXY_DENIES = 408, 429, 407


class RefusedError(RankdadError):
    """The aggregator refused a request; it says why."""


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
        self._limit = RUN  # bytes of an answer

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
            document = parse_json(self._request(_Request("GET", self._run))[1])
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise UserError(f"{self._url}: what answers there is not an aggregator of rankdad")
        named = str(document.get("id", ""))
        if re.fullmatch("[0-9a-f]{16}", named):  # whatever else it is, the site refuses it by itself
            self._headers["x-rankdad-run"] = named
        self._knows_run = True
        return document

    def expect(self, plan: Plan) -> None:
        """Take answers as large as this plan's, a snapshot with best weights included, but none beyond the memory."""
        largest = max(self._limit, 2 * body_limit(plan, up=False) + 2 * plan.replica_bytes)
        self._limit = min(largest, available() or largest)

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
        request, since, said, delay = send, time.monotonic(), 0.0, FIRST_DELAY
        while True:
            asked = time.monotonic()
            status, answer = self._request(request)
            if status == 200:
                return answer
            if time.monotonic() - asked < HASTE:
                time.sleep(delay)
                delay = min(delay * 2, LONGEST_DELAY)
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
                answer = self._connection.ask(
                    request.verb,
                    request.path,
                    request.body,
                    self._headers,
                    prompt=PROMPT,
                    wait=HELD if request.held else PROMPT,
                    limit=self._limit,
                )
                if answer.status in (200, 202, 204):
                    self._check_encoding(answer)
                    return answer.status, answer.body
                if answer.status < 500 and answer.status not in (TOO_SLOW, TOO_MANY):
                    raise RefusedError(f"{self._url} {_refusal(answer)}")
                problem = f"answered {answer.status}"
            except HeldError:
                if request.held and not silent:  # one that works on a round for so long is not silent yet
                    silent = True
                    self._say(f"no answer for {HELD:.0f} s; sending again")
                    continue
                problem = f"no answer within {HELD if request.held else PROMPT:.0f} s"
            except TooLargeError:
                raise UserError(
                    f"{self._url}: answered with more than {self._limit:,} bytes, which nothing in a run has"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                refusal = said_by_tls(error, self._config)
                if refusal is not None:
                    raise UserError(f"{self._url}: {refusal}") from None
                problem = visible(getattr(error, "strerror", None) or one_line(error), 200).lower()
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

    def _check_encoding(self, answer: Answer) -> None:
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise UserError(
                f"{self._url}: answered in the encoding {visible(encoding, 40)}, which was not asked for: what stands "
                "between must leave answers as they are"
            )


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
            update = None if answer is None else _update(answer, plan, round_, device)
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


def _update(answer: bytes, plan: Plan, round_: int, device: str) -> Message:
    try:
        return unpack(answer, plan, up=False, device=device)
    except ProtocolError as error:
        raise RankdadError(f"the aggregator's update of round {round_} cannot be used: {visible(str(error))}") from None


def _refusal(answer: Answer) -> str:
    """Say what an answer means that is none of those that were asked for."""
    if answer.status < 300:
        return f"answered {answer.status}, as no aggregator of rankdad does"
    if answer.status < 400:
        to = visible(answer.headers.get("location", "nowhere"), 200)
        return f"answered {answer.status} and points to {to}, where nobody follows: name the aggregator's own address"
    reason: object = None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        reason = parse_json(answer.body)["error"]
    words = reason if isinstance(reason, str) else answer.body[:200].decode(errors="replace")
    return f"refused ({answer.status}): {visible(words)}"
