"""Sources of updates: the top aggregator computes them, a region receives them from above."""

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
    """A round's update.

    Args:
        message: as every site decodes it.
        packed: the bytes for every site.
        residuals: the aggregator's residuals after the update.
    """

    message: Message
    packed: bytes
    residuals: Residuals


class Source(Protocol):
    """Where an aggregator's updates come from."""

    def make(self, here: Collected) -> Update | None:
        """Return the update of a complete round; None if it arrives later.

        Raises:
            RunFailedError: the contributions cannot be aggregated.
        """

    def replay(self, here: Collected, record: Record) -> Update:
        """Return the update of a recorded round.

        Raises:
            RunFailedError: see `make`.
            DamageError: the record is unreadable, and there is no other copy.
        """


class Reduction:
    """Computes updates from contributions, at the top aggregator.

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
            # The replica applies the same values as the sites.
            message = unpack(packed, plan, up=False, device=replica.device)
        return Update(message, packed, state.residuals)

    def replay(self, here: Collected, record: Record) -> Update:
        """Return the recomputed update of a round."""
        return self.make(here)


@contextlib.contextmanager
def refusing_the_run() -> Iterator[None]:
    """Convert errors in a round's contributions into the failure of the run.

    Raises:
        RunFailedError: for a `RankdadError`.
    """
    try:
        yield
    except RunFailedError:
        raise
    except RankdadError as error:
        raise RunFailedError(AGGREGATOR, str(error), code=error.code, field=error.field) from None
