"""Sparse matrices: which entries are chosen, how their places travel, and what is refused of what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdad.common.errors import NonFiniteError, ProtocolError
from rankdad.common.lowrank.routes import Payload, scatter
from rankdad.common.lowrank.sparse import CHUNK, decode_places, encode_places, entries_of, largest, placed, sparse
from rankdad.common.methods import Contribution, Method, MethodState
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.step import Step
from tests.common.lowrank.steps import (
    BATCHES,
    TOLERANCE,
    assert_equal,
    batch_of,
    exchange,
    matrix_of,
    pooled_gradients,
    prepare,
    site_gradients,
    site_step,
)
from tests.conftest import examples, sampled

SHAPES = st.one_of(
    st.tuples(st.integers(1, 40), st.integers(1, 40)), st.sampled_from([(64, 64), (17, 241), (241, 17), (90, 91)])
)


def chosen(matrix: Tensor, density: float) -> list[int]:
    """The same by sorting: of each chunk the largest, of equal ones the first."""
    flat = matrix.flatten().tolist()
    chunks = math.ceil(len(flat) / CHUNK)
    sizes = [len(flat) // chunks + (chunk < len(flat) % chunks) for chunk in range(chunks)]
    kept, at, found = max(1, round(density * len(flat) / chunks)), 0, list[int]()
    for size in sizes:
        order = sorted(range(at, at + size), key=lambda place: -abs(flat[place]))
        found += sorted(order[:kept])
        at += size
    return found


@settings(max_examples=examples(60))
@given(
    shape=SHAPES,
    density=st.floats(1e-3, 0.9),
    seed=st.integers(0, 99),
    levels=st.sampled_from([1, 3, 1000]),
    wire=st.sampled_from(["float32", "float64", "bfloat16", "float16", "int8", "int4", "int2"]),
)
def test_the_largest_of_every_chunk_travel_and_ties_go_to_the_first(
    shape: tuple[int, int], density: float, seed: int, levels: int, wire: str
) -> None:
    entries = entries_of(shape, density)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    matrix = (noise * levels).round() / levels
    values, places = largest(matrix, entries)
    mask = placed(torch.ones_like(values), places, entries, shape)
    assert mask.flatten().nonzero().flatten().tolist() == chosen(matrix, density)
    data = encode_places(places, entries).numpy().tobytes()
    assert len(data) == entries.place_bytes
    assert torch.equal(decode_places(data, entries), places)
    assert 8 * len(data) < entries.count * (math.log2(entries.size / entries.kept) + 3) + 8
    sent, decoded = sparse(matrix, entries, wire)
    assert torch.equal(sent, matrix * mask)
    assert torch.equal(largest(sent, entries)[1], places), "the codec, which chooses again, finds the same"
    assert not bool((decoded * (1 - mask)).any())


@settings(max_examples=examples(100))
@given(shape=SHAPES, density=st.floats(1e-3, 0.9), data=st.data())
def test_any_bytes_are_places_or_refused(shape: tuple[int, int], density: float, data: st.DataObject) -> None:
    entries = entries_of(shape, density)
    size = entries.place_bytes
    try:
        places = decode_places(data.draw(st.binary(min_size=size, max_size=size)), entries)
    except ValueError:
        return
    assert places.shape == (entries.chunks, entries.kept)
    assert bool((places[:, 1:] > places[:, :-1]).all())
    assert int(places.min()) >= 0
    placed(torch.ones(1, entries.count), places, entries, shape)


def swapped(places: Tensor) -> Tensor:
    """Two with the same high bits, so that the bitmap stays as it was."""
    return torch.cat([places[:, :2].flip(1), places[:, 2:]], dim=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda places: torch.cat([places[:, :1], places[:, :1], places[:, 2:]], dim=1), "repeated or unsorted"),
        (swapped, "repeated or unsorted"),
        (lambda places: torch.cat([places[:-1], torch.tensor([[0, 1, 2048]])]), "one beyond its chunk's end"),
    ],
)
def test_places_that_no_site_chooses_are_refused_and_named(change: Callable[[Tensor], Tensor], said: str) -> None:
    """4097 numbers are two chunks, of 2049 and of 2048."""
    plan, _, _ = prepare({"name": "top-k", "density": 3 / 2048.5}, "float32", hidden=(241, 17))
    (slot,) = [slot for slot in plan.layout(0, up=True).slots if slot.name == "3.weight"]
    entries = slot.entries
    assert entries is not None
    assert (entries.chunks, entries.size, entries.full, entries.kept) == (2, 2049, 1, 3)
    places = torch.tensor([[0, 1, 2048], [0, 1, 2047]])
    values = torch.tensor([[3.0, 2.0, 1.0, 3.0, 2.0, 1.0]])
    payload = tuple(
        placed(values, places, entries, route.matrix) if route.name == "3.weight" else torch.zeros(route.matrix)
        for route in plan.routes
    )
    body = pack(Message(Kind.STEP, 0, Step(1.0, 0.5, 1.0, payload)), plan, up=True)
    good = encode_places(places, entries).numpy().tobytes()
    assert body.count(good) == 1
    assert unpack(body, plan, up=True).kind is Kind.STEP
    for bad, reason in (
        (encode_places(change(places), entries).numpy().tobytes(), said),
        (good[:-2] + bytes(2), r"\d in chunk 2, expected 3"),
        (bytes(len(good)), r"0 in chunk 1, expected 3"),
        (good[:-1] + b"\xff", "bits after the last"),
    ):
        with pytest.raises(ProtocolError, match=rf"b: the places of 3\.weight: {reason}") as error:
            unpack(body.replace(good, bad), plan, up=True)
        assert error.value.status == 422


def on_the_wire(payload: Payload, plan: Plan, *, up: bool) -> Payload:
    body = unpack(pack(Message(Kind.STEP, 0, Step(1.0, 0.0, 0.0, payload)), plan, up=up), plan, up=up).body
    assert isinstance(body, Step)
    return body.payload


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_entries_are_the_pooled_gradient(dtype: str) -> None:
    """Of density 1 everything travels dense; just below that all but the smallest entries arrive."""
    for density, tolerance in ((1.0, TOLERANCE[dtype]), (0.85, 0.05)):
        plan, replica, method = prepare({"name": "top-k", "density": density}, dtype)
        assert any(route.entries for route in plan.routes) == (density < 1)
        batches = [batch_of(size, i, dtype) for i, size in enumerate(BATCHES)]
        gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
        update, _, _ = exchange(method, gradients, [MethodState(), MethodState(), MethodState()], MethodState())
        assert_equal(scatter(plan.routes, update), pooled_gradients(replica, batches), tolerance)


@pytest.mark.parametrize(
    ("wire", "dtype"), sampled([(w, d) for w in ("int8", "float32", "int4", "int2") for d in TOLERANCE], every=4)
)
def test_feedback_telescopes_through_the_codec(wire: str, dtype: str) -> None:
    """Σ applied + what aggregator and sites keep = Σ pooled gradients, though shares change and a site runs out."""
    plan, replica, method = prepare({"name": "top-k", "density": 0.02, "wire": wire}, dtype)
    assert {"1.weight", "3.weight", "5.weight"} <= {route.name for route in plan.routes if route.entries}
    states, aggregator = [MethodState(), MethodState(), MethodState()], MethodState()
    pooled, applied = (dict.fromkeys(replica.trained, torch.zeros((), dtype=torch.float64)) for _ in range(2))
    for step in range(16):
        sizes = ((8, 8, 8), (8, 3, 5), (1, 8, 2), (8, 1, 0))[step % 4]
        batches = [batch_of(size, 10 * step + i, dtype) for i, size in enumerate(sizes)]
        gradients = [(float(len(batch[1])), site_gradients(plan, replica, batch)) for batch in batches]
        steps = [
            method.step(gradient, weight / sum(sizes), state, step)
            for (weight, gradient), state in zip(gradients, states, strict=True)
        ]
        sent = [on_the_wire(next(one), plan, up=True) for one in steps]
        contributions = [(weight, payload) for (weight, _), payload in zip(gradients, sent, strict=True)]
        update, aggregator = aggregated(method, contributions, aggregator)
        update = on_the_wire(update, plan, up=False)
        for place, one in enumerate(steps):
            before = states[place]
            with pytest.raises(StopIteration) as end:
                one.send(update)
            states[place] = end.value.value
            assert sizes[place] or states[place].residuals is before.residuals
        for name, gradient in pooled_gradients(replica, batches).items():
            pooled[name] = pooled[name] + gradient.double()
        for name, gradient in scatter(plan.routes, update).items():
            applied[name] = applied[name] + gradient.double()
    for route in plan.routes:
        residuals = [state.residuals.get(route.name) for state in [*states, aggregator]]
        left = pooled[route.name] - applied[route.name]
        kept = torch.zeros_like(left)
        for residual in residuals:
            kept += 0 if residual is None else matrix_of(residual).reshape(left.shape)
        assert (left - kept).norm() <= 1e-5 * left.norm() + 1e-5
        if route.entries:
            assert left.norm() > 0.01 * pooled[route.name].norm(), "much is left, and nothing is lost"


def aggregated(method: Method, sent: list[tuple[float, Payload]], state: MethodState) -> tuple[Payload, MethodState]:
    update, state = method.aggregate(0, [Contribution(*one) for one in sent], state, 0)
    return update, state


@pytest.mark.parametrize(("decay", "share"), [(1.0, 1.0), (0.9, 0.5)])
def test_a_residual_decays_by_what_the_spec_says(decay: float, share: float) -> None:
    """Without any gradient only the residual is sent, of which `decay` is left, in units of the site's share."""
    plan, replica, method = prepare({"name": "top-k", "density": 0.01, "decay": decay}, "float64")
    at = next(i for i, route in enumerate(plan.routes) if route.name == "3.weight")
    residual = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = site_gradients(plan, replica, batch_of(8, 0, "float64"))
    nothing = tuple(torch.zeros_like(matrix_of(value)) for value in gradients)
    payload, state = site_step(method, nothing, share, MethodState({"3.weight": residual}), 0)
    sent = matrix_of(payload[at])
    assert int((sent != 0).sum()) == 41
    assert torch.allclose(sent[sent != 0], decay / share * residual[sent != 0])
    assert torch.allclose(matrix_of(state.residuals["3.weight"]), decay * residual * (sent == 0))


def test_without_feedback_nothing_is_kept_and_nan_is_named() -> None:
    plan, replica, method = prepare({"name": "top-k", "feedback": "none", "wire": "int8"}, "float32")
    gradients = site_gradients(plan, replica, batch_of(8, 0, "float32"))
    _, states, aggregator = exchange(method, [(1.0, gradients)], [MethodState()], MethodState())
    assert not states[0].residuals
    assert not aggregator.residuals
    at = next(i for i, route in enumerate(plan.routes) if route.name == "3.weight")
    matrix_of(gradients[at])[1, 1] = float("nan")
    with pytest.raises(NonFiniteError, match=r"3\.weight"):
        next(method.step(gradients, 0.5, MethodState(), 0))
