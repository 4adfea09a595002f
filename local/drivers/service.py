"""A client for services, used by agents and owners."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel

from rankdad.common import __version__
from rankdad.common.documents import parse_json, validate
from rankdad.common.errors import UserError, visible
from rankdad.common.protocol.retention import Receipt
from rankdad.common.protocol.service import (
    MAX_RUN_BYTES,
    Asked,
    Described,
    Listing,
    Offer,
    Offers,
    Poll,
    Question,
    Reply,
    Stance,
    Submission,
)
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.local.config import Member
from rankdad.local.drivers.bounded import TooLargeError
from rankdad.local.drivers.http import Client
from rankdad.local.drivers.http_library import httpx

MAX_LISTING = 4 * MAX_RUN_BYTES
MAX_ACKNOWLEDGED = 1 << 16  # bytes of an answer without content
MAX_RESULTS = 1 << 40  # bytes of an archive
M = TypeVar("M", bound=BaseModel)


class ServiceClient(Client):
    """A connection to a service.

    Args:
        config: of the site or owner.
        patience: seconds to retry a service that does not answer; overrides `config`.

    Raises:
        RefusedError: the service refuses a request.
        UnreachableError: the service did not answer within the patience.
    """

    def __init__(self, config: Member, patience: float | None = None) -> None:
        given = config if patience is None else config.model_copy(update={"patience": patience})
        super().__init__(given, limit=MAX_LISTING)
        self._agent = f"{self._url}/agents/{config.name}"

    def offers(self, known: str) -> Offers:
        """Return the runs and questions for this site, once they differ from the known ones or after a while."""
        body = Poll.model_construct(**OUR_VERSION, known=known)
        return self._ask(Offers, "POST", self._agent, body, held=True)

    def offer(self, run: str) -> Offer:
        """Return a run with its spec."""
        return self._ask(Offer, "GET", f"{self._agent}/runs/{run}")

    def receipt(self, run: str) -> Receipt:
        """Return the receipt for this site's contributions to an ended run."""
        return self._ask(Receipt, "GET", f"{self._agent}/runs/{run}/receipt")

    def reply(self, run: str, reply: Reply) -> None:
        """Send this site's answer to an offered run."""
        self._tell(f"{self._agent}/runs/{run}", reply)

    def question(self, id_: str) -> Question:
        """Return a question about a draft."""
        return self._ask(Question, "GET", f"{self._agent}/asks/{id_}")

    def answer(self, id_: str, stance: Stance) -> None:
        """Answer whether this site would take part in a draft."""
        self._tell(f"{self._agent}/asks/{id_}", stance)

    def ask(self, id_: str, spec: dict[str, Any]) -> Asked:
        """Ask the sites of a draft whether they would take part; the number makes repeated requests one question."""
        body = Submission.model_construct(id=id_, **OUR_VERSION, spec=spec)
        return self._ask(Asked, "POST", f"{self._url}/asks", body)

    def asked(self, id_: str) -> Asked:
        """Return the sites' answers so far."""
        return self._ask(Asked, "GET", f"{self._url}/asks/{id_}")

    def submit(self, id_: str, spec: dict[str, Any]) -> Described:
        """Submit a run; the number makes repeated requests one run."""
        body = Submission.model_construct(id=id_, **OUR_VERSION, spec=spec)
        return self._ask(Described, "POST", f"{self._url}/runs", body)

    def runs(self) -> Listing:
        """Return the runs, newest first."""
        return self._ask(Listing, "GET", f"{self._url}/runs")

    def run(self, run: str) -> Described:
        """Return the description of a run."""
        return self._ask(Described, "GET", self._of(run))

    def cancel(self, run: str) -> Described:
        """Cancel a run."""
        return self._ask(Described, "POST", f"{self._of(run)}/cancel")

    def log(self, run: str, after: int) -> bytes:
        """Return a run's log from a byte offset; empty at its end."""
        return self._send(self._make("GET", f"{self._of(run)}/log?after={after}")).content

    @contextmanager
    def results(self, run: str) -> Iterator[Iterator[bytes]]:
        """Yield the pieces of the archive of a run's results."""
        request = self._make("GET", f"{self._of(run)}/results")
        request.extensions["size"] = MAX_RESULTS
        answer = self._send(request, stream=True)
        try:
            yield answer.iter_bytes()
        except (httpx.TransportError, TooLargeError) as error:
            broke = visible(str(error) or "not an archive", 200)
            raise UserError(
                f"{self._url}: the download was interrupted ({broke}): fetch the results again",
                code="results-incomplete",
            ) from None
        finally:
            answer.close()

    def _tell(self, url: str, body: BaseModel) -> None:
        request = self._make("POST", url, body.model_dump_json().encode())
        request.extensions["size"] = MAX_ACKNOWLEDGED
        self._send(request)

    def _of(self, run: str) -> httpx.URL:
        return httpx.URL(f"{self._url}/runs/").copy_with(path=f"{httpx.URL(self._url).path.rstrip('/')}/runs/{run}")

    def _ask(
        self, model: type[M], verb: str, url: httpx.URL | str, body: BaseModel | None = None, *, held: bool = False
    ) -> M:
        content = None if body is None else body.model_dump_json().encode()
        answer = self._send(self._make(verb, url, content, held))
        try:
            return validate(model, parse_json(answer.content))
        except (ValueError, UserError) as error:
            text = visible(str(error), 200)
            raise UserError(
                f"{self._url}: the server there is no service of rankdad {__version__}: {text}", code="not-a-service"
            ) from None
