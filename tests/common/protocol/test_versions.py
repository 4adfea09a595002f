"""Which versions run together, and what a wire's number stands for: bytes and digests that a change would alter."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import ProtocolError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.models import build_model
from rankdad.common.protocol import versions
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Body, Failure, Kind, Message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.protocol.versions import OUR_VERSION, WIRE, run_together
from rankdad.common.rounds.decision import Decision
from rankdad.common.rounds.hello import Hello, Roster
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step
from rankdad.common.spec import RunSpec
from tests.conftest import run_spec

ROOT = Path(__file__).parent.parent.parent.parent
FIXTURE = ROOT / "tests" / "fixtures" / f"wire-{WIRE}.json"
OF_OTHERS = 64  # the first kind of round that other packages have
SPECS = sorted(path for path in (ROOT / "simulations" / "specs").glob("*.json") if "run" in load_json(path))
RICH: dict[str, Any] = {
    "task": {"name": "regression"},
    "model": {"name": "linear"},
    "data": {"reader": "csv", "file": "t.csv", "label": "age", "group": "family", "features": ["a", "b"]},
    "evaluation": {"name": "k-fold", "folds": 3},
    "training": {"optimizer": {"name": "sgd", "lr": 0.1}, "solver": "steps"},
}
METHODS: dict[str, dict[str, Any]] = {
    "dsgd": {"name": "dsgd"},
    "rank-dad": {"name": "rank-dad", "rank": 3, "wire": "int8"},
    "powersgd": {"name": "powersgd", "rank": 2},
    "top-k": {"name": "top-k", "density": 0.1},
}


@pytest.mark.parametrize(
    ("own", "other", "wire", "together"),
    [
        ("0.1.0", "0.1.0", WIRE, True),
        ("0.1.0", "0.1.7", WIRE, True),
        ("0.1.0", "0.2.0", WIRE, True),
        ("0.2.0", "0.1.9", WIRE, True),
        ("0.1.0", "0.2.0rc1", WIRE, True),
        ("0.1.0", "0.2.0.dev3+local", WIRE, True),
        ("0.1.0", "0.2", WIRE, True),
        ("0.1.0", "0.3.0", WIRE, False),
        ("1.0.0", "0.9.0", WIRE, False),
        ("1.9.0", "2.0.0", WIRE, False),
        ("0.1.0", "0.1.0", WIRE + 1, False),
        ("0.1.0", "0.1.0", True, False),
        ("0.1.0", "0.1.0", None, False),
        ("0.1.0", None, WIRE, False),
        ("0.1.0", "", WIRE, False),
        ("0.1.0", "0.1.0\n", WIRE, False),
        ("0.1.0", "０.１.０", WIRE, False),
        ("0.1.0", "0." + "9" * 10_000, WIRE, False),
    ],
)
def test_versions_of_one_wire_run_together_if_they_are_neighbours(
    monkeypatch: pytest.MonkeyPatch, own: str, other: object, wire: object, together: bool
) -> None:
    monkeypatch.setattr(versions, "__version__", own)
    assert run_together(other, wire) is together


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_without_its_defaults_is_the_same_spec(path: Path) -> None:
    spec = validate(RunSpec, load_json(path)["run"])
    brief = spec.document()
    assert validate(RunSpec, brief) == spec
    assert validate(RunSpec, spec.model_dump(mode="json")).document() == brief
    assert validate(RunSpec, brief).sha256() == spec.sha256()


@pytest.mark.parametrize("changes", [{}, RICH, {"federation": {"sites": ["alpha", "beta"], "quorum": 1}}])
def test_a_field_at_its_default_does_not_travel_and_another_does(changes: dict[str, Any]) -> None:
    spec = run_spec(**changes)
    assert "seed" not in spec.document()
    other = validate(RunSpec, spec.document() | {"seed": 7})
    assert other.document() == spec.document() | {"seed": 7}
    assert other.sha256() != spec.sha256()


def plan_of(method: str) -> Plan:
    """Return a plan that no version of torch, and no initial weight, has a part in."""
    spec = run_spec(method=METHODS[method])
    return replace(make_plan(spec, build_model(spec)), torch="", weights_sha256="0" * 64)


def numbers(*shape: int) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    return ((torch.arange(count) * 7 % 31 - 15) / 8).reshape(shape)


def messages_of(plan: Plan) -> dict[str, tuple[Message, bool]]:
    """Messages to and from a site, by name."""
    digests: dict[str, Any] = {
        "spec_sha256": plan.spec_sha256,
        "plan_sha256": plan.sha256(),
        "weights_sha256": plan.weights_sha256,
    }
    samples = ((10, 2, 2),) * plan.folds
    fixed: dict[str, Any] = {"version": "0.1.0", "wire": WIRE}
    up: dict[str, tuple[Kind, Body]] = {
        "hello": (Kind.HELLO, Hello(**fixed, **digests, samples=samples, dropped=1, warnings=["one-class"])),
        "failure": (Kind.FAILURE, Failure(site="alpha", reason="data: file-missing", code="file-missing")),
    }
    down: dict[str, tuple[Kind, Body]] = {
        "roster": (Kind.HELLO, Roster(train=((10, 11, 12),) * plan.folds)),
        "decision": (Kind.DECISION, Decision(epoch=1, best=True, stop=False)),
    }
    for way, of in ((True, up), (False, down)):
        for number in range(len(plan.exchanges)):
            values = []
            for slot in plan.layout(number, up=way).slots:
                arrays = [numbers(slot.rows if slot.fixed else min(2, slot.rows), width) for width in slot.widths]
                values.append(Factor(*arrays) if len(arrays) == 2 else arrays[0])
            of[f"{'step' if way else 'update'} {number}"] = (Kind.STEP, Step(8.0, 0.5, 1.25, tuple(values)))
    made = {}
    for way, of in ((True, up), (False, down)):
        for name, (kind, body) in of.items():
            exchange = int(name[-1]) if kind is Kind.STEP else 0
            made[name] = (Message(kind, 5, body, exchange), way)
    return made


def of_this_wire() -> dict[str, Any]:
    """Return what every version of this wire agrees on."""
    plans = {method: plan_of(method) for method in METHODS}
    return {
        "specs": {"small": run_spec().sha256(), "rich": run_spec(**RICH).sha256()},
        "plans": {method: plan.sha256() for method, plan in plans.items()},
        "fields": {
            f"{about.kind!r}: {form.__name__}": sorted(form.model_fields)
            for about in sorted(ROUNDS.values(), key=lambda about: about.kind)
            if about.kind < OF_OTHERS and about.kind is not Kind.STEP
            for form in dict.fromkeys((about.up, about.down, about.region_up))
            if form is not None
        },
        "messages": {
            f"{method}: {name}": hashlib.sha256(pack(message, plan, up=up)).hexdigest()
            for method, plan in plans.items()
            for name, (message, up) in messages_of(plan).items()
        },
    }


def test_a_change_of_what_travels_is_a_new_wire() -> None:
    """If it fails, versions before cannot run with this one: raise WIRE, and run this file to write the fixture."""
    assert of_this_wire() == load_json(FIXTURE)


def test_a_hello_of_another_wire_is_refused_before_its_other_fields() -> None:
    plan = plan_of("dsgd")
    later: dict[str, Any] = {"version": "0.2.0", "wire": WIRE + 1, "new": 1}

    class Later(Hello, extra="allow"):
        pass

    body = Later.model_construct(**later)
    with pytest.raises(ProtocolError) as refused:
        unpack(pack(Message(Kind.HELLO, 0, body), plan, up=True), plan, up=True)
    assert (refused.value.code, refused.value.field) == ("version-differs", "d.version")


def test_the_version_is_not_in_the_plans_digest() -> None:
    plan = plan_of("dsgd")
    assert plan.version == OUR_VERSION["version"]
    assert replace(plan, version="9.9.9").sha256() == plan.sha256()
    assert replace(plan, protocol=WIRE + 1).sha256() != plan.sha256()


if __name__ == "__main__":
    FIXTURE.write_text(json.dumps(of_this_wire(), indent=1) + "\n")
    print(FIXTURE)
