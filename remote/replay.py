"""What a ledger says was in each round, when a run goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.plan import Plan
from rankdad.remote.ledger import Ledger
from rankdad.remote.records import DamageError, Entry, Record
from rankdad.remote.rounds import Barrier, Ready


def replay(
    ledger: Ledger, plan: Plan, barrier: Barrier, clock: Callable[[], float], reset: Callable[[int, int], None]
) -> Iterator[tuple[Ready, Record]]:
    """Yield each complete round's contributions and its recorded update; the caller then opens the next round.

    What the ledger holds of the round after the last update is left in the barrier.

    Args:
        ledger: of the run.
        plan: of the run.
        barrier: at the round of the last checkpoint.
        clock: the barrier's, in seconds.
        reset: called with a site's place and a round, where the site has lost its state.

    Raises:
        DamageError: a record that is needed is not there, or cannot be read.
    """
    ledger.check_end(barrier.round)
    damage: dict[int, DamageError] = {}  # of contributions to this round, by site
    for record in ledger.records(barrier.round):
        if record.entry is Entry.RESET:
            reset(record.site, record.round)
        elif record.round != barrier.round:
            raise ledger.lacks(Entry.UPDATE, barrier.round)
        elif record.entry is Entry.UPDATE:
            for place in _lost(record, plan, barrier):
                raise damage.get(place) or ledger.lacks(Entry.CONTRIBUTION, record.round)
            (ready,) = barrier.close(clock())
            assert isinstance(ready, Ready)
            yield ready, record
            damage = {}
        elif record.damage is not None:  # the site sends it again, unless the round is complete
            damage[record.site] = record.damage
        else:
            barrier.put(plan.sites[record.site], record.body, unpack(record.body, plan, up=True), clock())


def _lost(update: Record, plan: Plan, barrier: Barrier) -> set[int]:
    """Return the places of the sites whose contributions an update was made from, and the ledger has lost."""
    lacking = {place for place, site in enumerate(plan.sites) if not barrier.holds(site)}
    if update.damage is None:
        return lacking - unpack(update.body, plan, up=False).missing
    if len(lacking) < len(plan.sites):  # it may have been made without them: its checksum will tell
        return set()
    return lacking
