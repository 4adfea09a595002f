"""A step at a site: reading its batch, and computing the gradients of the loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from rankdad.common.data import Batch, Samples, SiteData
from rankdad.common.data.prepared import MOST_SAMPLES, Prepared, prepare
from rankdad.common.errors import ModelError, NonFiniteError, RankdadError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.factors import Factor, concatenate
from rankdad.common.lowrank.routes import Payload, gather
from rankdad.common.preparation import in_memory
from rankdad.common.privacy.shares import scales as scales_of
from rankdad.common.privacy.shares import shared_units
from rankdad.common.privacy.standing import Flows, Place, drawn_before
from rankdad.common.privacy.tokens import Usual, kept, usual
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.batches import batch_sizes
from rankdad.common.run.batches import parts as parts_of
from rankdad.common.run.state import RunState
from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import LanguageModel
from rankdad.common.spec.text import TextData
from rankdad.local.augmentation import augmenting
from rankdad.local.batch import StepBatch, with_usual_tokens
from rankdad.local.evaluation import outputs_of
from rankdad.local.local_steps import Moments, differences
from rankdad.local.losses import deltas, kinds_of, mean_loss
from rankdad.local.own_gradients import OwnGradients, own_gradients
from rankdad.local.ranks.alone import Alone

NOBODY = torch.zeros(0, dtype=torch.int64)


class Passes:
    """Read a site's batches and compute their gradients.

    Args:
        spec: the run.
        plan: of the run.
        data: the site's samples.
        run: state of the run, with the site's replica.
        index: of the site in the plan.
        ranks: that share the site's batches; by default the site has one process.
        sharing: least number of patients that share a batch's gradient; see `common.privacy.shares`.
        fewest: patients of a batch that are enough for a token, or a place of texts, to travel; of a byte, `sharing`.

    Attributes:
        evened: batches scaled so that no patient has more than their share.
        divided: gradients of a layer scaled in some units, or sums of units, for the same reason.
        unknown: number of texts in the first batch, and share of their tokens that were rare there; None if unknown.
    """

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        data: SiteData,
        run: RunState,
        index: int,
        ranks: Alone | None = None,
        sharing: int = 1,
        fewest: int = 1,
    ) -> None:
        placed = getattr(spec.model, "positions", "") != "rope"
        self._of_bytes = isinstance(spec.data, TextData) and spec.data.tokenizer is None
        self._fewest = sharing if self._of_bytes else fewest, fewest if placed else 1
        self._spec, self._plan, self._data, self._run, self._index = spec, plan, data, run, index
        self._largest, self._ranks = spec.at(plan.sites[index]).training.batch_size, ranks or Alone()
        self._sharing, self.evened, self.divided = sharing, 0, 0
        self.unknown: tuple[int, float] | None = None
        self._units = {route.name: math.prod(route.shape[:1]) for route in plan.routes}
        self._head = [one.name for one in plan.routes if one.shape[:-1] == spec.output_shape[-1:]][-1:]
        self._fold = self._epoch = self._seed = -1  # of what follows
        self._prepared: Prepared | None = None
        self._looked: tuple[Samples, Batch] | None = None  # a fixed batch, to measure how far the model has moved
        self._rows: list[list[tuple[Tensor, ...]]] = []  # of the parts of each batch, for each step
        self._whole: list[list[Tensor]] = []  # rows of each batch, of all ranks
        self._parts: tuple[int, Iterator[Batch]] = -1, iter(())  # first step, parts from there on

    def prepared(self) -> Prepared:
        """Return the samples of the run's fold, or of the last one.

        Raises:
            RankdadError: the sites' totals are not finite.
        """
        if self._prepared is None or (self._fold != self._run.fold and not self._run.over):
            try:
                self._prepared = prepare(self._spec, self._data, self._run, self._run.replica)
            except ValueError as error:
                raise RankdadError(str(error), code="preparation-impossible", field="preparation") from None
            self._fold = self._run.fold
        return self._prepared

    @property
    def behind_step(self) -> int:
        """Return the least number of samples in a batch of the next step, or in its difference to another batch."""
        run = self._run
        return min((self._data.behind_step(run.fold, size) for size in run.next_batches(self._index)), default=0)

    @property
    def epoch(self) -> int:
        """Return the number of the epoch, over all trainings."""
        return self._run.fold * self._spec.training.epochs + self._run.epoch

    def start(self, places: Sequence[Place] = ()) -> Place:
        """Return where an epoch begins and the seed of its batches, which is that of an earlier place nearby, if any.

        Called by all ranks.

        Raises:
            DataError: a file can no longer be read.
        """
        run, prepared, here, seed = self._run, self.prepared(), Place(self._run.replica.sketch()), None
        sizes = [size for step in run.batches(self._index) for size in step]
        patients = f"{prepared.patients_key} {derive(*sizes)}"
        if any(0 < size < run.samples(self._index) for size in sizes):
            here = here._replace(flows=self.flows())
            seed = drawn_before(places, here, patients)
        if seed is None:
            seed = derive(self._plan.seed, "order", prepared.order_key, self.epoch)
        shared = self._ranks.share(str(seed).encode()) or b"0"  # from rank 0, which writes the log
        return here._replace(first=run.epoch == 0, drawn={patients: int(shared)})

    def batch(self, order: Mapping[str, int], *, reads: bool = True) -> StepBatch:
        """Return the samples of the next step, drawn by `order`; none if the site is out of data or reads nothing."""
        run, train, epoch = self._run, self.prepared().train, self.epoch
        if self._epoch != epoch:
            generator = torch.Generator()
            (self._seed,) = order.values()
            generator.manual_seed(self._seed)
            steps = run.batches(self._index)
            sizes = [size for step in steps for size in step]
            batches = self._data.drawn(self._fold, sizes, generator)
            self._whole = [[next(batches) for _ in step] for step in steps]
            mine = [[self._part(batch) for batch in step] for step in self._whole]
            self._rows = [[rows.split(batch_sizes(len(rows), self._largest)) for rows in step] for step in mine]
            self._epoch, self._parts = epoch, (-1, iter(()))
        reads = reads and run.step < len(self._rows)
        rows = self._rows[run.step] if reads else []
        if rows and self._parts[0] != run.step:  # the epoch's first step, or steps were skipped
            parts = [part for step in self._rows[run.step :] for batch in step for part in batch]
            varied = augmenting(self._spec, self._index, self._seed)
            device = next(run.replica.model.parameters()).device
            self._parts = run.step, train.batches(parts, device, varied)
            if self._spec.data.tokens is not None and max(self._fewest) > 1:
                left = zip(*(itertools.chain(*own[run.step :]) for own in (self._rows, self._whole)), strict=True)
                found = ((len(part), self._usual(rows)) for part, rows in left)
                self._parts = run.step, with_usual_tokens(self._parts[1], found)
        if rows:
            self._parts = run.step + 1, self._parts[1]
        return StepBatch(
            run.batches(self._index)[run.step] if reads else [],
            [[self._people(part) for part in batch] for batch in rows],
            self._parts[1],
        )

    def _usual(self, rows: Tensor) -> Usual:
        tokens = in_memory(self.prepared().train.inputs[rows])
        found = usual(tokens, self._people(rows), *self._fewest)
        if self.unknown is None and not self._of_bytes:
            self.unknown = len(rows), 1 - kept(tokens, found)
        return found

    def _part(self, rows: Tensor) -> Tensor:
        """Return this rank's share of a batch's samples; none if there are more ranks than samples."""
        mine: Tensor = rows.split(parts_of(len(rows), self._ranks.size))[self._ranks.rank]
        return mine

    def _people(self, rows: Tensor) -> Tensor:
        """Return the patient number of samples, given their positions among the fold's training samples."""
        groups = self._data.groups
        return rows if groups is None else groups[self._data.splits[self._fold].train][rows]

    def step(self, batch: StepBatch, moments: Moments) -> tuple[OwnGradients, Moments]:
        """Compute what a step sends: gradients, or the difference that local steps make.

        Args:
            batch: samples of the step, read here.
            moments: of the site's own optimizer; empty without local steps.

        Returns:
            The gradients, and the moments after the step.

        Raises:
            ModelError: the network raised.
            NonFiniteError: the loss or a gradient holds NaN or infinity; names the parameter.
            DataError: a file can no longer be read.
        """
        plan, run = self._plan, self._run
        first = next(run.replica.model.train().parameters())
        like = torch.empty(0, dtype=first.dtype, device=first.device)  # not distributed, as `first` may be
        if not len(batch):
            return self._made(gather(plan.routes, {}, {}, like), 0.0), moments
        # torch.manual_seed formats a stack trace for each kind of device that is missing
        seeded = torch.default_generator.manual_seed if like.is_cpu else torch.manual_seed
        own = (self._ranks.rank,) if self._ranks.rank else ()  # dropout masks differ between parts of a batch
        seeded(derive(self._seed, "forward", run.step, *own))  # repeated whenever the batch is
        if self._spec.local is not None:
            dense, loss, moments = differences(self._spec, run, self._index, batch.batches(), moments, self._gradients)
            return self._made(gather(plan.routes, {}, dense, like), loss), moments
        with (
            run.replica.passes(batch.samples, self._largest),
            run.replica.capture(self._captured(plan.factor_names)) as capture,
        ):
            losses = list[Tensor]()
            self._backward(batch, capture, losses)
            loss = self._finite_loss(losses)
            names = {name for route in plan.routes for name in (route.name, route.bias) if name}
            found = self._ranks.pooled(gather(plan.routes, *self._shared(capture, names), like), loss)
        return self._made(*found), moments

    def flows(self) -> Flows | None:
        """Return the deltas of a fixed batch of the site's samples; None without samples.

        Raises:
            DataError: a file can no longer be read.
        """
        looked = self.prepared().looked
        if looked is None:
            return None
        ids, samples = looked
        if self._looked is None or self._looked[0] is not samples:  # files are read once per fold
            (batch,) = samples.batches([torch.arange(len(samples))])
            self._looked = samples, batch
        batch = self._looked[1]
        width = self._spec.output_shape[-1]
        try:
            with self._run.replica.evaluating() as model:
                outputs = outputs_of(model, batch.inputs, width, MOST_SAMPLES)
        except (ModelError, NonFiniteError):  # the step itself will report it
            return None
        values = self._deltas(outputs, batch).float().cpu()
        if values.ndim > 2:  # of each text's tokens; logs have room for one number
            values = torch.linalg.vector_norm(values, dim=(1, 2))[:, None]
        return Flows(ids, kinds_of(self._spec.task, batch.labels, values.shape[1]), values)

    def _made(self, gradients: Payload, loss: float) -> OwnGradients:
        """Return gradients in the plan's order, with norm and projections."""
        fold, step, signs = self._run.fold, self._run.replica.step + 1, None
        if self._spec.training.sends_projections:  # the same at all sites
            signs = derive(self._plan.seed, f"{fold}/{step}" if fold else step)
        return own_gradients(self._plan, gradients, loss, step, signs)

    def _gradients(self, batch: StepBatch) -> tuple[Mapping[str, Tensor], float]:
        """Return the gradients of the batch's mean loss, and the loss."""
        with self._run.replica.capture(self._captured(())) as capture:
            losses = list[Tensor]()
            self._backward(batch, capture, losses)
            trained = self._run.replica.trained
            _, dense = self._shared(capture, trained, ())
            own = tuple(dense.get(name, torch.zeros_like(value)) for name, value in trained.items())
            whole, loss = self._ranks.pooled(own, self._finite_loss(losses))
            matrices = {name: value for name, value in zip(trained, whole, strict=True) if isinstance(value, Tensor)}
            return matrices, loss

    def _captured(self, names: Container[str]) -> Container[str] | None:
        """Return the weights to capture, out of those sent as factors; all if units are limited per patient."""
        return names if self._sharing < 2 else None

    def _shared(
        self, capture: FactorCapture, names: Collection[str], travel: Container[str] | None = None
    ) -> tuple[dict[str, Factor], dict[str, Tensor]]:
        """Return the gradients of some parameters, scaled so that no unit of a layer is nearly one patient's.

        Called by all ranks in the same order.

        Args:
            capture: of the whole batch.
            names: of the parameters.
            travel: weights to return as factors; None for those of the plan.
        """
        factors, dense = capture.factors(names), capture.dense(names)
        if self._sharing < 2:
            return factors, dense
        travel = self._plan.factor_names if travel is None else travel
        for name, bias in capture.biases.items():
            if name not in names and bias not in names:
                continue
            each = capture.parts(name)
            people = [people for _, people in each if people is not None]
            left, given = None, (self._ranks.gathered, 1 if name in self._head else self._sharing)
            if len(people) < len(each) or not each:  # all ranks gather, also those that have not used the layer
                shared_units(torch.zeros(0, self._units[name]), NOBODY, *given)
            else:
                delta = torch.cat([factor.delta for factor, _ in each])
                left = shared_units(delta, torch.cat(people), *given)
            if left is not None:
                self.divided += name in names
                rows = left.split([factor.rows for factor, _ in each])
                each = [(Factor(own, factor.activation), None) for own, (factor, _) in zip(rows, each, strict=True)]
                if bias in dense:
                    dense[bias] = reduce(torch.add, [own.sum(0) for own in rows])
            if name not in travel:
                factors.pop(name, None)
                if name in names and each:
                    dense[name] = reduce(torch.add, [factor.gradient() for factor, _ in each])
            elif left is not None and name in names:
                factors[name] = concatenate([factor for factor, _ in each])
        return factors, dense

    def _backward(self, batch: StepBatch, capture: FactorCapture, losses: list[Tensor]) -> None:
        """Run the backward passes of a batch's mean loss, part by part; the last one completes the gradients.

        Args:
            batch: samples; a rank uses its share.
            capture: of their gradients.
            losses: called with each part's share of the loss, before its backward pass.
        """
        people = [part for parts in batch.people for part in parts]
        parts: Iterable[Batch] = itertools.islice(batch.parts, len(people))
        scales: Sequence[Tensor | None] | None = None  # computed in the only pass of a batch
        if self._sharing < 2:
            scales = [None] * len(people)
        elif len(people) != 1:
            parts = list(parts)
            scales = self._looked_ahead(parts, people)
        for place, part in enumerate(parts):
            capture.people = people[place]
            try:
                outputs, loss = self._forward(part)
                share = len(part.labels) / len(batch)
                losses.append((loss * share).detach())
                own = self._scales([outputs], [part], people)[0] if scales is None else scales[place]
                if own is not None:  # replaces the loss's gradient, in all layers
                    flows = self._deltas(outputs, part) * own
                    loss = (outputs.to(flows.dtype) * flows).sum() / len(part.labels)
                capture.backward(loss * share)
            except Exception as error:
                raise ModelError(error) from error

    def _looked_ahead(self, parts: Sequence[Batch], people: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the scales of all parts, from an additional forward pass."""
        go_back = self._run.replica.as_it_is()
        try:
            with torch.no_grad():
                outputs = [self._forward(part)[0] for part in parts]
        except Exception as error:
            raise ModelError(error) from error
        go_back()
        return self._scales(outputs, parts, people)

    def _scales(
        self, outputs: Sequence[Tensor], parts: Sequence[Batch], people: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Return the factors of each part's deltas; None where they are unchanged.

        Called by all ranks once per batch, because shares are of the whole batch.
        """
        device, width = next(self._run.replica.model.parameters()).device, self._spec.output_shape[-1]
        own = [self._deltas(one, part).double() for one, part in zip(outputs, parts, strict=True)]
        own = [one.abs().sum(1) if one.ndim > 2 else one for one in own]  # of all tokens of a text
        deltas = torch.cat([torch.zeros(0, width, dtype=torch.float64, device=device), *own])
        names = torch.cat([torch.zeros(0, dtype=torch.int64), *people])
        everybody, begin = self._ranks.gathered(torch.cat([deltas, names.to(deltas)[:, None]], 1))
        found = scales_of(everybody[:, :-1], everybody[:, -1].long(), self._sharing)
        if found is None:
            return [None] * len(parts)
        self.evened += 1
        mine: Sequence[Tensor] = found[begin : begin + len(deltas)].split([len(part.labels) for part in parts])
        return [one.unflatten(0, (-1, 1)) if out.ndim > 2 else one for one, out in zip(mine, outputs, strict=True)]

    def _finite_loss(self, losses: Sequence[Tensor]) -> float:
        """Return a step's loss.

        Raises:
            NonFiniteError: it is NaN or infinite.
        """
        value = 0.0
        for loss in losses:
            value += float(loss)
        if not math.isfinite(value):
            raise NonFiniteError(f"the training loss in step {self._run.replica.step + 1}")
        return value

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the network's outputs for a part of a batch, and its mean loss."""
        kind, weights = batch.labels.device.type, self.prepared().transform.fit.class_weights
        with torch.autocast(kind, torch.bfloat16, enabled=self._spec.training.autocast is not None):
            outputs: Tensor = self._run.replica.model(batch.inputs)
            return outputs, mean_loss(self._spec.task, outputs, self._known(batch), weights)

    def _deltas(self, outputs: Tensor, batch: Batch) -> Tensor:
        return deltas(self._spec.task, outputs, self._known(batch), self.prepared().transform.fit.class_weights)

    def _known(self, batch: Batch) -> Tensor:
        """Return what the network's outputs are compared with: labels, or a text's own tokens."""
        return batch.inputs if isinstance(self._spec.task, LanguageModel) else batch.labels
