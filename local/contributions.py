"""What a site contributes: the body of every kind of round, made from its data and its replica."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from rankdad.common import __version__
from rankdad.common.errors import ModelError, NonFiniteError, ProtocolError, RankdadError, UserError
from rankdad.common.gradients.capture import FactorCapture
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
from rankdad.local.augmentation import augmenting
from rankdad.local.batch import StepBatch
from rankdad.local.data import Batch, Samples, SiteData
from rankdad.local.data.prepared import Prepared, prepare
from rankdad.local.evaluation import baseline_of, outputs_of, tally_of
from rankdad.local.local_steps import Moments, differences
from rankdad.local.losses import mean_loss
from rankdad.local.parts import Parts, Take
from rankdad.local.ranks.alone import Alone

_log = logging.getLogger(__name__)
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
        ranks: that share the site's batches; without any it is alone.
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
        ranks: Alone | None = None,
    ) -> None:
        self._spec, self._plan, self._data, self._run, self._index = spec, plan, data, run, index
        self._own = spec.at(plan.sites[index])
        self._tested, self._references, self._ranks = tested, references, ranks or Alone()
        self._preparing = Preparing(spec)
        self._overflowed = False
        self._fold = self._epoch = -1  # of what follows
        self._prepared: Prepared | None = None
        self._rows: list[list[tuple[Tensor, ...]]] = []  # of the parts of every batch, step by step
        self._parts: tuple[int, Iterator[Batch]] = -1, iter(())  # from a step on

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
                totals, fewest = self._run.totals_of(fold), self._data.fewest
                sums.append(self._preparing.contribution(stage, totals, rows, described, fewest))
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
        outputs = outputs_of(replica.model, samples.inputs, task.outputs, self._own.training.batch_size)
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

    def batch(self, *, reads: bool = True) -> StepBatch:
        """Return the samples of the next step: none if the site is out of data, or reads nothing."""
        run, train = self._run, self.prepared.train
        epoch = run.fold * self._spec.training.epochs + run.epoch
        if self._epoch != epoch:
            generator = torch.Generator()
            generator.manual_seed(derive(self._plan.seed, "order", self.prepared.order_key, epoch))
            order = torch.randperm(len(train), generator=generator)
            sizes = [size for step in run.batches(self._index) for size in step if size]
            order = self._data.dealt(self._fold, order, len(sizes)) if sizes else order[:0]
            steps, largest = run.batches(self._index), self._own.training.batch_size
            batches = iter(order.split([size for step in steps for size in step]))
            mine = [[self._ranks.part(next(batches)) for _ in step] for step in steps]
            self._rows = [[rows.split(batch_sizes(len(rows), largest)) for rows in step] for step in mine]
            self._epoch, self._parts = epoch, (-1, iter(()))
        reads = reads and run.step < len(self._rows)
        rows = self._rows[run.step] if reads else []
        if rows and self._parts[0] != run.step:  # the epoch's first step, or the first after some that were not read
            parts = [part for step in self._rows[run.step :] for batch in step for part in batch]
            varied, device = augmenting(self._spec, self._index, epoch), next(run.replica.model.parameters()).device
            self._parts = run.step, train.batches(parts, device, varied)
        if rows:
            self._parts = run.step + 1, self._parts[1]
        return StepBatch(
            run.batches(self._index)[run.step] if reads else [],
            [[len(part) for part in batch] for batch in rows],
            self._parts[1],
        )

    def step(self, batch: StepBatch, moments: Moments, take: Take, *, early: bool = False) -> Moments:
        """Make what a step sends, bucket after bucket: gradients, or the difference that local steps make.

        Args:
            batch: samples of the step, which are read here.
            moments: of the site's own optimizer; none where it takes no steps of its own.
            take: is given the parts, in the order of their exchanges.
            early: whether it is given them while the backward pass goes on.

        Returns:
            The moments after the step.

        Raises:
            ModelError: the network raised.
            NonFiniteError: the loss or a gradient holds NaN or infinity; names the parameter.
            DataError: a file cannot be read any more.
        """
        plan, run = self._plan, self._run
        model = run.replica.model.train()
        like = next(model.parameters())
        parts = partial(Parts, plan, self._spec.training.sends_squares, run.replica.step + 1, like, take=take)
        if not len(batch):
            parts(lambda names: ({}, {}), lambda: 0.0).finish()
            return moments
        self._ranks.begin(moments)
        # torch.manual_seed takes a stack trace for each kind of device that is not there
        seeded = torch.default_generator.manual_seed if like.is_cpu else torch.manual_seed
        seeded(derive(plan.seed, "forward", self._index, run.rng_key, *self._ranks.key))
        if self._spec.local is None:
            with FactorCapture(model, only=plan.factor_names) as capture:
                losses = list[Tensor]()
                given = parts(
                    lambda names: (capture.factors(names), capture.dense(names)),
                    lambda: self._finite_loss(losses),
                    self._ranks.pooled,
                )
                self._backward(batch, capture, losses, given.complete if early else None)
                self._finite_loss(losses)
                given.finish()
        else:
            dense, value, moments = differences(self._spec, run, self._index, batch.batches(), moments, self._gradients)
            parts(lambda names: ({}, dense), lambda: value).finish()
        return moments

    def _gradients(self, batch: StepBatch) -> tuple[Mapping[str, Tensor], float]:
        """Return the gradients of the batch's mean loss, and that loss."""
        with FactorCapture(self._run.replica.model, only=()) as capture:
            losses = list[Tensor]()
            self._backward(batch, capture, losses)
            return self._ranks.summed(capture.dense(), self._finite_loss(losses))

    def _backward(
        self,
        batch: StepBatch,
        capture: FactorCapture,
        losses: list[Tensor],
        complete: Callable[[str], None] | None = None,
    ) -> None:
        """Run the backward passes of a batch's mean loss, part by part; gradients are complete in the last.

        Args:
            batch: samples, of which a rank takes its own.
            capture: of their gradients.
            losses: is given each part's share of the loss, before its backward pass.
            complete: see `FactorCapture.backward`; of float16, whose gradients may have to be made again, told nothing.
        """
        sizes = [size for parts in batch.sizes for size in parts]
        parts = itertools.islice(batch.parts, len(sizes))
        if self._spec.training.autocast != "float16":
            self._passes(parts, len(sizes), len(batch), capture, losses, complete)
            return
        kept, model, scale = list(parts), self._run.replica.model, self._spec.training.loss_scale
        buffers, go_back = {name: buffer.clone() for name, buffer in model.named_buffers()}, _random_state(model)
        while True:
            capture.begin(scale)
            losses.clear()
            self._passes(kept, len(sizes), len(batch), capture, losses)
            if scale == 1 or capture.is_finite:
                return
            scale //= 2
            level = logging.DEBUG if self._overflowed else logging.WARNING
            step = self._run.replica.step + 1
            _log.log(level, "step %d: gradients overflow float16, and are made again: lower training.loss_scale", step)
            self._overflowed = True
            go_back()  # so that the same units drop out
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])

    def _passes(
        self,
        parts: Iterable[Batch],
        count: int,
        samples: int,
        capture: FactorCapture,
        losses: list[Tensor],
        complete: Callable[[str], None] | None = None,
    ) -> None:
        """Run the passes of so many parts of a batch of so many samples once."""
        for place, part in enumerate(parts, 1):
            try:
                loss = self._loss(part) * (len(part.labels) / samples)
                losses.append(loss.detach())
                capture.backward(loss, complete if place == count else None)
            except RankdadError:  # in what a complete bucket goes through
                raise
            except Exception as error:
                raise ModelError(error) from error

    def _finite_loss(self, losses: Sequence[Tensor]) -> float:
        """Return a step's loss.

        Raises:
            NonFiniteError: it is none.
        """
        value = 0.0
        for loss in losses:
            value += float(loss)
        if not math.isfinite(value):
            raise NonFiniteError(f"the training loss in step {self._run.replica.step + 1}")
        return value

    def _loss(self, batch: Batch) -> Tensor:
        kind, weights = batch.labels.device.type, self.prepared.fit.class_weights
        autocast = self._spec.training.autocast
        with torch.autocast(kind, getattr(torch, autocast or "bfloat16"), enabled=autocast is not None):
            return mean_loss(self._spec.task, self._run.replica.model(batch.inputs), batch.labels, weights)


def _random_state(model: nn.Module) -> Callable[[], None]:
    """Return what sets the generators that a model's passes draw from back to where they are."""
    device, drawn = next(model.parameters()).device, torch.get_rng_state()
    there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def go_back() -> None:
        torch.set_rng_state(drawn)
        if there is not None:
            torch.cuda.set_rng_state(there, device)

    return go_back
