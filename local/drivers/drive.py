"""Carries a site's messages to the aggregator, and the answers back, until the run has ended."""

from __future__ import annotations

from time import perf_counter
from typing import Any, TypeVar

from rankdad.common.errors import RankdadError, RunFailedError, UnreachableError
from rankdad.common.files import naming_the_disk
from rankdad.common.protocol.calls import STOPPED
from rankdad.common.protocol.codec import pack_failure
from rankdad.common.protocol.messages import Ask, Kind, Message, failure_message
from rankdad.local.drivers.connection import Connection
from rankdad.local.drivers.http import RefusedError
from rankdad.local.ranks.alone import Alone
from rankdad.local.site import Site

REPEATED = "contribution-repeated"  # code: another contribution of this site is already in
REPLACED = "process-replaced"  # code: another process of this site has taken its place
R = TypeVar("R")


def drive(
    site: Site[R],
    client: Connection,
    name: str,
    *,
    ranks: Alone | None = None,
    quietly: tuple[type[RankdadError], ...] = (),
    comes_back: bool = False,
) -> R:
    """Run a site to its end.

    Args:
        site: before its beginning.
        client: connected to the aggregator.
        name: of the site.
        ranks: of the site, which have the same answers; without any it is alone.
        quietly: errors that are not reported to the aggregator, since the site comes back.
        comes_back: whether the site, started again, goes on: the others then wait until the cause is mended.

    Raises:
        RunFailedError: another site, or the aggregator, failed.
        RankdadError: this site failed; the aggregator has been informed.
    """

    def report(error: BaseException) -> None:
        waited_for = comes_back and isinstance(error, RankdadError) and error.is_recoverable
        final = round_ > 0 and not waited_for
        client.give_up(pack_failure(failure_message(name, round_, error, final=final)))

    round_, sender, ranks = 0, _Sender(client, site), ranks or Alone()
    client.expect(site.plan)
    try:
        with naming_the_disk():
            site.take()
            while (due := site.due) is not None:
                round_ = due.round
                site.take(ranks.share(sender.exchange(due), patiently=is_long(due)))
    except (RunFailedError, UnreachableError):
        raise
    except quietly:
        raise
    except RefusedError as error:
        if error.code not in (REPEATED, REPLACED, STOPPED):  # else the run goes on with another process of the site
            report(error)
        raise
    except (Exception, KeyboardInterrupt) as error:
        report(error)
        raise
    return site.result


def is_long(message: Message | Ask) -> bool:
    """Return whether a message may follow minutes of reading, preparing or evaluating."""
    return isinstance(message, Message) and message.kind is not Kind.STEP


class _Sender:
    """Send a site's messages and return the answers, and measure the site's computing time.

    Args:
        client: connected to the aggregator.
        site: to measure.
    """

    def __init__(self, client: Connection, site: Site[Any]) -> None:
        self._client, self._site = client, site
        self._computed, self._since = 0.0, perf_counter()  # in this step, until the last interruption

    def exchange(self, due: Message | Ask) -> bytes | None:
        """Send a contribution and return its round's update, or request an update."""
        message = self._site.say()
        seconds = self._computed + perf_counter() - self._since
        answer: bytes | None
        if isinstance(message, bytes):
            answer = self._client.exchange(message, due.round, seconds)
        else:
            answer = self._client.recorded(due.round)
        self._site.observer.lap("wait")
        if isinstance(message, bytes) and isinstance(due, Message):
            self._site.observer.sent(due, len(message))
        last = not isinstance(due, Ask) and due.exchange == len(self._site.plan.exchanges) - 1
        over = last or (isinstance(due, Message) and due.kind is not Kind.STEP)
        self._computed, self._since = 0.0 if over else seconds, perf_counter()
        return answer
