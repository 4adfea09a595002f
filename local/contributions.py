"""What a site contributes: the body of every kind of round, made from its data and its replica."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rankdad.common import __version__
from rankdad.common.errors import ProtocolError, RankdadError, UserError
from rankdad.common.metrics import Tally, empty
from rankdad.common.metrics.smoothing import Scored
from rankdad.common.policy import Policy
from rankdad.common.preparation import Preparing
from rankdad.common.privacy.repeated import most_told
from rankdad.common.privacy.standing import Place, Places, stretch
from rankdad.common.protocol.messages import Body, Buffers, Evaluation, Goodbye, Hello, Kind, Sketch, Squares, Sums
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds import paired
from rankdad.common.run.replica import saved_buffers
from rankdad.common.run.state import Due, RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import NOT_EXACT
from rankdad.common.user_code import origin
from rankdad.local.admission import check_steps
from rankdad.local.data import Samples, SiteData
from rankdad.local.data.prepared import Prepared
from rankdad.local.evaluation import curves_of, guesses, monitored_of, outputs_of, tally_of, tested_rows
from rankdad.local.privacy.told import check_repeated, check_standing, tell

Tested = Callable[[int, Tensor], None]
References = Callable[[Prepared], tuple[Tensor | None, ...]]


class Contributions:
    """Make what is due at one site.

    Args:
        spec: the run.
        plan: of the run.
        data: the site's samples.
        run: where the run is, with the site's replica.
        index: of the site in the plan.
        prepared: returns the samples of the run's fold, or of the last one.
        tested: given every fold's outputs for its test samples.
        references: returns the outputs of the plan's references for a fold's test samples; None where there is none.
        retain: whether the policy lets the aggregator keep what the site sends beyond the run's end.
        again: whether the run has begun here before, and goes by the same updates.
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
        self._spec, self._plan, self._data, self._run, self._index = spec, plan, data, run, index
        self._own = spec.at(plan.sites[index])
        self._prepared, self._tested, self._references = prepared, tested, references
        self._preparing = Preparing(spec)
        self._outputs = torch.empty(0)  # of the model, for the fold's test samples
        self._retain, self._again = retain, again
        self._earlier: Places = ()  # of other runs
        self._scored: dict[int, dict[str, Scored]] = {}  # of each fold's test, by model
        self._others: tuple[Tensor | None, ...] | None = None  # of the guess and the references; None until asked for

    def body(self, due: Due, *, counts: bool = True) -> Body:
        """Return the body of a round that is no step; one that does not count any more needs no references."""
        if due.kind is Kind.HELLO:
            return self._hello()
        if due.kind is Kind.SUMS:
            return self._sums(due.stage or "")
        if due.kind is Kind.BUFFERS:
            return Buffers(samples=self._run.samples(self._index), values=saved_buffers(self._run.replica.model))
        if due.kind is Kind.EVALUATION:
            return self._evaluation(due, counts)
        if due.kind is Kind.PAIRED:
            return self._squares(due)
        if due.kind is Kind.DECISION:
            return self._run.epoch_vote()
        if due.kind is Kind.COMPARISON:
            return Sketch(weights=self._run.replica.sketch())
        return Goodbye(weights_sha256=self._run.replica.digest(), sketch=self._run.replica.sketch())

    def check_roster(self, policy: Policy, *, anew: bool) -> None:
        """Check that the run began with this site's data, and that the policy allows its steps; note what it tells.

        Args:
            policy: of the site.
            anew: whether the run begins at the beginning.

        Raises:
            UserError: the run began with other data.
            PolicyError: steps have too few samples, or too much would be told.
            ProtocolError: the run is solved exactly, against this site's policy.
        """
        actual, expected = [train for train, *_ in self._samples()], [fold[self._index] for fold in self._run.roster]
        if actual != expected:
            fold_by_fold = ", fold by fold" * (len(actual) > 1)
            got, began = (", ".join(map(str, counts)) for counts in (actual, expected))
            raise UserError(
                f"data: {got} samples to train on{fold_by_fold}, but this run began with {began}: a site goes on with "
                "the same data",
                code="data-changed",
                field="data",
            )
        if self._run.exact and NOT_EXACT in self._data.warnings:
            raise ProtocolError(
                502,
                "d.exact: got true, but this site has said that its policy lets out no sums of an exact solution",
                code="solver-differs",
                field="d.exact",
            )
        given, sizes = (policy, self._spec, self._plan, self._data), None
        if not self._run.exact:  # even batches are known only now
            first, sizes = (
                [of(self._index, fold) for fold in range(self._plan.folds)]
                for of in (self._run.batch_sizes, self._run.largest_batches)
            )
            check_steps(*given, first)
            check_repeated(*given, sizes)
        if self._data.parts is not None:
            self._earlier = self._data.parts.places(anew)
        if not tell(*given, sizes, anew=anew):
            raise UserError(
                "data: another run of the same patients has begun here meanwhile: start again",
                code="another-run-began",
                field="data",
            )
        if self._data.parts is not None and anew and not self._again:
            self._data.parts.begun()

    def check_standing(self, policy: Policy, places: Places, numbers: int) -> None:
        """Check that the policy allows more batches, of so many numbers each, at the last of some places.

        Raises:
            PolicyError: as many are known there as tell who is in which.
        """
        check_standing(policy, self._spec, self._data, self._run.fold, numbers, places, self._earlier)

    def stretch(self, policy: Policy) -> int:
        """Return after how many steps it is looked again how far the weights have moved."""
        people = self._data.people(self._data.splits[self._run.fold].train)
        return stretch(most_told(policy.rows_per_rank), people)

    def note_place(self, place: Place, *, first: bool) -> None:
        """Note in the site's log where batches have been sent that other runs may add to."""
        if self._data.parts is not None and (place.steps > 1 or (first and not self._run.epoch)):
            self._data.parts.place(place)

    def check_totals(self, stage: str) -> None:
        """Check what a stage of preparation has added up to.

        Raises:
            ProtocolError: no sites' samples can.
        """
        for total, roster in zip(self._run.totals[stage], self._run.roster, strict=True):
            problem = self._preparing.check(stage, total, sum(roster))
            if problem:
                raise ProtocolError(
                    502, f"d.values: the sites' total of {stage}: {problem}", code="sums-unusable", field="d.values"
                )

    def _samples(self) -> tuple[tuple[int, int, int], ...]:
        """Return how many samples each fold trains on, validates and tests with."""
        return tuple((len(split.train), len(split.validation), len(split.test)) for split in self._data.splits)

    def _hello(self) -> Hello:
        return Hello(
            version=__version__,
            spec_sha256=self._plan.spec_sha256,
            plan_sha256=self._plan.sha256(),
            weights_sha256=self._plan.weights_sha256,
            samples=self._samples(),
            dropped=0 if self._data.parts is not None else self._data.dropped,  # a count is an answer, too
            warnings=list(self._data.warnings),
            retain=self._retain,
            log=None if self._data.parts is None else self._data.parts.heads(),
            alike=self._data.alike(self._spec),
            functions=tuple(map(origin, self._spec.functions.values())),
        )

    def _sums(self, stage: str) -> Sums:
        """Return a stage's sums over the training rows of every fold."""
        data, run = self._data, self._run
        try:
            values = self._preparing.contributions(
                stage,
                run.totals_of,
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

    def _evaluation(self, due: Due, counts: bool) -> Evaluation:
        """Return what the model's outputs for a split add up to, and at a test what those of other models do."""
        task, replica, prepared, split = self._spec.task, self._run.replica, self._prepared(), due.split
        assert split is not None
        samples: Samples = getattr(prepared, split)
        with replica.evaluating(self._run.best_weights if split == "test" else {}) as model:
            outputs = outputs_of(model, samples.inputs, task.outputs, self._own.training.batch_size)
        if split == "validation":
            tally = monitored_of(task, self._spec.training.monitor, prepared, outputs, self._data.fewest)
            return Evaluation(split=split, fold=due.fold, epoch=due.epoch, tally=tally, baseline=None)
        self._tested(due.fold, prepared.in_units(outputs))
        self._outputs, self._others = outputs, None
        groups, nothing = prepared.test_groups, empty(task, self._plan.grouped)
        guess, *others = self._compared(prepared) if counts else (guesses(task, prepared),)
        assert guess is not None
        return Evaluation(
            split=split,
            fold=due.fold,
            epoch=due.epoch,
            tally=self._tally(due.fold, "model", outputs, groups),
            baseline=self._tally(due.fold, "baseline", guess, None),
            references=tuple(
                nothing if one is None else self._tally(due.fold, f"reference {at}", one, groups)
                for at, one in enumerate(others)
            ),
        )

    def _tally(self, fold: int, model: str, outputs: Tensor, groups: Tensor | None) -> Tally:
        """Return what a model's test adds up to; smooth scores know those of the repeat's earlier folds."""
        task, prepared, repeat = self._spec.task, self._prepared(), self._spec.repeat(fold)
        earlier = [
            known[model]
            for at, known in sorted(self._scored.items())
            if at < fold and model in known and self._spec.repeat(at) == repeat
        ]
        curves = curves_of(task, prepared, outputs, earlier, clustered=groups is not None)
        if curves is not None and curves.scored is not None:
            self._scored.setdefault(fold, {})[model] = curves.scored
        return tally_of(task, prepared, outputs, groups, curves)

    def _compared(self, prepared: Prepared) -> tuple[Tensor | None, ...]:
        """Return the outputs of the guess and the references for the fold's test samples."""
        if self._others is None:
            self._others = guesses(self._spec.task, prepared), *self._references(prepared)
        return self._others

    def _squares(self, due: Due) -> Squares:
        """Return what the test samples add up to where the models are compared that have been tested on them."""
        task, prepared, test = self._spec.task, self._prepared(), self._run.test
        assert test is not None
        models = [self._outputs, *self._compared(prepared)]
        rows = [None if one is None else tested_rows(task, prepared, one) for one in models]
        labels, groups = prepared.test.labels, prepared.test_groups
        values = paired.contribution(self._spec, rows, labels, test.scores, groups)
        return Squares(fold=due.fold, samples=len(labels), values=values)
