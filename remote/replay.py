"""Replay of a run's file on resuming."""

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
    """Yield each complete round's contributions and recorded update; the caller then opens the next round.

    Contributions after the last update remain in the barrier.

    Args:
        file: the run's.
        plan: the run's.
        node: the ledger's aggregator.
        barrier: at the round of the last checkpoint.
        clock: the barrier's, in seconds.
        reset: called with a site's place and round for each reset.
        left_out: returns the contributions that may still join a step, after the last update.
        device: of the aggregator's replica.

    Raises:
        DamageError: a required record is missing or unreadable.
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
            if record.damage is not None:  # the site will not send it again
                raise record.damage
            message = unpack(record.body, plan, up=True, device=device)
            if age := age_of(left_out(), message.round):
                barrier.stale.put(record.site, age, message, record.body)
        elif record.damage is not None:  # the site sends it again, unless the round is complete
            damage[record.site] = record.damage
        else:
            child = node.children[record.site]
            message = unpack(record.body, plan, up=True, region=child in node.regions, device=device)
            barrier.put(child, record.body, message, clock())


def updates_to_the_end(
    file: RunFile, ended: Ending, plan: Plan, first: int, device: str
) -> Iterator[tuple[Message, bytes]]:
    """Yield the remaining updates of an ended run from a round on, decoded and packed.

    Raises:
        UserError: the run did not complete and cannot be resumed.
        DamageError: an update is missing or unreadable.
    """
    if ended.status != "completed" or ended.recorder == "null":
        raise UserError(
            f"{file.path}: the run has ended ({ended.status}), and its contributions are deleted: it cannot be "
            "resumed; `rankdad export` gives the model after each step so far",
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
    """Return the places of sites whose contributions an update includes and the ledger lacks."""
    lacking = {place for place, site in enumerate(node.children) if not barrier.holds(site)}
    if update.damage is None:
        return lacking - unpack(update.body, plan, up=False).missing
    if len(lacking) < len(node.children):  # it may exclude them: its digest decides
        return set()
    return lacking


def _lost_late(update: Record, plan: Plan, ready: Ready) -> bool:
    """Return whether the ledger lacks a late contribution that an update includes."""
    if not plan.staleness or update.damage is not None:  # its digest decides
        return False
    return unpack(update.body, plan, up=False).late != tuple((late.age, late.place) for late in ready.late)
