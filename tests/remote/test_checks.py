"""What no site can have sent is refused by name before it counts; the site sends the truth, and nothing has changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.data import SiteData
from rankdad.common.errors import ProtocolError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.metrics.monitoring import monitored
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.rounds.buffers import Buffers
from rankdad.common.rounds.evaluation import Evaluation
from rankdad.common.rounds.hello import Hello
from rankdad.common.rounds.step import Step
from rankdad.common.rounds.sums import Sums
from rankdad.common.spec.tasks import Classification
from rankdad.remote.aggregator import Aggregator, Answers
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import Entry, Record
from rankdad.remote.run_reader import reading
from rankdad.simulations import lockstep, tree
from tests.common.metrics.samples import draw, tallied
from tests.conftest import run_spec

Lie = tuple[str, Message]  # what the refusal says
MODEL = {"name": "factory", "factory": "tests.factories:masked"}
WILD = {"1.running_mean": -math.inf, "1.running_var": -1e-9, "1.num_batches_tracked": 2**63 - 1, "mask": math.nan}
TABLE = {"standardise": "federated"}


class Attacked(Aggregator):
    """An aggregator whose sites try every lie before they send the truth."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.told: set[str] = set()

    def take(self, site: str, body: bytes) -> Answers:
        message = unpack(body, self.plan, up=True)
        for said, lie in self._lies(message):
            held = self.barrier.holds(site)
            with pytest.raises(ProtocolError) as error:
                super().take(site, pack(lie, self.plan, up=True))
            named = said.format(site=site)
            assert (error.value.status, str(error.value)[: len(named)]) == (422, named)
            assert self.barrier.holds(site) == held
            self.told.add(said)
        return super().take(site, body)

    def _lies(self, message: Message) -> Iterator[Lie]:
        body = message.body
        changed: list[tuple[str, Any]] = []
        if isinstance(body, Step):
            due = "m: the weight: is of"
            changed = [(due, replace(body, weight=weight)) for weight in (1e12, body.weight + 0.5)]
            changed += [(due, replace(body, weight=0.0))] * (body.weight > 0 and not message.exchange)
            largest = 6e4 if self.plan.wire == "float16" else 3e18
            payload = tuple(_filled(value, largest) for value in body.payload)
            rows = any(len(_of(value)) for value in payload)
            changed += [("b: the gradient of ", replace(body, payload=payload))] * rows
        elif isinstance(body, Hello):
            for most in (0, 2**32 - 1):
                many = tuple((most, *fold[1:]) for fold in body.samples)
                changed.append(("d.samples: ", body.model_copy(update={"samples": many})))
            changed.append(("d.version: {site} is ", body.model_copy(update={"version": "1.0.0"})))
            changed.append(("d.weights_sha256: its init", body.model_copy(update={"weights_sha256": "0" * 64})))
        elif isinstance(body, Sums):
            huge = torch.where(body.values > 0, 1e299, body.values)
            changed.append(("d.values: ", body.model_copy(update={"values": huge})))
        elif isinstance(body, Buffers):
            changed.append(("d.samples: is of", body.model_copy(update={"samples": body.samples + 1})))
            for name, number in WILD.items():
                buffers = body.values | {name: torch.full_like(body.values[name], number)}
                said = f"d.values: {name} holds NaN, infinity or"
                changed.append((said, body.model_copy(update={"values": buffers})))
        elif isinstance(body, Evaluation):
            if body.references:
                changed += list(_false_references(body))
            outputs, labels = draw(self.plan.task, 1, 0)
            if body.split == "validation":
                one = monitored(self.plan.task, "loss", outputs, labels, torch.ones(1))
            else:
                one = tallied(self.plan.task, outputs, labels)
            for field in ("tally", *(["baseline"] if body.baseline else [])):
                more = getattr(body, field) + one
                changed.append((f"d.{field}: is of", body.model_copy(update={field: more})))
        for said, lie in changed:
            yield said, replace(message, body=lie)


def _false_references(body: Evaluation) -> Iterator[tuple[str, Evaluation]]:
    """Tallies of more samples than the site has, and of other labels."""
    first, *others = body.references
    other = tallied(Classification(classes=3), torch.zeros(first.samples, 3), torch.zeros(first.samples).long())
    for said, tallies in (
        ("d.references: local: is of", (first + first, *others)),
        ("d.references: local: has other labels than d.tally", (other, *others)),
        ("d.references: linear: has other labels than d.tally", (first, other)),
    ):
        yield said, body.model_copy(update={"references": tallies})


def _of(value: Factor | torch.Tensor) -> torch.Tensor:
    return value.delta if isinstance(value, Factor) else value


def _filled(value: Factor | torch.Tensor, size: float) -> Factor | torch.Tensor:
    if isinstance(value, Factor):
        return Factor(torch.full_like(value.delta, size), torch.full_like(value.activation, size))
    return torch.full_like(value, size)


STEPS = {"m: the weight: is of", "b: the gradient of "}
ALWAYS = {
    "d.samples: ",
    "d.version: {site} is ",
    "d.weights_sha256: its init",
    "d.tally: is of",
    "d.baseline: is of",
}
RUNS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "dsgd": ({}, set()),
    "dad": ({"method": {"name": "dad"}, "model": {"name": "mlp", "hidden": [64, 64]}}, set()),
    "edad": ({"method": {"name": "edad"}}, set()),
    "rank-dad": ({"method": {"name": "rank-dad", "rank": 2}}, set()),
    "powersgd": ({"method": {"name": "powersgd", "rank": 2}}, set()),
    "top-k": ({"method": {"name": "top-k", "density": 0.1, "wire": "int8"}}, set()),
    "float16": ({"method": {"name": "rank-dad", "rank": 2, "wire": "float16"}}, set()),
    "int8": ({"method": {"name": "rank-dad", "rank": 2, "wire": "int8"}}, set()),
    "even batches": ({"training": {"batches": "even", "accumulate": 2}}, set()),
    "buffers": (
        {"model": MODEL},
        {"d.samples: is of", *(f"d.values: {name} holds NaN, infinity or" for name in WILD)},
    ),
    "preparation": (
        {
            "task": {"name": "classification", "classes": 3, "class_weights": "balanced"},
            "preparation": TABLE,
            "evaluation": {"name": "k-fold", "folds": 2},
        },
        {"d.values: "},
    ),
    "references": (
        {
            "evaluation": {"name": "holdout", "references": ["local", "linear"]},
        },
        {
            "d.values: ",
            "d.references: local: is of",
            "d.references: local: has other labels than d.tally",
            "d.references: linear: has other labels than d.tally",
        },
    ),
    "regression": ({"task": {"name": "regression"}, "preparation": TABLE}, {"d.values: "}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_lies_are_named_and_the_run_ends_as_if_nobody_had_lied(
    tmp_path: Path, site_data: Callable[..., dict[str, SiteData]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    changes, said = RUNS[name]
    spec = run_spec(**changes | {"training": {"epochs": 1} | changes.get("training", {})})
    data = site_data(spec, (40, 30, 21))
    found: list[Attacked] = []

    def attacked(*arguments: Any, **options: Any) -> Aggregator:
        found.append(Attacked(*arguments, **options))
        return found[-1]

    allowed = [MODEL["factory"]]
    undisturbed = lockstep.run(spec, data, tmp_path / "undisturbed", allowed_factories=allowed)
    monkeypatch.setattr(tree, "Aggregator", attacked)
    results = lockstep.run(spec, data, tmp_path / "attacked", allowed_factories=allowed)
    assert results["alpha"].weights_sha256 == undisturbed["alpha"].weights_sha256
    assert found[0].told == STEPS | ALWAYS | said


@pytest.mark.slow
def test_what_is_refused_is_not_recorded_and_a_restart_goes_on(
    tmp_path: Path, site_data: Callable[..., dict[str, SiteData]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finite contribution once ended a run for good: each restart failed in the same round."""
    spec = run_spec(method={"name": "rank-dad", "rank": 2})
    data = site_data(spec)
    found: list[Attacked] = []

    def attacked(*arguments: Any, **options: Any) -> Aggregator:
        found.append(Attacked(*arguments, **options | {"ledger": LedgerOptions()}))
        return found[-1]

    monkeypatch.setattr(tree, "Aggregator", attacked)
    results = lockstep.run(spec, data, tmp_path / "run")
    plan = found[0].plan
    with reading(tmp_path / "run") as file:
        records = list(file.records())
    sent = [record for record in records if record.entry is Entry.CONTRIBUTION]
    rounds = [record.round for record in records if record.entry is Entry.UPDATE]
    assert [(record.round, record.site) for record in sent] == [(r, site) for r in rounds for site in range(3)]
    assert unpack(records[-1].body, plan, up=False).kind is Kind.GOODBYE
    assert isinstance(records[0], Record)
    assert len(results) == 3
