"""What a run's file says was in each round, when a run goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rankdad.common.errors import UserError
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.base import Ready
from rankdad.common.spec.tree import Node
from rankdad.common.staleness import LeftOut, age_of
from rankdad.remote.barrier import Barrier
from rankdad.remote.records import DamageError, Entry, Record
from rankdad.remote.retention import Ending
from rankdad.remote.run_file import RunFile


def replay(
    file: RunFile,
    plan: Plan,
    node: Node,
    barrier: Barrier,
    clock: Callable[[], float],
    reset: Callable[[int, int], None],
    left_out: Callable[[], Sequence[LeftOut]],
    device: str,
) -> Iterator[tuple[Ready, Record]]:
    """Yield each complete round's contributions and its recorded update; the caller then opens the next round.

    What the ledger holds of the round after the last update is left in the barrier.

    Args:
        file: of the run.
        plan: of the run.
        node: the aggregator whose ledger it is.
        barrier: at the round of the last checkpoint.
        clock: the barrier's, in seconds.
        reset: called with a site's place and a round, where the site has lost its state.
        left_out: returns whose contributions may still join a step, once the caller has followed the last update.
        device: of the aggregator's replica.

    Raises:
        DamageError: a record that is needed is not there, or cannot be read.
    """
    file.check_end(barrier.round)
    damage: dict[int, DamageError] = {}  # of contributions to this round, by site
    for record in file.records(barrier.round):
        if record.entry is Entry.RESET:
            reset(record.site, record.round)
        elif record.round != barrier.round:
            raise file.lacks(Entry.UPDATE, barrier.round)
        elif record.entry is Entry.UPDATE:
            for place in _lost(record, plan, node, barrier):
                raise damage.get(place) or file.lacks(Entry.CONTRIBUTION, record.round)
            (ready,) = barrier.close(clock())
            assert isinstance(ready, Ready)
            if _lost_late(record, plan, ready):
                raise file.lacks(Entry.LATE, record.round)
            yield ready, record
            damage = {}
        elif record.entry is Entry.LATE:
            if record.damage is not None:  # the site takes it for sent
                raise record.damage
            message = unpack(record.body, plan, up=True, device=device)
            if age := age_of(left_out(), message.round):
                barrier.latecomers.put(record.site, age, message, record.body)
        elif record.damage is not None:  # the site sends it again, unless the round is complete
            damage[record.site] = record.damage
        else:
            child = node.children[record.site]
            message = unpack(record.body, plan, up=True, region=child in node.regions, device=device)
            barrier.put(child, record.body, message, clock())


def updates_to_the_end(
    file: RunFile, ended: Ending, plan: Plan, first: int, device: str
) -> Iterator[tuple[Message, bytes]]:
    """Yield all that is left of a run that is over: its updates from a round on, decoded and as they were sent.

    Raises:
        UserError: the run has not come to its end, and nobody can go on with it.
        DamageError: an update is not there, or cannot be read.
    """
    if ended.status != "completed" or ended.recorder == "null":
        raise UserError(
            f"{file.path}: the run is over ({ended.status}), and what its sites had sent is deleted: nobody can go on "
            "with it; the model of each step so far is there, by `rankdad export`",
            code="contributions-deleted",
        )
    for record in file.records(first):
        if record.entry is Entry.UPDATE:
            if record.damage is not None:
                raise record.damage
            yield unpack(record.body, plan, up=False, device=device), record.body
            first += 1
    file.check_end(first)


def _lost(update: Record, plan: Plan, node: Node, barrier: Barrier) -> set[int]:
    """Return the places of the sites whose contributions an update was made from, and the ledger has lost."""
    lacking = {place for place, site in enumerate(node.children) if not barrier.holds(site)}
    if update.damage is None:
        return lacking - unpack(update.body, plan, up=False).missing
    if len(lacking) < len(node.children):  # it may have been made without them: its checksum will tell
        return set()
    return lacking


def _lost_late(update: Record, plan: Plan, ready: Ready) -> bool:
    """Tell whether the ledger has lost a late contribution that an update includes."""
    if not plan.staleness or update.damage is not None:  # its checksum will tell
        return False
    return unpack(update.body, plan, up=False).late != tuple((late.age, late.place) for late in ready.late)
