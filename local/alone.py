"""Trains the run's model at one site alone, as a reference. It never leaves the site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rankdad.common.data import SiteData
from rankdad.common.data.folds import Split
from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError
from rankdad.common.methods import MethodState
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.rounds.base import Collected, Ready
from rankdad.common.rounds.hello import Hello
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import ALONE, Holdout, RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.local.contributions import Contributions
from rankdad.local.passes import Passes

Tested = tuple[int, Tensor]  # fold, outputs for its test samples (numbers in the label's unit)


def alone_spec(spec: RunSpec, site: str) -> RunSpec:
    """Return the run of one site: full gradients, no local steps, and no model to keep.

    Every batch is a step of the site's own optimizer, which keeps its moments.
    """
    document = without_ranks(spec.at(site))
    document["federation"] |= {"sites": [site]} | ALONE
    document["method"] = {"name": "dsgd", "wire": spec.training.dtype}
    document["evaluation"]["references"] = []
    if not isinstance(spec.evaluation, Holdout):
        document["evaluation"]["refit"] = False
    return validate(RunSpec, document)


def without_ranks(spec: RunSpec) -> dict[str, Any]:
    """Return the run as JSON without the choice of ranks and recordings that full gradients do not have."""
    tuning = spec.tuning and spec.tuning.model_dump(mode="json", exclude={"rank"})
    if spec.tuning and len(spec.tuning.candidates) == len(spec.tuning.rank):
        spec, tuning = spec.with_settings(spec.candidates[0]), None
    document = spec.model_dump(mode="json") | {"tuning": tuning}
    document["training"]["solver"] = spec.solver  # it may depend on the method
    document["record"] |= {"spectra": 0, "rounds": []}
    return document


def own_splits(spec: RunSpec, alone: RunSpec, splits: Sequence[Split]) -> tuple[Split, ...]:
    """Return the splits for a run without candidates of ranks.

    Args:
        spec: the federation's run.
        alone: the run of one site.
        splits: of the federation's.
    """
    found, each = list[Split](), 1 + len(spec.candidates)
    for model in range(alone.models):
        tried, last = splits[model * each], splits[(model + 1) * each - 1]
        if alone.candidates or not spec.candidates:
            found += [*[tried] * len(alone.candidates), last]
        else:
            found.append(Split(tried.train, tried.validation, last.test))
    return tuple(found)


def train_alone(spec: RunSpec, data: SiteData, model: nn.Module, fold: int = 0) -> Iterator[Tested | None]:
    """Train on one site's samples, fold after fold; every round has the site's own message as its update.

    Args:
        spec: as `alone_spec` makes it.
        data: the site's, with the splits of this run.
        model: with the run's initial weights; changed in place.
        fold: first model to train, from 0.

    Yields:
        None after every step; a fold and its test outputs after its test.

    Raises:
        RankdadError: a fold has nothing to train on, or the training diverges.
    """
    tested: list[Tested] = []
    replica = Replica(spec, model=model)
    plan = make_plan(spec, model)
    run = RunState(spec, plan, replica)

    def test(at: int, outputs: Tensor) -> None:
        if spec.tests(at):
            tested.append((spec.place(at)[0], outputs))

    passes, orders = Passes(spec, plan, data, run, 0), dict[int, Mapping[str, int]]()
    contributions = Contributions(spec, plan, data, run, 0, passes.prepared, test)
    begun = False
    while (due := run.due) is not None and not run.over:
        if due.kind not in (Kind.HELLO, Kind.SUMS) and not begun:
            run.skip_to(fold * (1 + len(spec.candidates)))
            begun = True
            continue
        if due.kind is Kind.STEP and passes.epoch not in orders:
            orders = {passes.epoch: passes.start().drawn}
        body = _step(passes, orders[passes.epoch]) if due.kind is Kind.STEP else contributions.body(due)
        run.follow(_update(spec, plan, run, Message(due.kind, due.round, body, due.exchange)))
        if due.kind is Kind.STEP:
            yield None
        while tested:
            yield tested.pop()


def _step(passes: Passes, order: Mapping[str, int]) -> Step:
    batch = passes.batch(order)
    (own, _), weight = passes.step(batch, {}), float(len(batch))
    assert own is not None
    return Step(weight, own.loss, own.norm, own.gradients, own.projections)


def _update(spec: RunSpec, plan: Plan, run: RunState, sent: Message) -> Message:
    """Return the update that one site's contribution amounts to."""
    if isinstance(sent.body, Hello):
        if not all(train for train, *_ in sent.body.samples):
            raise RankdadError("there are no samples to train on in one of the folds", code="no-samples")
        # Nothing is sent, and columns that are constant here may vary at other sites.
        sent = replace(sent, body=sent.body.model_copy(update={"warnings": [], "alike": ()}))
    ready = Ready(sent.kind, sent.round, sent.exchange, (0,), (sent,), (0,), frozenset(), 0.0)
    here = Collected(spec, plan, spec.federation.nodes[TOP], run, ready, MethodState())
    body, _ = ROUNDS[sent.kind].aggregate(here)
    return replace(sent, body=body)
