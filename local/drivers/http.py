"""A site's HTTP client: one request per round, held by the aggregator until the round is complete."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from http.cookiejar import CookieJar
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from rankdad.common.available_memory import available
from rankdad.common.documents import parse_json, validate
from rankdad.common.errors import CODE, RankdadError, UnreachableError, UserError, visible
from rankdad.common.protocol.retention import Receipt
from rankdad.local.config import Member, SiteConfig
from rankdad.local.drivers.bounded import LOOK, NoProxyError, TooLargeError
from rankdad.local.drivers.connecting import open_transport, said_by_tls
from rankdad.local.drivers.http_library import httpx

if TYPE_CHECKING:
    from rankdad.common.protocol.plan import Plan

MIN_DELAY, MAX_DELAY = 0.1, 10.0  # seconds between two attempts
MAX_FINAL_PATIENCE = 2.0  # seconds, when the work is done
MIN_WAIT = 1.0  # seconds before the next request after "not yet"
PROCESS_HEADER = "x-rankdad-process"  # names the sender: of two processes of a site, one has to end
COMPUTED_HEADER = "x-rankdad-computed"  # of a contribution: seconds of computing in the step so far
MAX_RUN_BYTES = 8 << 20  # bytes of the run's spec
OK, ACCEPTED, NO_CONTENT, NOT_FOUND, PROXY_DENIES, TOO_SLOW, TOO_MANY = 200, 202, 204, 404, 407, 408, 429
PROXY = "the proxy"  # at the beginning of its problems
NOT_THERE, FULL = 501, 507  # statuses for which a retry does not help: unsupported, disk full

_log = logging.getLogger(__name__)


class RefusedError(RankdadError):
    """The aggregator refused a request.

    Args:
        message: the aggregator's sentence.
        status: of the answer.
        code: of the refusal.
        field: of the refusal.
    """

    is_public = True

    def __init__(self, message: str, status: int, *, code: str = "refused", field: str = "") -> None:
        super().__init__(message, code=code, field=field)
        self.status = status


class _NoCookies(CookieJar):
    """A cookie jar that keeps nothing."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        pass


class Client:
    """A persistent connection to an aggregator or service, with retries until the patience ends.

    Args:
        config: of the site or owner: name, patience, token, certificates and proxy.
        transport: for the requests, instead of the one from `config`.
        headers: of every request.
        prompt: timeout in seconds of connecting, and of answers that wait for nothing.
        held: seconds after which a request that waits for other sites is repeated; the server answers earlier.
        limit: largest answer, in bytes.
        look: called repeatedly while waiting; an exception from it ends the wait.
    """

    def __init__(
        self,
        config: Member,
        transport: httpx.BaseTransport | None = None,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        prompt: float = 10.0,
        held: float = 60.0,
        limit: int = MAX_RUN_BYTES,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._look = look
        self._config, self._prompt, self._held, self._limit = config, prompt, held, limit
        self._url, self._patience = config.aggregator.rstrip("/"), config.patience
        self._met = False  # whether the server has answered before
        token, transport = config.token(), transport or open_transport(config, lambda: self._look())
        proof = {} if token is None else {"authorization": f"Bearer {token}"}
        self._client = httpx.Client(
            headers={"accept-encoding": "identity", **headers, **proof},
            cookies=_NoCookies(),
            event_hooks={"response": [self._check_head]},
            transport=transport,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def _make(
        self, verb: str, url: httpx.URL | str, body: bytes | None = None, held: bool = False, **headers: str
    ) -> httpx.Request:
        """Create a request; a held one waits for other sites."""
        timeout = httpx.Timeout(self._prompt, read=self._held if held else self._prompt)
        limits = {"size": self._limit, "held": held}
        return self._client.build_request(verb, url, content=body, headers=headers, timeout=timeout, extensions=limits)

    def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """Send a request until the answer is 200, 202 or 204."""
        delay, silent, held = MIN_DELAY, False, request.extensions["held"]
        since: float | None = None  # start of the silence; waiting for other sites is no silence
        while True:
            wanted = 0.0  # seconds that an answer asks us to wait
            try:
                answer = self._client.send(request, stream=stream)
                status, self._met = answer.status_code, True
                if status in (OK, ACCEPTED, NO_CONTENT):
                    return answer
                if status == PROXY_DENIES:
                    raise httpx.ProxyError(str(status))
                answer.read()
                if (status < 500 and status not in (TOO_SLOW, TOO_MANY)) or status in (NOT_THERE, FULL):
                    raise RefusedError(f"{self._url} {_refusal(answer)}", status, **_kind(answer))
                reason, after = _reason(answer), answer.headers.get("retry-after", "")
                wanted = min(float(after), MAX_DELAY) if re.fullmatch(r"\d{1,4}", after) else 0.0
                problem = f"answered {status}: {visible(reason, 200)}" if reason else f"answered {status}"
            except httpx.ReadTimeout:
                if held and not silent:  # the aggregator may still be working on the round
                    silent = True
                    _log.warning("no answer for %.0f s; sending again", self._held)
                    continue
                problem = f"no answer within {self._held if held else self._prompt:.0f} s"
            except TooLargeError:
                most = request.extensions["size"]
                raise UserError(
                    f"{self._url}: answered with more than {most:,} bytes, more than any answer of a run has",
                    code="answer-too-large",
                ) from None
            except httpx.TransportError as error:
                problem = self._problem(error)
            now = time.monotonic()
            since = now if since is None else since
            left = self._patience - (now - since)
            if left <= 0:
                who, field = ("aggregator", "") if not problem.startswith(PROXY) else ("way through the proxy", "proxy")
                raise UnreachableError(
                    f"{self._url}: no {who} for {self._patience:.0f} s ({problem}): is it running, and is the "
                    "address right?",
                    code="unreachable",
                    field=field,
                )
            pause = min(max(delay, wanted), left)
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
            text = "waits for an answer of %s: %s; trying again in %.1f s, until %s (patience %.0f s)"
            _log.warning(text, self._url, problem, pause, until, self._patience)
            self._pause(pause)  # nobody is there to be asked
            delay = min(delay * 2, MAX_DELAY)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._look()
            time.sleep(min(left, LOOK))

    def _problem(self, error: httpx.TransportError) -> str:
        """Describe a broken connection.

        Raises:
            UserError: a retry would not help.
        """
        cause = error.__cause__ or error
        refusal = said_by_tls(cause, self._config)
        if refusal is not None:
            raise UserError(f"{self._url}: {refusal}", code="refused") from None
        if isinstance(error, httpx.ProxyError):
            if str(error).startswith(str(PROXY_DENIES)):
                raise UserError(
                    "proxy: requires another user and password than the site's file holds",
                    code="proxy-refused",
                    field="proxy",
                ) from None
            return f"{PROXY} answered {visible(str(error), 200)}"
        problem = visible(getattr(cause, "strerror", None) or str(cause) or type(cause).__name__, 200).lower()
        if isinstance(error, NoProxyError):
            return f"{PROXY} {error} cannot be reached: {problem}"
        if isinstance(error, httpx.RemoteProtocolError) and self._url.startswith("http:") and not self._met:
            return f"{problem.rstrip('.')}: does its address begin with https://?"
        return problem

    def _check_head(self, answer: httpx.Response) -> None:
        """Refuse redirects and encodings before httpx handles them."""
        if 300 <= answer.status_code < 400:
            raise RefusedError(f"{self._url} {_refusal(answer)}", answer.status_code)
        encoding = answer.headers.pop("content-encoding", "identity")
        if answer.is_success and encoding.strip().lower() != "identity":
            raise UserError(
                f"{self._url}: answered in the encoding {visible(encoding, 40)}, which was not requested: a proxy in "
                "between must not change answers",
                code="encoding-unasked",
            )


class AggregatorClient(Client):
    """A site's connection to the aggregator of a run.

    Args:
        config: the site's.
        transport: see `Client`.
        prompt: see `Client`.
        held: see `Client`.
        report: seconds between two log lines about waiting for other sites.
        look: see `Client`; not called once this site has finished or failed.
    """

    def __init__(
        self,
        config: SiteConfig,
        transport: httpx.BaseTransport | None = None,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        prompt: float = 10.0,
        held: float = 60.0,
        report: float = 60.0,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        own = {PROCESS_HEADER: secrets.token_hex(8)}
        super().__init__(config, transport, headers=own | dict(headers), prompt=prompt, held=held, look=look)
        self._report, self._knows_run = report, False
        self._rounds = httpx.URL(f"{self._url}/rounds/{config.name}")  # parsed once, because it is slow

    def run(self) -> dict[str, Any]:
        """Request the run: its spec and version. Every later request names this run.

        Raises:
            UnreachableError: the server did not answer within the site's patience.
        """
        try:
            document = parse_json(self._send(self._request("GET", f"{self._url}/run")).content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise UserError(f"{self._url}: the server there is not an aggregator of rankdad", code="not-an-aggregator")
        named = str(document.get("id", ""))
        if re.fullmatch("[0-9a-f]{16}", named):  # the site checks the rest
            self._client.headers["x-rankdad-run"] = named
        self._knows_run = True
        return document

    def expect(self, plan: Plan) -> None:
        """Accept answers as large as this plan's snapshot with best weights, up to the memory."""
        from rankdad.common.protocol.message_sizes import body_limit  # imports torch, which an agent has no use for

        largest = max(self._limit, 2 * body_limit(plan, up=False) + 2 * plan.replica_bytes)
        self._limit = min(largest, available() or largest)

    def give_up(self, body: bytes) -> None:
        """Report that this site cannot continue; give up after a few seconds without an answer."""
        self._patience, self._look = min(self._patience, self._prompt), lambda: None
        with contextlib.suppress(RankdadError):
            self._send(self._request("POST", self._rounds, body))

    def exchange(self, body: bytes, round_: int, computed: float | None = None) -> bytes:
        """Send a contribution, and return its round's update.

        Args:
            body: of the contribution.
            round_: its number.
            computed: seconds of computing for the step so far.

        Raises:
            RefusedError: the aggregator refused it.
            UnreachableError: the server did not answer within the site's patience.
        """
        send = request = self._request("POST", self._rounds, body, held=True, computed=computed)
        since, reported, delay = time.monotonic(), 0.0, MIN_DELAY
        while True:
            asked = time.monotonic()
            answer = self._send(request)
            if answer.status_code == OK:
                _log.debug("round %d: %d bytes sent, %d received", round_, len(body), len(answer.content))
                return answer.content
            if time.monotonic() - asked < MIN_WAIT:
                self._pause(delay)
                delay = min(delay * 2, MAX_DELAY)
            request = self._asking(round_) if answer.status_code == ACCEPTED else send
            waited = time.monotonic() - since
            if waited - reported >= self._report:
                reported = waited
                _log.info("still waiting for the other sites after %.0f s", waited)

    def recorded(self, round_: int) -> bytes | None:
        """Return the update of a round if it is complete.

        Raises:
            RefusedError: the round is in the future, or is no longer kept.
            UnreachableError: the server did not answer within the site's patience.
        """
        return self._content(self._asking(round_))

    def snapshot(self) -> bytes | None:
        """Return the run's newest state, for a site that has lost its own; None if there is none yet."""
        return self._content(self._request("POST", f"{self._url}/snapshots/{self._config.name}", b"", held=True))

    def done(self) -> Receipt | None:
        """Report that this site needs nothing more from the run, so that the aggregator may end.

        Returns:
            The receipt for the site's contributions; None if the aggregator gives none.
        """
        self._patience, self._look = min(self._patience, MAX_FINAL_PATIENCE), lambda: None
        with contextlib.suppress(RankdadError, ValueError):
            answer = self._send(self._request("POST", f"{self._rounds}/done", b""))
            return validate(Receipt, parse_json(answer.content)) if answer.status_code == OK else None
        return None

    def _asking(self, round_: int) -> httpx.Request:
        return self._request("GET", f"{self._rounds}/{round_}", held=True)

    def _request(
        self,
        verb: str,
        url: httpx.URL | str,
        body: bytes | None = None,
        held: bool = False,
        computed: float | None = None,
    ) -> httpx.Request:
        """Create a request that names the run; a held one waits until other sites have contributed."""
        if held and not self._knows_run:
            self.run()
        headers = {} if computed is None else {COMPUTED_HEADER: f"{computed:.6f}"}
        return self._make(verb, url, body, held, **headers)

    def _content(self, request: httpx.Request) -> bytes | None:
        answer = self._send(request)
        return answer.content if answer.status_code == OK else None


def _refusal(answer: httpx.Response) -> str:
    """Explain an unexpected answer."""
    status = answer.status_code
    if status < 300:
        return f"answered {status}, as no aggregator of rankdad does"
    if status < 400:
        to = visible(answer.headers.get("location", "nowhere"), 200)
        return f"answered {status} with a redirect to {to}: name the aggregator's own address"
    return f"refused ({status}): {visible(_reason(answer) or answer.content[:200].decode(errors='replace'))}"


def _reason(answer: httpx.Response, key: str = "error") -> str:
    """Return the aggregator's explanation of an error; "" if another server has answered."""
    reason: object = None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        reason = parse_json(answer.content)[key]
    return reason if isinstance(reason, str) else ""


def _kind(answer: httpx.Response) -> dict[str, str]:
    """Return the code and the field of a refusal."""
    code = _reason(answer, "code")
    return {"code": code if re.fullmatch(CODE, code) else "refused", "field": visible(_reason(answer, "field"), 200)}
