"""The paired comparison: after a test, how sure the differences between the models are that were tested.

The answer to the test has told all sites' histograms: see `common.rounds.scores`. In this round sites return, of each
model beside the trained one, sums of squared differences over their test samples, and the answer says that it is done.
Only a run that asks for references has the round; a guess is then compared, too.
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
    """What a site's test samples add up to where models are compared: see `rankdad.common.metrics.paired`."""

    fold: Count
    samples: Count
    values: Annotated[Tensor, *SQUARES]


class Compared(Control):
    """The answer to it: the comparison of a fold's models is done."""

    fold: Count


class PairedRound(Round):
    """After a test."""

    kind, up, down = Kind.PAIRED, Squares, Compared

    def due(self, run: RunState) -> Due | None:
        """Return it where the test's models are compared."""
        return run.next(self.kind) if run.pairs else None

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Squares:
        """Return what the test samples add up to where the models are compared that have been tested on them."""
        models, labels, groups = site.compared()
        assert site.run.test is not None
        values = contribution(site.spec, models, labels, site.run.test.scores, groups)
        return Squares(fold=due.fold, samples=len(labels), values=values)

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check that rows with the child's test can have such sums."""
        body = message.body
        assert isinstance(body, Squares)
        checks.count("d.samples", body.samples, checks.samples_of(site, "test"))
        tests = checks.tests.get(site)
        problem = tests and problem_of(checks.spec, body.values, tests)
        if problem:
            raise ProtocolError(422, f"d.values: {problem}", code="sums-unusable", field="d.values")

    def pooled(self, here: Collected) -> Compared:
        """Say that it is done."""
        return Compared(fold=here.ready.bodies(Squares)[0].fold)

    def combined(self, here: Collected) -> Squares:
        """Return what the region's samples add up to."""
        sent = here.ready.bodies(Squares)
        values, samples = joined(here.spec, [one.values for one in sent]), sum(one.samples for one in sent)
        return Squares(fold=sent[0].fold, samples=samples, values=values)

    def apply(self, run: RunState, update: Message) -> None:
        """Go on to the next fold."""
        run.pairs = False
        run.next_fold()

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Write down the comparison."""
        bodies = ((site, message.body) for site, message in record.sent(ready))
        record.note_comparison({site: body.values for site, body in bodies if isinstance(body, Squares)})


def contribution(
    spec: RunSpec, models: Sequence[Rows | None], labels: Tensor, pooled: Tensor | None, groups: Tensor | None
) -> Tensor:
    """Return what a site's test samples add up to, float64 [rivals, measures, 1 or 2].

    Args:
        spec: the run.
        models: what the trained model and each rival say of the samples; None of a rival that the site lacks.
        labels: of the samples, as the network learns them.
        pooled: what the answer to the test has told.
        groups: which group each sample is of; None where the run knows of none.
    """
    positive = positives(spec.task, labels)
    if pooled is None and not within_site(spec):  # there is nothing to compare AUCs by
        pooled = torch.zeros(len(models), positive.shape[1], 2, BINS)
    return squares(spec.task, models, positive, None if within_site(spec) else pooled, groups)


def joined(spec: RunSpec, sent: Sequence[Tensor]) -> Tensor:
    """Return what a region contributes: its members' sums, but for what is of one site's samples alone."""
    total, names = torch.stack(list(sent)).sum(dim=0), measures(spec.task)
    apart = [names.index(name) for name in (WITHIN, APART) if name in names]
    found = coarse(total)
    found[:, apart] = total[:, apart] if within_site(spec) else 0.0
    return found


def _shape(plan: Plan) -> tuple[int, int, int]:
    return len(rivals(plan.references)), len(measures(plan.task)), 1 + plan.grouped


def unpack_squares(plan: Plan, data: bytes) -> Tensor:
    """Return a site's sums [rivals, measures, 1 or 2] from the network.

    Raises:
        ValueError: the size is wrong, or a number is NaN or too large.
    """
    count, names, columns = _shape(plan)
    return unpack_sums(data, count * names, columns).reshape(count, names, columns)


def problem_of(spec: RunSpec, sums: Tensor, tests: Sequence[Tally]) -> str | None:
    """Return why rows with these tests cannot have such sums, in words; None where they can. See `contradiction`."""
    return contradiction(spec.task, sums, tests, least(spec))
