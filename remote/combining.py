"""From the contributions to a round in a region to the region's own, for every kind of round. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from torch import Tensor

from rankdad.common.methods import Contribution, MethodState
from rankdad.common.methods.base import shares
from rankdad.common.metrics import Tally, empty
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.messages import (
    Body,
    Buffers,
    Decision,
    Evaluation,
    Kind,
    RegionGoodbye,
    Sketch,
    Squares,
    Step,
    Sums,
)
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds import paired
from rankdad.common.run.projections import least_norm, pooled_projections
from rankdad.common.run.seeds import derive
from rankdad.common.run.state import RunState
from rankdad.common.run.weight_sketch import distance
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import Node
from rankdad.remote.aggregation import decided, pooled_buffers
from rankdad.remote.children import bodies, ended, introduced
from rankdad.remote.rounds import Ready


def combine(
    spec: RunSpec, plan: Plan, node: Node, run: RunState, ready: Ready, state: MethodState
) -> tuple[Body, MethodState]:
    """Return what a region contributes to a round, and the method's state if that is applied.

    Args:
        spec: of the run.
        plan: of the run.
        node: the region's aggregator.
        run: where the run is.
        ready: contributions of one kind, of all of the region's children.
        state: of the method in this region.
    """
    messages = ready.messages
    if ready.kind is Kind.STEP:
        return _step(plan, node, run, ready.exchange, bodies(messages, Step), state)
    if ready.kind is Kind.HELLO:
        return introduced(node.children, messages), state
    if ready.kind is Kind.BUFFERS:
        return pooled_buffers(plan, bodies(messages, Buffers)), state
    if ready.kind is Kind.SUMS:
        sent = bodies(messages, Sums)
        return Sums(stage=sent[0].stage, values=Preparing(spec).joined(sent[0].stage, [s.values for s in sent])), state
    if ready.kind is Kind.EVALUATION:
        return _evaluation(spec, plan, bodies(messages, Evaluation)), state
    if ready.kind is Kind.PAIRED:
        compared = bodies(messages, Squares)
        values, samples = paired.combined(spec, [one.values for one in compared]), sum(one.samples for one in compared)
        return Squares(fold=compared[0].fold, samples=samples, values=values), state
    if ready.kind is Kind.DECISION:
        return decided(bodies(messages, Decision)), state
    if ready.kind is Kind.COMPARISON:
        return Sketch(weights=_furthest(run, [sent.weights for sent in bodies(messages, Sketch)])), state
    digests, sketches = ended(node.children, messages)
    digests[node.name] = run.replica.digest()
    return RegionGoodbye(weights_sha256=digests, sketch=_furthest(run, sketches)), state


def _step(
    plan: Plan, node: Node, run: RunState, exchange: int, steps: Sequence[Step], state: MethodState
) -> tuple[Step, MethodState]:
    """Return a region's part in one exchange: one weighted site's, whose norm is the root mean square of its members'.

    Source: arXiv 2102.09631, Algorithm 1 (the aggregator's part), once more below the aggregator.
    """
    contributions = [Contribution(step.weight, step.payload) for step in steps]
    total, parts = sum(step.weight for step in steps), shares(contributions)
    seed = derive(plan.seed, "region", node.name, run.rng_key)
    share = run.share(node.sites[0], int(total))
    payload, state = run.method.combine(exchange, contributions, share, state, seed)
    loss = sum(part * step.loss for part, step in zip(parts, steps, strict=True))
    size = math.hypot(*(math.sqrt(part) * step.norm for part, step in zip(parts, steps, strict=True)))
    projections = pooled_projections([step.projections for step in steps], parts)
    # What the members' wire has rounded up is rounded once more.
    return Step(total, loss, max(size, least_norm(projections)), payload, projections), state


def _furthest(run: RunState, sketches: Sequence[Tensor]) -> Tensor:
    """Return the sketch that is furthest from the region's own replica: the first of those that are equally far."""
    reference = run.replica.sketch()
    return max(sketches, key=lambda sketch: distance(reference, sketch))


def _evaluation(spec: RunSpec, plan: Plan, sent: Sequence[Evaluation]) -> Evaluation:
    """Return the sums of all tallies; of a reference that one of the members lacks, those of no samples."""
    first = sent[0]
    tallies = [one.tally for one in sent]
    guesses = [one.baseline for one in sent if one.baseline is not None]
    references = [
        _total(own) if all(map(_of_all, own, tallies)) else empty(spec.task, plan.grouped)
        for own in zip(*(one.references for one in sent), strict=True)
    ]
    return Evaluation(
        split=first.split,
        fold=first.fold,
        epoch=first.epoch,
        tally=_total(tallies),
        baseline=_total(guesses) if guesses else None,
        references=tuple(references),
    )


def _of_all(reference: Tally, tally: Tally) -> bool:
    return reference.samples == tally.samples


def _total(tallies: Sequence[Tally]) -> Tally:
    total: Tally = reduce(add, tallies)
    return total
