"""From the contributions to a round to its update, for every kind of round. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from rankdad.common.errors import NonFiniteError, RunFailedError
from rankdad.common.lowrank.factors import MAX_NORM, norm
from rankdad.common.methods import Contribution, MethodState
from rankdad.common.methods.base import shares
from rankdad.common.metrics import Tally, measured_on
from rankdad.common.preparation.coefficients import OWN, untold
from rankdad.common.protocol.messages import (
    Body,
    Buffers,
    Compared,
    Comparison,
    Decision,
    Evaluation,
    Farewell,
    Kind,
    PooledMetrics,
    RegionHello,
    Roster,
    Sketch,
    Squares,
    Step,
    Sums,
)
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds import paired
from rankdad.common.run.batches import idle
from rankdad.common.run.lateness import damped
from rankdad.common.run.projections import pooled_projections
from rankdad.common.run.repeats import equal_repeats
from rankdad.common.run.seeds import derive
from rankdad.common.run.state import RunState
from rankdad.common.run.weight_sketch import distance
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import is_exact
from rankdad.common.spec.tree import Node
from rankdad.remote.children import bodies, ended, introduced
from rankdad.remote.rounds import Ready


def aggregate(
    spec: RunSpec, plan: Plan, node: Node, run: RunState, ready: Ready, state: MethodState
) -> tuple[Body, MethodState]:
    """Return a round's update and the method's new state.

    Args:
        spec: of the run.
        plan: of the run.
        node: the aggregator above all.
        run: where the run is; its replica is what sites take over whose weights have drifted apart.
        ready: contributions of one kind, in the plan's order.
        state: of the method.

    Raises:
        RunFailedError: a fold has no samples to train on, or a candidate none to be validated with.
        NonFiniteError: what the sites' gradients add up to is too large.
    """
    messages, children = ready.messages, [node.children[place] for place in ready.places]
    if ready.kind is Kind.STEP:
        return _step(plan, run, ready, state)
    if ready.kind is Kind.HELLO:
        return _hello(spec, plan, introduced(children, messages)), state
    if ready.kind is Kind.BUFFERS:
        return pooled_buffers(plan, bodies(messages, Buffers)), state
    if ready.kind is Kind.SUMS:
        return _sums(bodies(messages, Sums)), state
    if ready.kind is Kind.EVALUATION:
        return _evaluation(spec, bodies(messages, Evaluation)), state
    if ready.kind is Kind.PAIRED:
        return Compared(fold=bodies(messages, Squares)[0].fold), state
    if ready.kind is Kind.DECISION:
        return decided(bodies(messages, Decision)), state
    if ready.kind is Kind.COMPARISON:
        return _comparison(spec, run, [sent.weights for sent in bodies(messages, Sketch)]), state
    digests, sketches = ended(children, messages)
    return Farewell(weights_sha256=digests, drift=_drift(run, sketches)), state


def _step(plan: Plan, run: RunState, ready: Ready, state: MethodState) -> tuple[Step, MethodState]:
    """Return the update of one exchange of the federated step; what is late comes behind the others, and weighs less.

    Source: arXiv 2102.09631, Algorithm 1 (the aggregator's part).
    """
    seed = derive(plan.seed, "aggregator", run.rng_key)
    steps = bodies([*ready.messages, *(late.message for late in ready.late)], Step)
    ages = [*(0 for _ in ready.messages), *(late.age for late in ready.late)]
    contributions = [
        Contribution(damped(step.weight, age), step.payload) for step, age in zip(steps, ages, strict=True)
    ]
    payload, state = run.method.aggregate(ready.exchange, contributions, state, seed)
    sizes = [norm(value) for value in payload]
    for slot, size in zip(plan.layout(ready.exchange, up=False).slots, sizes, strict=True):
        if not size < MAX_NORM:
            raise NonFiniteError(f"the pooled gradient of {slot.name}")
    total = math.fsum(contribution.weight for contribution in contributions)
    loss = sum(part * step.loss for part, step in zip(shares(contributions), steps, strict=True))
    projections = pooled_projections([step.projections for step in steps], shares(contributions))
    return Step(total, loss, math.hypot(*sizes), payload, projections), state


def _hello(spec: RunSpec, plan: Plan, hello: RegionHello) -> Roster:
    samples = [hello.samples[site] for site in plan.sites]
    train = tuple(tuple(own[fold][0] for own in samples) for fold in range(plan.folds))
    if problem := idle(spec, train):
        raise RunFailedError("aggregator", f"train: {problem}", code="preparation-impossible", field="train")
    for fold in range(plan.folds):
        if spec.place(fold)[1] is not None and not any(own[fold][1] for own in samples):
            name = spec.training_name(fold)
            raise RunFailedError(
                "aggregator", f"tuning: no site has samples to validate {name} with", code="no-samples", field="tuning"
            )
    equal = equal_repeats(hello.alike.values(), spec.folds_per_repeat)
    return Roster(train=train, exact=is_exact(spec, hello.warnings), equal=equal)


def _sums(sent: Sequence[Sums]) -> Sums:
    """Add up what preparation needs, site after site; of a site's own coefficients no other learns anything."""
    total: Tensor = reduce(add, (one.values for one in sent))
    return Sums(stage=sent[0].stage, values=untold(total) if sent[0].stage == OWN else total)


def decided(views: Sequence[Decision]) -> Decision:
    """Return what all together say at the end of an epoch."""
    best, stop = all(view.best for view in views), any(view.stop for view in views)
    return Decision(epoch=views[0].epoch, best=best, stop=stop)


def _comparison(spec: RunSpec, run: RunState, sketches: Sequence[Tensor]) -> Comparison:
    drift = _drift(run, sketches)
    return Comparison(drift=drift, replica=run.replica.parameters() if drift > spec.federation.drift else {})


def _drift(run: RunState, sketches: Sequence[Tensor]) -> float:
    """Return the largest distance of a site's weights from the aggregator's, relative to their size."""
    reference = run.replica.sketch()
    return max(distance(reference, sketch) for sketch in sketches)


def pooled_buffers(plan: Plan, sent: Sequence[Buffers]) -> Buffers:
    """Pool buffers: equal ones (masks) stay, real ones are averaged by training samples, counters take the largest.

    Where a number is not finite, as in a mask, it stands if it is the first site's.
    """
    total = sum(buffers.samples for buffers in sent)
    weights = [buffers.samples / total if total else 1 / len(sent) for buffers in sent]
    parts = torch.tensor(weights, dtype=torch.float64)
    pooled: dict[str, Tensor] = {}
    for slot in plan.buffers:
        values = torch.stack([buffers.values[slot.name] for buffers in sent])
        if bool((values == values[0]).all()):
            pooled[slot.name] = values[0]
        elif values.is_floating_point():
            mean = torch.tensordot(parts, values.double().nan_to_num(0.0, 0.0, 0.0), dims=1).to(values.dtype)
            pooled[slot.name] = torch.where(torch.isfinite(values).all(dim=0), mean, values[0])
        else:
            pooled[slot.name] = values.amax(dim=0)
    return Buffers(samples=total, values=pooled)


def _evaluation(spec: RunSpec, sent: Sequence[Evaluation]) -> PooledMetrics:
    total: Tally = reduce(add, (one.tally for one in sent))
    first = sent[0]
    metrics = measured_on(first.split, spec.task, spec.training.monitor, total)
    where: dict[str, Any] = {"split": first.split, "fold": first.fold, "epoch": first.epoch}
    if first.split == "test":
        tests = [(one.tally, one.baseline, *one.references) for one in sent if one.baseline is not None]
        where["scores"] = paired.pooled_scores(spec, first.fold, tests)
    return PooledMetrics.model_validate({**where, **asdict(metrics)})
