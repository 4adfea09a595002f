"""What a site contributes: the body of every kind of round, made from its data and its replica."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from rankdad.common import __version__
from rankdad.common.errors import ModelError, NonFiniteError, ProtocolError, RankdadError, UserError
from rankdad.common.gradients.capture import FactorCapture
from rankdad.common.gradients.factors import Factor, norm
from rankdad.common.gradients.routes import Payload, gather
from rankdad.common.metrics import Tally
from rankdad.common.policy import Policy
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.messages import Body, Buffers, Evaluation, Goodbye, Hello, Kind, Sketch, Sums
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.batches import batch_sizes
from rankdad.common.run.replica import saved_buffers
from rankdad.common.run.seeds import derive
from rankdad.common.run.state import Due, RunState
from rankdad.common.spec import RunSpec
from rankdad.local.admission import check_steps
from rankdad.local.data import Samples, SiteData
from rankdad.local.data.prepared import Prepared, prepare
from rankdad.local.evaluation import baseline_of, outputs_of, tally_of
from rankdad.local.local_steps import Moments, differences
from rankdad.local.losses import mean_loss

Tested = Callable[[int, Tensor], None]
References = Callable[[Prepared], tuple[Tally, ...]]


class Contributions:
    """Make what is due at one site.

    Args:
        spec: the run.
        plan: of the run.
        data: the site's samples.
        run: where the run is, with the site's replica.
        index: of the site in the plan.
        tested: given every fold's outputs for its test samples.
        references: returns the tallies of the plan's references for a fold's test samples.
    """

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        data: SiteData,
        run: RunState,
        index: int,
        tested: Tested,
        references: References = lambda prepared: (),
    ) -> None:
        self._spec, self._plan, self._data, self._run, self._index = spec, plan, data, run, index
        self._tested, self._references = tested, references
        self._preparing = Preparing(spec)
        self._fold = self._epoch = -1  # of what follows
        self._prepared: Prepared | None = None
        self._batches: tuple[Tensor, ...] = ()

    def body(self, due: Due, *, counts: bool = True) -> Body:
        """Return the body of a round that is no step; one that does not count any more needs no references."""
        if due.kind is Kind.HELLO:
            return self._hello()
        if due.kind is Kind.SUMS:
            return self._sums(due.stage or "")
        if due.kind is Kind.BUFFERS:
            return Buffers(samples=len(self.prepared.train), values=saved_buffers(self._run.replica.model))
        if due.kind is Kind.EVALUATION:
            return self._evaluation(due, counts)
        if due.kind is Kind.DECISION:
            return self._run.epoch_vote()
        if due.kind is Kind.COMPARISON:
            return Sketch(weights=self._run.replica.sketch())
        return Goodbye(weights_sha256=self._run.replica.digest(), sketch=self._run.replica.sketch())

    @property
    def prepared(self) -> Prepared:
        """The samples of the run's fold, or of the last one.

        Raises:
            RankdadError: the sites' totals lead to no finite numbers.
        """
        if self._prepared is None or (self._fold != self._run.fold and not self._run.tested):
            try:
                self._prepared = prepare(self._spec, self._data, self._run, self._run.replica)
            except ValueError as error:
                raise RankdadError(str(error)) from None
            self._fold = self._run.fold
        return self._prepared

    def check_roster(self, policy: Policy) -> None:
        """Check that the run began with this site's data, and that the policy allows its steps.

        Raises:
            UserError: the run began with other data.
            PolicyError: steps have too few samples.
        """
        actual, expected = [train for train, *_ in self._samples()], [fold[self._index] for fold in self._run.roster]
        if actual != expected:
            fold_by_fold = ", fold by fold" * (len(actual) > 1)
            got, began = (", ".join(map(str, counts)) for counts in (actual, expected))
            raise UserError(
                f"data: {got} samples to train on{fold_by_fold}, but this run began with {began}: a site goes on with "
                "the same data"
            )
        sizes = [self._run.batch_sizes(self._index, fold) for fold in range(self._plan.folds)]
        check_steps(policy, self._spec, self._plan, self._data, sizes)  # even batches are known only now

    def check_totals(self, stage: str) -> None:
        """Check what a stage of preparation has added up to.

        Raises:
            ProtocolError: no sites' samples can.
        """
        for total, roster in zip(self._run.totals[stage], self._run.roster, strict=True):
            problem = self._preparing.check(stage, total, sum(roster))
            if problem:
                raise ProtocolError(502, f"d.values: the sites' total of {stage}: {problem}")

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
            dropped=self._data.dropped,
            warnings=list(self._data.warnings),
        )

    def _sums(self, stage: str) -> Sums:
        """Return a stage's sums over the training rows of every fold."""
        sums = []
        for fold in range(self._plan.folds):
            rows = self._data.summed(fold)
            described = self._data.described() if fold == self._plan.folds - 1 else None
            try:
                sums.append(self._preparing.contribution(stage, self._run.totals_of(fold), rows, described))
            except ValueError as error:
                raise RankdadError(f"preparation: {error}: a number here, or all sites' mean, is too large") from None
        return Sums(stage=stage, values=torch.stack(sums))

    def _evaluation(self, due: Due, counts: bool) -> Evaluation:
        """Return what the model's outputs for a split add up to, and at a test what guesses from the site alone do."""
        task, replica, prepared, split = self._spec.task, self._run.replica, self.prepared, due.split
        assert split is not None
        samples: Samples = getattr(prepared, split)
        if split == "test":
            final = replica.weights()
            replica.load(self._run.best_weights)
        outputs = outputs_of(replica.model, samples.inputs, task.outputs)
        groups = prepared.test_groups if split == "test" else None
        tally, baseline = tally_of(task, prepared, split, outputs, groups), None
        references: tuple[Tally, ...] = ()
        if split == "test":
            replica.load(final)
            self._tested(due.fold, prepared.in_units(outputs))
            baseline, references = baseline_of(task, prepared), self._references(prepared) if counts else ()
        return Evaluation(
            split=split, fold=due.fold, epoch=due.epoch, tally=tally, baseline=baseline, references=references
        )

    def batch(self) -> Samples:
        """Return the samples of the next step: none if the site is out of data."""
        run, train = self._run, self.prepared.train
        epoch = run.fold * self._spec.training.epochs + run.epoch
        if self._epoch != epoch:
            generator = torch.Generator()
            generator.manual_seed(derive(self._plan.seed, "order", self.prepared.order_key, epoch))
            order = torch.randperm(len(train), generator=generator)
            order = self._data.dealt(self._fold, order, sum(map(bool, run.batch_sizes(self._index))))
            self._batches, self._epoch = order.split([sum(step) for step in run.batches(self._index)]), epoch
        rows = self._batches[run.step] if run.step < len(self._batches) else torch.arange(0)
        return train.take(rows.to(train.labels.device))

    def step(self, batch: Samples, moments: Moments) -> tuple[Payload, float, float, Moments]:
        """Return what a step sends, in the plan's order: gradients, or the difference that local steps make.

        Args:
            batch: samples of the step.
            moments: of the site's own optimizer; none where it takes no steps of its own.

        Returns:
            The payload, the mean loss, the payload's norm, and the moments after the step.

        Raises:
            ModelError: the network raised.
            NonFiniteError: the loss or a gradient holds NaN or infinity; names the parameter.
        """
        plan, run = self._plan, self._run
        model = run.replica.model.train()
        like = next(model.parameters())
        if not len(batch):
            return gather(plan.routes, {}, {}, like), 0.0, 0.0, moments
        # torch.manual_seed takes a stack trace for each kind of device that is not there
        seeded = torch.default_generator.manual_seed if like.is_cpu else torch.manual_seed
        seeded(derive(plan.seed, "forward", self._index, run.rng_key))
        if self._spec.local is None:
            factors, dense, value = self._gradients(batch, plan.factor_names)
        else:
            batches = batch.split(run.next_batches(self._index))
            dense, value, moments = differences(self._spec, run, batches, moments, lambda own: self._gradients(own)[1:])
            factors = {}
        payload = gather(plan.routes, factors, dense, like)
        sizes = [norm(gradient) for gradient in payload]
        for route, size in zip(plan.routes, sizes, strict=True):
            if not math.isfinite(size):
                raise NonFiniteError(f"the gradient of {route.name} in step {run.replica.step + 1}")
        return payload, value, math.hypot(*sizes), moments

    def _gradients(
        self, batch: Samples, captured: Collection[str] = ()
    ) -> tuple[dict[str, Factor], dict[str, Tensor], float]:
        """Return the factors and other gradients of the batch's mean loss, and that loss."""
        run, value = self._run, 0.0
        with FactorCapture(run.replica.model, only=captured) as capture:
            for part in batch.split(batch_sizes(len(batch), self._spec.training.batch_size)):
                try:
                    loss = self._loss(part) * (len(part) / len(batch))
                    capture.backward(loss)
                except Exception as error:
                    raise ModelError(error) from error
                value += float(loss.detach())
        if not math.isfinite(value):
            raise NonFiniteError(f"the training loss in step {run.replica.step + 1}")
        return capture.factors(), capture.dense(), value

    def _loss(self, batch: Samples) -> Tensor:
        kind, weights = batch.labels.device.type, self.prepared.fit.class_weights
        with torch.autocast(kind, torch.bfloat16, enabled=self._spec.training.autocast is not None):
            return mean_loss(self._spec.task, self._run.replica.model(batch.inputs), batch.labels, weights)
