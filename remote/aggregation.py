"""From the contributions to a round to its update, for every kind of round. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import TypeVar

import torch
from torch import Tensor

from common.errors import NonFiniteError, RunFailedError
from common.factors import LARGEST_NORM, norm
from common.messages import (
    Body,
    Buffers,
    Decision,
    Evaluation,
    Farewell,
    Goodbye,
    Hello,
    Kind,
    Message,
    Pooled,
    Roster,
    Step,
)
from common.methods import Method, State, Weighted
from common.methods.base import shares
from common.metrics import Metrics, Tally, summarise
from common.plan import Plan
from common.protocol import pack_buffers, unpack_buffers, unpack_scores
from common.seeds import derive

B = TypeVar("B", bound=Body)


def aggregate(plan: Plan, method: Method, messages: Sequence[Message], state: State) -> tuple[Body, State]:
    """Return a round's update and the method's new state.

    Args:
        plan: of the run.
        method: of the run.
        messages: contributions of one kind, in the plan's order.
        state: of the method.

    Raises:
        RunFailedError: a site said hello with something else than the plan's.
    """
    first = messages[0]
    if first.kind is Kind.STEP:
        return _step(plan, method, first, _bodies(messages, Step), state)
    if first.kind is Kind.HELLO:
        return _hello(plan, _bodies(messages, Hello)), state
    if first.kind is Kind.BUFFERS:
        return _buffers(plan, _bodies(messages, Buffers)), state
    if first.kind is Kind.EVALUATION:
        return _evaluation(plan, _bodies(messages, Evaluation)), state
    if first.kind is Kind.DECISION:
        views = _bodies(messages, Decision)
        best, stop = all(view.best for view in views), any(view.stop for view in views)
        return Decision(epoch=views[0].epoch, best=best, stop=stop), state
    digests = [goodbye.weights_sha256 for goodbye in _bodies(messages, Goodbye)]
    return Farewell(weights_sha256=dict(zip(plan.sites, digests, strict=True))), state


def site_metrics(plan: Plan, evaluation: Evaluation) -> Metrics:
    """Return the metrics of one site's own sums."""
    return summarise(_tally(plan, evaluation))


def _step(plan: Plan, method: Method, first: Message, steps: Sequence[Step], state: State) -> tuple[Step, State]:
    seed = derive(plan.seed, "aggregator", first.round)
    contributions = [Weighted(step.weight, step.payload) for step in steps]
    payload, state = method.aggregate(first.phase, contributions, state, seed)
    sizes = [norm(value) for value in payload]
    for slot, size in zip(plan.layout(first.phase, up=False).slots, sizes, strict=True):
        if not size < LARGEST_NORM:
            raise NonFiniteError(f"the pooled gradient of {slot.name}")
    total = sum(step.weight for step in steps)
    loss = sum(part * step.loss for part, step in zip(shares(contributions), steps, strict=True))
    return Step(total, loss, math.hypot(*sizes), payload), state


def _hello(plan: Plan, hellos: Sequence[Hello]) -> Roster:
    expected = {
        "version": plan.version,
        "spec_sha256": plan.spec_sha256,
        "weights_sha256": plan.weights_sha256,
        "plan_sha256": plan.sha256(),
    }
    meaning = {
        "version": "its version of rankdad differs",
        "spec_sha256": "its spec differs",
        "weights_sha256": "its initial weights differ (another version of torch, or another model factory)",
        "plan_sha256": "its plan differs (another version of torch, or of the model)",
    }
    for site, hello in zip(plan.sites, hellos, strict=True):
        for field, value in expected.items():
            got = getattr(hello, field)
            if got != value:
                raise RunFailedError(site, f"{meaning[field]}: {field} is {got}, the aggregator has {value}")
        if hello.train == 0:
            raise RunFailedError(site, "train: it has no samples to train on")
    return Roster(train=[hello.train for hello in hellos])


def _buffers(plan: Plan, sent: Sequence[Buffers]) -> Buffers:
    """Pool buffers: equal ones (masks) stay, real ones are averaged by training samples, counters take the largest.

    Raises:
        RunFailedError: a site's buffer to be averaged holds NaN or infinity.
    """
    values = [unpack_buffers(buffers.values, plan) for buffers in sent]
    total = sum(buffers.samples for buffers in sent)
    parts = torch.tensor([buffers.samples / max(total, 1) for buffers in sent], dtype=torch.float64)
    pooled: dict[str, Tensor] = {}
    for slot in plan.buffers:
        own = [value[slot.name] for value in values]
        if all(torch.equal(value, own[0]) for value in own):
            pooled[slot.name] = own[0]
        elif own[0].is_floating_point():
            for site, value in zip(plan.sites, own, strict=True):
                if not bool(torch.isfinite(value).all()):
                    raise RunFailedError(site, f"its buffer {slot.name} holds NaN or infinity")
            pooled[slot.name] = torch.tensordot(parts, torch.stack(own).double(), dims=1).to(own[0].dtype)
        else:
            pooled[slot.name] = torch.stack(own).amax(dim=0)
    return Buffers(samples=total, values=pack_buffers(pooled, plan))


def _evaluation(plan: Plan, sent: Sequence[Evaluation]) -> Pooled:
    total = reduce(add, (_tally(plan, evaluation) for evaluation in sent))
    return Pooled.model_validate({"split": sent[0].split, "epoch": sent[0].epoch, **asdict(summarise(total))})


def _tally(plan: Plan, evaluation: Evaluation) -> Tally:
    scores = unpack_scores(evaluation.scores, plan.classes)
    return Tally(evaluation.samples, evaluation.loss, evaluation.correct, scores)


def _bodies(messages: Sequence[Message], kind: type[B]) -> list[B]:
    bodies: list[B] = [message.body for message in messages if isinstance(message.body, kind)]
    assert len(bodies) == len(messages), "the barrier lets one kind into a round"
    return bodies
