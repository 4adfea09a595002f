"""What honest sites send of random projections is never refused, whatever gradients, wires and regions do to it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.methods import MethodState
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.rounds.base import Collected, Ready
from rankdad.common.rounds.checks import Checks
from rankdad.common.rounds.hello import Roster
from rankdad.common.rounds.step import Step, StepRound
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.local.own_gradients import OwnGradients, own_gradients
from tests.conftest import examples, run_spec

OUT, COLUMNS = 2, 64
PAIR = ("alpha", "beta")


@cache
def run_of(wire: str) -> tuple[RunSpec, Plan, RunState]:
    optimizer = {"name": "adam", "lr": 0.01, "second_moment": "factored"}
    spec = run_spec(
        task={"name": "classification", "classes": OUT},
        model={"name": "mlp", "hidden": []},
        data={"shape": [COLUMNS]},
        method={"name": "rank-dad", "rank": 2, "wire": wire},
        training={"dtype": "float64" if wire == "float64" else "float32", "optimizer": optimizer},
        federation={"sites": ["alpha", "beta", "gamma"], "regions": {"north": list(PAIR)}},
    )
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    run = RunState(spec, plan, replica)
    run.follow(Message(Kind.HELLO, 0, Roster(train=((8, 8, 8),))))
    return spec, plan, run


def own(plan: Plan, value: Matrix) -> OwnGradients:
    """What a site makes of a gradient."""
    like = value.delta if isinstance(value, Factor) else value
    return own_gradients(plan, (value, like.new_zeros(OUT)), 0.0, 1, derive(plan.seed, 1))


def gradient_of(form: str, level: int, scale: float, seed: int, dtype: torch.dtype) -> Matrix:
    """A gradient as sites have them.

    Args:
        form: "random"; "aligned", whose two rows are alike but for a sign, as those of two classes are; "cancelled", of
            samples that add up to nothing but rounding.
        level: of "aligned": how far magnitudes are below the largest, in quarters of an octave that are rounded up.
        scale: of its numbers.
        seed: of what is random.
        dtype: of its numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    if form == "cancelled":
        delta = torch.randn(8, OUT, generator=generator).to(dtype)
        same = torch.randn(1, COLUMNS, generator=generator).to(dtype)
        return Factor(scale * (delta - delta.mean(0)), same.expand(8, COLUMNS).contiguous())
    columns = torch.full((COLUMNS,), 2 ** (-(2 * level + 1) / 8 + 1e-5), dtype=dtype)
    columns[0] = 1.0
    rows = torch.tensor([[1.0], [1.0 - 2 * (seed % 2)]], dtype=dtype)
    random = torch.randn(OUT, COLUMNS, generator=generator).to(dtype)
    return scale * (random if form == "random" else rows * columns)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(
    forms=st.tuples(*[st.tuples(st.sampled_from(["random", "aligned", "cancelled"]), st.integers(0, 3))] * 2),
    scale=st.integers(-46, 14).map(lambda power: 5 * 10.0**power),
    wire=st.sampled_from(["float32", "float64", "bfloat16", "float16", "int8", "int4", "int2"]),
    seed=st.integers(0, 999),
)
def test_what_sites_and_regions_send_is_no_longer_than_the_norm(
    forms: tuple[tuple[str, int], ...], scale: float, wire: str, seed: int
) -> None:
    spec, plan, run = run_of(wire)
    node, top, messages = spec.federation.nodes["north"], spec.federation.nodes[TOP], list[Message]()
    dtype = torch.float64 if wire == "float64" else torch.float32
    nothing = tuple(torch.zeros(slot.rows, *slot.widths) for slot in plan.layout(0, up=True).slots)
    for site, (form, level) in zip(PAIR, forms, strict=True):
        made = own(plan, gradient_of(form, level, scale, seed, dtype))
        step = Message(Kind.STEP, 1, Step(8.0, 0.0, made.norm, nothing, made.projections))
        messages.append(unpack(pack(step, plan, up=True), plan, up=True))
        StepRound().check(Checks(spec, plan, run, node), site, messages[-1], 0)
    ready = Ready(Kind.STEP, 1, 0, (0, 1), tuple(messages), (0, 0), frozenset(), 0.0)
    body, _ = StepRound().combine(Collected(spec, plan, node, run, ready, MethodState()))
    joined = pack(Message(Kind.STEP, 1, body), plan, up=True, region=True)
    StepRound().check(Checks(spec, plan, run, top), "north", unpack(joined, plan, up=True, region=True), 0)
