"""Where the update of a round comes from. The aggregator above all makes it here; a region's has it from above."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from rankdad.common.errors import RankdadError, RunFailedError
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.lowrank.wire import is_lossless
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Message
from rankdad.common.rounds.base import Collected
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step
from rankdad.remote.records import Record
from rankdad.remote.results.progress import AGGREGATOR


@dataclass(frozen=True)
class Update:
    """A round's answer.

    Args:
        message: decoded as every site decodes it.
        packed: the bytes that every site receives.
        residuals: what the aggregator keeps back once the update is applied.
    """

    message: Message
    packed: bytes
    residuals: Residuals


class Source(Protocol):
    """What an aggregator has its updates from."""

    def make(self, here: Collected) -> Update | None:
        """Return the update of a round whose contributions are in; None where it comes later.

        Raises:
            RunFailedError: the run cannot go on.
        """

    def again(self, here: Collected, record: Record) -> Update:
        """Return the update of a round that is complete already, and was recorded.

        Raises:
            RunFailedError: as `make`.
            DamageError: the record cannot be read, and nobody else has the update.
        """


class Reduction:
    """Makes every update of the contributions: the aggregator above all.

    Source: arXiv 2102.09631, Algorithm 1 (the aggregator's part).
    """

    def make(self, here: Collected) -> Update:
        """Return the update of a round."""
        plan, ready, replica = here.plan, here.ready, here.run.replica
        with refusing_the_run():
            body, state = ROUNDS[ready.kind].aggregate(here)
            late = tuple((late.age, late.place) for late in ready.late)
            message = Message(ready.kind, ready.round, body, ready.exchange, ready.missing, late)
            packed = pack(message, plan, up=False)
        if isinstance(body, Step) and not is_lossless(plan.wire, next(replica.model.parameters()).dtype):
            # What the sites apply, and so this replica.
            message = unpack(packed, plan, up=False, device=replica.device)
        return Update(message, packed, state.residuals)

    def again(self, here: Collected, record: Record) -> Update:
        """Return the update of a round, as it comes out here."""
        return self.make(here)


@contextlib.contextmanager
def refusing_the_run() -> Iterator[None]:
    """Let what is wrong with a round's contributions end the run.

    Raises:
        RunFailedError: it is.
    """
    try:
        yield
    except RunFailedError:
        raise
    except RankdadError as error:
        raise RunFailedError(AGGREGATOR, str(error), code=error.code, field=error.field) from None
