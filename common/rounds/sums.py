"""Sums over the training samples of all sites for preparation, stage by stage."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Annotated

from torch import Tensor

from rankdad.common.errors import ProtocolError, RankdadError
from rankdad.common.preparation.coefficients import OWN, patients_only
from rankdad.common.protocol.arrays import pack_sums, unpack_sums
from rankdad.common.protocol.messages import Body, Control, Kind, Message, Name, packed
from rankdad.common.rounds.base import Collected, Contributor, Cost, Due, Ready, Record, Round
from rankdad.common.rounds.checks import PLACES, Checks

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState

SUMS = packed(
    pack_sums, lambda data, plan, known: unpack_sums(data, plan.folds, plan.stage_size(known.get("stage", "")))
)


class Sums(Control):
    """Sums for a preparation stage: float64 [folds, …], of one site or in total."""

    stage: Name
    values: Annotated[Tensor, *SUMS]


class SumsRound(Round):
    """A stage of preparation."""

    kind, up, down = Kind.SUMS, Sums, Sums

    def due(self, run: RunState) -> Due | None:
        """Return the next stage, if there is one left."""
        return None if run.stage is None else run.next(self.kind, stage=run.stage)

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Sums:
        """Return a stage's sums over the training rows of every fold."""
        data, stage = site.data, due.stage or ""
        try:
            values = site.run.preparing.contributions(
                stage,
                site.run.totals_of,
                data.summed,
                data.whole(),
                data.described(),
                data.fewest,
                tells=data.tells_coefficients,
            )
        except ValueError as error:
            raise RankdadError(
                f"preparation: {error}: a number here, or all sites' mean, is too large",
                code="number-too-large",
                field="preparation",
            ) from None
        return Sums(stage=stage, values=values)

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check that this many samples can have these sums."""
        sums = message.body
        assert isinstance(sums, Sums)
        whole = max(map(sum, checks.samples[site]))  # a set too small for a test is left out of its fold
        for counts, fold in zip(checks.samples[site], sums.values, strict=True):
            problem = checks.preparing.check(sums.stage, fold, counts[PLACES["train"]], whole)
            if problem:
                raise ProtocolError(422, f"d.values: {problem}", code="sums-unusable", field="d.values")

    def pooled(self, here: Collected) -> Sums:
        """Add up the sites' sums; a site's own coefficients are not sent to others."""
        sent = here.ready.bodies(Sums)
        total: Tensor = reduce(add, (one.values for one in sent))
        return Sums(stage=sent[0].stage, values=patients_only(total) if sent[0].stage == OWN else total)

    def combined(self, here: Collected) -> Sums:
        """Add up the region's sites."""
        sent = here.ready.bodies(Sums)
        stage = sent[0].stage
        return Sums(stage=stage, values=here.run.preparing.joined(stage, [one.values for one in sent]))

    def apply(self, run: RunState, update: Message) -> None:
        """Store the total; remaining stages of a solution that has converged are skipped."""
        body = update.body
        assert isinstance(body, Sums)
        run.add_up(body.stage, body.values)

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record Table 1, and the result of an exact solution."""
        record.note_sums(ready, update)
