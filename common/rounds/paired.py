"""The paired comparison after a test: intervals of the differences between the tested models.

The answer to the test has all sites' histograms: see `common.rounds.scores`. Sites then send, for each model besides
the trained one, sums of squared differences over their test samples. The answer only confirms it. The round exists if
the run has reference models; a guess is then compared, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from rankdad.common.errors import ProtocolError
from rankdad.common.metrics.auc import BINS
from rankdad.common.metrics.paired import APART, WITHIN, Rows, coarse, measures, positives, squares
from rankdad.common.metrics.paired_sums import contradiction
from rankdad.common.metrics.sums import Tally
from rankdad.common.protocol.arrays import pack_sums, unpack_sums
from rankdad.common.protocol.messages import Body, Control, Count, Kind, Message, packed
from rankdad.common.rounds.base import Collected, Contributor, Cost, Due, Ready, Record, Round
from rankdad.common.rounds.checks import Checks
from rankdad.common.rounds.scores import least, rivals, within_site
from rankdad.common.spec import RunSpec

if TYPE_CHECKING:
    from rankdad.common.protocol.plan import Plan
    from rankdad.common.run.state import RunState

SQUARES = packed(pack_sums, lambda data, plan, _: unpack_squares(plan, data))


class Squares(Control):
    """A site's sums for comparing models: see `rankdad.common.metrics.paired`."""

    fold: Count
    samples: Count
    values: Annotated[Tensor, *SQUARES]


class Compared(Control):
    """The confirmation of a comparison."""

    fold: Count


class PairedRound(Round):
    """The round after a test."""

    kind, up, down = Kind.PAIRED, Squares, Compared

    def due(self, run: RunState) -> Due | None:
        """Return this round if the test's models are compared."""
        return run.next(self.kind) if run.pairs else None

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Squares:
        """Return the sums over the test samples for comparing the tested models."""
        models, labels, groups = site.compared()
        assert site.run.test is not None
        values = contribution(site.spec, models, labels, site.run.test.scores, groups)
        return Squares(fold=due.fold, samples=len(labels), values=values)

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check that rows with the child's test can have these sums."""
        body = message.body
        assert isinstance(body, Squares)
        checks.count("d.samples", body.samples, checks.samples_of(site, "test"))
        tests = checks.tests.get(site)
        problem = tests and problem_of(checks.spec, body.values, tests)
        if problem:
            raise ProtocolError(422, f"d.values: {problem}", code="sums-unusable", field="d.values")

    def pooled(self, here: Collected) -> Compared:
        """Return the confirmation."""
        return Compared(fold=here.ready.bodies(Squares)[0].fold)

    def combined(self, here: Collected) -> Squares:
        """Return the sums of the region's samples."""
        sent = here.ready.bodies(Squares)
        values, samples = joined(here.spec, [one.values for one in sent]), sum(one.samples for one in sent)
        return Squares(fold=sent[0].fold, samples=samples, values=values)

    def apply(self, run: RunState, update: Message) -> None:
        """Continue with the next fold."""
        run.pairs = False
        run.next_fold()

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record the comparison."""
        bodies = ((site, message.body) for site, message in record.sent(ready))
        record.note_comparison({site: body.values for site, body in bodies if isinstance(body, Squares)})


def contribution(
    spec: RunSpec, models: Sequence[Rows | None], labels: Tensor, pooled: Tensor | None, groups: Tensor | None
) -> Tensor:
    """Return a site's sums over its test samples, float64 [rivals, measures, 1 or 2].

    Args:
        spec: the run.
        models: results of the trained model and each rival; None for a rival that the site lacks.
        labels: of the samples, as the network learns them.
        pooled: histograms from the answer to the test.
        groups: group of each sample; None without groups.
    """
    positive = positives(spec.task, labels)
    if pooled is None and not within_site(spec):  # there are no histograms for AUCs
        pooled = torch.zeros(len(models), positive.shape[1], 2, BINS)
    return squares(spec.task, models, positive, None if within_site(spec) else pooled, groups)


def joined(spec: RunSpec, sent: Sequence[Tensor]) -> Tensor:
    """Return a region's contribution: the sums of its members, without those within one site."""
    total, names = torch.stack(list(sent)).sum(dim=0), measures(spec.task)
    apart = [names.index(name) for name in (WITHIN, APART) if name in names]
    found = coarse(total)
    found[:, apart] = total[:, apart] if within_site(spec) else 0.0
    return found


def _shape(plan: Plan) -> tuple[int, int, int]:
    return len(rivals(plan.references)), len(measures(plan.task)), 1 + plan.grouped


def unpack_squares(plan: Plan, data: bytes) -> Tensor:
    """Decode a site's sums [rivals, measures, 1 or 2] from the network.

    Raises:
        ValueError: the size is wrong, or a number is NaN or too large.
    """
    count, names, columns = _shape(plan)
    return unpack_sums(data, count * names, columns).reshape(count, names, columns)


def problem_of(spec: RunSpec, sums: Tensor, tests: Sequence[Tally]) -> str | None:
    """Return why rows with these tests cannot have such sums; None if they can. See `contradiction`."""
    return contradiction(spec.task, sums, tests, least(spec))
