"""Runs a trainer to its end: sends its messages to the aggregator, and the updates back to it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from rankdad.common.errors import ProtocolError, RankdadError, RunFailedError, UnreachableError
from rankdad.common.protocol.codec import pack_failure, unpack
from rankdad.common.protocol.messages import Ask, Kind, Message, failure_message
from rankdad.common.protocol.plan import Plan
from rankdad.local.drivers.http import AggregatorClient
from rankdad.local.drivers.sending import Sender
from rankdad.local.ranks.alone import Alone

R = TypeVar("R")


def drive(
    training: Generator[Message | Ask, Message | None, R],
    client: AggregatorClient,
    plan: Plan,
    site: str,
    *,
    device: str = "cpu",
    lap: Callable[[str], None] = lambda name: None,
    ranks: Alone | None = None,
    quietly: tuple[type[RankdadError], ...] = (),
    hear: Callable[[int, bytes], None] = lambda round_, answer: None,
) -> R:
    """Run a trainer to its end.

    Args:
        training: the trainer: sent an update for a message, and for an `Ask` an update or None.
        client: connected to the aggregator.
        plan: of the run.
        site: this site's name.
        device: of the replica.
        lap: told the name of each stretch of work when it ends, for timings.
        ranks: of the site, which have the same answers; without any it is alone.
        quietly: errors that are not reported to the aggregator, since the site comes back.
        hear: told the number of every round that is answered by its update, and the answer.

    Raises:
        RunFailedError: another site, or the aggregator, could not go on.
        RankdadError: this site could not; the aggregator has been told.
    """
    round_, sender, site_ranks = 0, Sender(client, plan, lap), ranks or Alone()
    client.expect(plan)

    def exchange(message: Message | Ask) -> bytes | None:
        nonlocal round_
        round_ = message.round
        return site_ranks.share(sender.exchange(message), patiently=is_long(message))

    try:
        return carry(training, exchange, plan, device=device, lap=lap, hear=hear)
    except (RunFailedError, UnreachableError):
        raise
    except quietly:
        raise
    except (Exception, KeyboardInterrupt) as error:
        client.give_up(pack_failure(failure_message(site, round_, error, final=round_ > 0)))
        raise


def carry(
    training: Generator[Message | Ask, Message | None, R],
    exchange: Callable[[Message | Ask], bytes | None],
    plan: Plan,
    *,
    device: str = "cpu",
    lap: Callable[[str], None] = lambda name: None,
    hear: Callable[[int, bytes], None] = lambda round_, answer: None,
) -> R:
    """Run a trainer to its end, whatever carries its messages.

    Args:
        training: the trainer.
        exchange: returns the answer to a message.
        plan: of the run.
        device: of the replica.
        lap: told the name of each stretch of work when it ends.
        hear: told every round that is answered by its update; see `drive`.

    Raises:
        RankdadError: the trainer could not go on, or what carries its messages.
    """
    try:
        message = next(training)
        while True:
            answer = exchange(message)
            update = None if answer is None else _update(answer, plan, message.round, device)
            if answer is not None and update is not None and update.kind is not Kind.FAILURE:
                hear(message.round, answer)
            lap("pack")
            message = training.send(update)
    except StopIteration as stop:
        result: R = stop.value
        return result


def is_long(message: Message | Ask) -> bool:
    """Tell whether minutes of work may be behind a message: those of reading, preparing or evaluating."""
    return isinstance(message, Message) and message.kind is not Kind.STEP


def _update(answer: bytes, plan: Plan, round_: int, device: str) -> Message:
    try:
        return unpack(answer, plan, up=False, device=device)
    except ProtocolError as error:
        raise ProtocolError(
            502,
            f"the aggregator's update of round {round_} cannot be used: {error}",
            code="update-unusable",
        ) from None
