"""A site's contributions to rounds other than steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rankdad.common.data import Samples, SiteData
from rankdad.common.data.prepared import Prepared
from rankdad.common.errors import ProtocolError, UserError
from rankdad.common.metrics.paired import Rows
from rankdad.common.metrics.smoothing import Scored
from rankdad.common.metrics.sums import Tally, empty
from rankdad.common.policy import Policy
from rankdad.common.privacy.repeated import most_disclosed
from rankdad.common.privacy.standing import Place, Places, stretch
from rankdad.common.protocol.messages import Body
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.base import Due, Tests
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import NOT_EXACT
from rankdad.local.admission import check_steps
from rankdad.local.evaluation import curves_of, guesses, monitored_of, tally_of, task_outputs, tested_rows
from rankdad.local.privacy.disclosed import check_repeated, check_standing, tell

Tested = Callable[[int, Tensor], None]
References = Callable[[Prepared], tuple[Tensor | None, ...]]


class Contributions:
    """Compute the contributions of one site.

    Args:
        spec: the run.
        plan: of the run.
        data: the site's samples.
        run: state of the run, with the site's replica.
        index: of the site in the plan.
        prepared: returns the samples of the run's fold, or of the last one.
        tested: called with each fold's outputs for its test samples.
        references: returns the outputs of the reference models for a fold's test samples; None for a missing one.
        retain: whether the aggregator may keep contributions beyond the run's end.
        again: whether the run has begun here before and repeats the same updates.
    """

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        data: SiteData,
        run: RunState,
        index: int,
        prepared: Callable[[], Prepared],
        tested: Tested,
        references: References = lambda prepared: (),
        *,
        retain: bool = False,
        again: bool = False,
    ) -> None:
        self.spec, self.plan, self.data, self.run, self.index = spec, plan, data, run, index
        self._own = spec.at(plan.sites[index])
        self._prepared, self._tested, self._references = prepared, tested, references
        self._outputs = torch.empty(0)  # of the model, for the fold's test samples
        self.retain, self._again = retain, again
        self._earlier: Places = ()  # of other runs
        self._scored: dict[int, dict[str, Scored]] = {}  # of each fold's test, by model
        self._others: tuple[Tensor | None, ...] | None = None  # of the guess and the references, computed when needed

    def body(self, due: Due, *, counts: bool = True) -> Body:
        """Return the body of a round other than a step; references are omitted if it does not count."""
        return ROUNDS[due.kind].contribution(self, due, counts=counts)

    def check_roster(self, policy: Policy, *, anew: bool) -> None:
        """Check that the run began with this site's data and that the policy allows its steps; log the disclosure.

        Args:
            policy: of the site.
            anew: whether the run starts from the beginning.

        Raises:
            UserError: the run began with other data.
            PolicyError: steps have too few samples, or would disclose too much.
            ProtocolError: the run is solved exactly, against this site's policy.
        """
        actual, expected = [train for train, *_ in self.samples()], [fold[self.index] for fold in self.run.roster]
        if actual != expected:
            fold_by_fold = ", fold by fold" * (len(actual) > 1)
            got, began = (", ".join(map(str, counts)) for counts in (actual, expected))
            raise UserError(
                f"data: {got} samples to train on{fold_by_fold}, but this run began with {began}: restore the data "
                "that it began with",
                code="data-changed",
                field="data",
            )
        if self.run.exact and NOT_EXACT in self.data.warnings:
            raise ProtocolError(
                502,
                "d.exact: got true, but this site's policy does not allow the sums of an exact solution",
                code="solver-differs",
                field="d.exact",
            )
        given, sizes = (policy, self.spec, self.plan, self.data), None
        if not self.run.exact:  # even batches are known only now
            first, sizes = (
                [of(self.index, fold) for fold in range(self.plan.folds)]
                for of in (self.run.batch_sizes, self.run.largest_batches)
            )
            check_steps(*given, first)
            check_repeated(*given, sizes)
        if self.data.parts is not None:
            self._earlier = self.data.parts.places(anew)
        begins = anew and not self._again  # repeated updates disclose nothing more
        if not tell(*given, sizes, anew=begins):
            raise UserError(
                "data: another run of the same patients has begun here in the meantime: start again",
                code="another-run-began",
                field="data",
            )
        if self.data.parts is not None and begins:
            self.data.parts.begun()

    def check_standing(self, policy: Policy, places: Places, numbers: int) -> None:
        """Check that the policy allows more batches, of so many numbers each, at the last of some places.

        Raises:
            PolicyError: the batches already sent there nearly identify their patients.
        """
        check_standing(policy, self.spec, self.data, self.run.fold, numbers, places, self._earlier)

    def known(self, policy: Policy, places: Places) -> Places:
        """Return the places of this run and of others; none if the policy does not limit them."""
        return () if policy.rows_per_rank is None else (*places, *self._earlier)

    def stretch(self, policy: Policy) -> tuple[range, int]:
        """Return the stretch of the epoch with the next step, and the step in it at which the site checks.

        The site's secret selects the step, so that weights cannot be prepared for it. If folds follow from keys, so do
        batches, and it is the first step.
        """
        run, parts = self.run, self.data.parts
        size = stretch(most_disclosed(policy.rows_per_rank), self.data.people(self.data.splits[run.fold].train))
        first = run.step // size * size
        steps = range(first, max(run.step + 1, min(first + size, len(run.batches(self.index)))))
        draw = 0 if parts is None else parts.secret.number("look", parts.run, run.fold, run.epoch, first)
        return steps, steps[draw % len(steps)]

    def note_place(self, place: Place) -> None:
        """Log where batches have been sent, for later runs."""
        if self.data.parts is not None:
            self.data.parts.place(place)

    def check_totals(self, stage: str) -> None:
        """Check the totals of a preparation stage.

        Raises:
            ProtocolError: no sites' samples can have these totals.
        """
        for total, roster in zip(self.run.totals[stage], self.run.roster, strict=True):
            problem = self.run.preparing.check(stage, total, sum(roster))
            if problem:
                raise ProtocolError(
                    502, f"d.values: the sites' total of {stage}: {problem}", code="sums-unusable", field="d.values"
                )

    def samples(self) -> tuple[tuple[int, int, int], ...]:
        """Return the number of training, validation and test samples of each fold."""
        return tuple((len(split.train), len(split.validation), len(split.test)) for split in self.data.splits)

    def monitored(self) -> Tally:
        """Return the tally of the model's outputs for the validation samples."""
        prepared, run = self._prepared(), self.run
        with run.replica.evaluating() as model:
            outputs = self._outputs_of(model, prepared.validation)
        return monitored_of(self.spec.task, self.spec.training.monitor, prepared, outputs, self.data.fewest)

    def tested(self, fold: int, *, counts: bool) -> Tests:
        """Return the tallies of the tests of the best weights; without references if they do not count."""
        task, prepared = self.spec.task, self._prepared()
        with self.run.replica.evaluating(self.run.best_weights) as model:
            outputs = self._outputs_of(model, prepared.test)
        self._tested(fold, prepared.transform.in_units(outputs))
        self._outputs, self._others = outputs, None
        groups, nothing = prepared.test_groups, empty(task, self.plan.grouped)
        guess, *others = self._compared(prepared) if counts else (guesses(task, prepared),)
        assert guess is not None
        return Tests(
            self._tally(fold, "model", outputs, groups),
            self._tally(fold, "baseline", guess, None),
            tuple(
                nothing if one is None else self._tally(fold, f"reference {at}", one, groups)
                for at, one in enumerate(others)
            ),
        )

    def _outputs_of(self, model: nn.Module, samples: Samples) -> Tensor:
        return task_outputs(self.spec.task, model, samples.inputs, self._own.training.batch_size)

    def _tally(self, fold: int, model: str, outputs: Tensor, groups: Tensor | None) -> Tally:
        """Return the tally of a model's test; smooth scores depend on those of the repeat's earlier folds."""
        task, prepared, repeat = self.spec.task, self._prepared(), self.spec.repeat(fold)
        earlier = [
            known[model]
            for at, known in sorted(self._scored.items())
            if at < fold and model in known and self.spec.repeat(at) == repeat
        ]
        curves = curves_of(task, prepared, outputs, earlier, clustered=groups is not None)
        if curves is not None and curves.scored is not None:
            self._scored.setdefault(fold, {})[model] = curves.scored
        return tally_of(task, prepared, outputs, groups, curves)

    def _compared(self, prepared: Prepared) -> tuple[Tensor | None, ...]:
        """Return the outputs of the guess and the references for the fold's test samples."""
        if self._others is None:
            self._others = guesses(self.spec.task, prepared), *self._references(prepared)
        return self._others

    def compared(self) -> tuple[list[Rows | None], Tensor, Tensor | None]:
        """Return each model's rows for the last test's samples, with their labels and groups."""
        task, prepared = self.spec.task, self._prepared()
        models = [self._outputs, *self._compared(prepared)]
        rows = [None if one is None else tested_rows(task, prepared, one) for one in models]
        return rows, prepared.test.labels, prepared.test_groups
