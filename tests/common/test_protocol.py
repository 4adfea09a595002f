"""The wire: what is packed comes back, a body is as large as the plan says, and everything else is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import NonFiniteError, ProtocolError
from common.factors import Factor
from common.messages import Evaluation, Failure, Goodbye, Kind, Message, Step
from common.metrics import BINS
from common.models import build_model
from common.plan import Payload, Plan, make_plan
from common.protocol import HEADER_BYTES, body_limit, pack, step_bytes, unpack
from tests.conftest import run_spec


def plan_of(**changes: Any) -> Plan:
    spec = run_spec(
        **({"method": {"name": "rank-dad", "rank": 3}, "model": {"name": "mlp", "hidden": [16, 16]}} | changes)
    )
    return make_plan(spec, build_model(spec))


PLAN = plan_of()


def payload_of(plan: Plan, rows: int, seed: int = 0) -> Payload:
    generator = torch.Generator().manual_seed(seed)
    values: list[Factor | torch.Tensor] = []
    for route in plan.routes:
        out, columns = route.matrix
        if route.up is None:
            values.append(torch.randn(out, columns, generator=generator))
        else:
            kept = min(rows, route.up)
            values.append(
                Factor(torch.randn(kept, out, generator=generator), torch.randn(kept, columns, generator=generator))
            )
    return tuple(values)


def step_of(rows: int, seed: int = 0) -> Message:
    return Message(Kind.STEP, 7, Step(8.0, 0.5, 1.25, payload_of(PLAN, rows, seed)), 1)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(0, 3), seed=st.integers(0, 99))
def test_a_step_comes_back(rows: int, seed: int) -> None:
    sent = step_of(rows, seed)
    got = unpack(pack(sent, PLAN, up=True), PLAN, up=True)
    assert (got.kind, got.round, got.phase) == (Kind.STEP, 7, 1)
    assert isinstance(got.body, Step)
    assert isinstance(sent.body, Step)
    assert (got.body.weight, got.body.loss, got.body.norm) == (8.0, 0.5, 1.25)
    for a, b in zip(got.body.payload, sent.body.payload, strict=True):
        if isinstance(b, Factor):
            assert isinstance(a, Factor)
            assert torch.equal(a.delta, b.delta)
            assert torch.equal(a.activation, b.activation)
        else:
            assert isinstance(a, torch.Tensor)
            assert torch.equal(a, b)


def test_a_body_is_payload_rows_and_at_most_64_bytes() -> None:
    assert {route.up for route in PLAN.routes} == {3, None}
    factors = sum(route.up is not None for route in PLAN.routes)
    body = pack(Message(Kind.STEP, 2**31, step_of(3).body, 1), PLAN, up=True)
    assert 0 < len(body) - PLAN.payload_bytes(up=True) - 4 * factors <= HEADER_BYTES
    assert len(body) <= step_bytes(PLAN, up=True)
    assert len(pack(step_of(2), PLAN, up=True)) < len(body)


@pytest.mark.parametrize(("wire", "error"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_half_precision_halves_the_body_and_is_decoded_to_float32(wire: str, error: float) -> None:
    plan = plan_of(method={"name": "rank-dad", "rank": 3, "wire": wire})
    payload = payload_of(plan, 3)
    body = pack(Message(Kind.STEP, 0, Step(1.0, 0.0, 0.0, payload)), plan, up=True)
    assert plan.payload_bytes(up=True) * 2 == PLAN.payload_bytes(up=True)
    assert len(body) <= step_bytes(plan, up=True)
    got = unpack(body, plan, up=True).body
    assert isinstance(got, Step)
    for sent, found in zip(payload, got.payload, strict=True):
        for a, b in zip(_tensors(sent), _tensors(found), strict=True):
            assert b.dtype == torch.float32
            assert torch.allclose(a, b, rtol=error, atol=1e-6)


def _tensors(value: Factor | torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (value.delta, value.activation) if isinstance(value, Factor) else (value,)


def test_a_number_too_large_for_the_wire_is_not_sent_as_infinity() -> None:
    plan = plan_of(method={"name": "dsgd", "wire": "float16"})
    payload = tuple(torch.full(route.matrix, 1e5) for route in plan.routes)
    with pytest.raises(NonFiniteError, match="too large for the wire"):
        pack(Message(Kind.STEP, 0, Step(1.0, 0.0, 0.0, payload)), plan, up=True)


def test_non_finite_numbers_are_named_and_not_sent() -> None:
    payload = payload_of(PLAN, 3)
    assert isinstance(payload[0], Factor)
    payload[0].delta[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=PLAN.routes[0].name):
        pack(Message(Kind.STEP, 0, Step(1.0, 0.0, 0.0, payload)), PLAN, up=True)


def changed(message: bytes, **changes: Any) -> bytes:
    packed: bytes = msgpack.packb(msgpack.unpackb(message) | changes)
    return packed


NAN = torch.tensor([float("nan")]).numpy().tobytes()
GOOD = pack(step_of(3), PLAN, up=True)
BUFFER: bytes = msgpack.unpackb(GOOD)["b"]
EVALUATION = Evaluation(split="test", epoch=0, samples=3, loss=1.0, correct=2, scores=bytes(3 * 2 * BINS * 4))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (b"\x93\x01\x02\x03", "not a map"),
        (GOOD[:-1], "not msgpack"),
        (GOOD + b"\x00", "not msgpack"),
        (b"\x91" * 5000, "not msgpack"),
        (msgpack.packb({"k": 2, "x": msgpack.ExtType(1, b"os.system")}), "not msgpack"),
        (msgpack.packb({"k": 99}), "k: got 99"),
        (msgpack.packb({"k": True}), "keys"),
        (msgpack.packb({"k": 2}), "keys"),
        (changed(GOOD, extra=1), "keys"),
        (changed(GOOD, r=-1), "r: got -1"),
        (changed(GOOD, r=True), "r: got True"),
        (changed(GOOD, p=2), "p: got 2"),
        (changed(GOOD, w=-1.0), "w: got -1.0"),
        (changed(GOOD, w=1), "w: got 1"),
        (changed(GOOD, l=float("nan")), "l: got nan"),
        (changed(GOOD, g=float("inf")), "g: got inf"),
        (changed(GOOD, n=b""), "n: got 0 bytes"),
        (changed(GOOD, n=b"\xff" * 4 * 2), "rows for"),
        (changed(GOOD, b=BUFFER[:-4]), "b: got"),
        (changed(GOOD, b="text"), "b: got 'text'"),
        (changed(GOOD, b=NAN + BUFFER[4:]), "hold NaN"),
        (msgpack.packb({"k": 6, "r": 0, "p": 0, "d": {"weights_sha256": "../x"}}), "weights_sha256"),
        (msgpack.packb({"k": 6, "r": 0, "p": 0, "d": 3}), "d."),
        (msgpack.packb({"k": 7, "r": 0, "p": 0, "d": {"site": "a", "reason": "x" * 501}}), "reason"),
        (pack(Message(Kind.EVALUATION, 0, EVALUATION.model_copy(update={"scores": b"1234"})), PLAN, up=True), "scores"),
        (
            pack(Message(Kind.EVALUATION, 0, EVALUATION.model_copy(update={"scores": b"\xff" * 24000})), PLAN, up=True),
            "negative",
        ),
    ],
)
def test_nonsense_is_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as error:
        unpack(body, PLAN, up=True)
    assert error.value.status == 422
    assert len(str(error.value)) < 300


def test_a_body_beyond_the_plan_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ProtocolError) as error:
        unpack(bytes(body_limit(PLAN, up=True) + 1), PLAN, up=True)
    assert error.value.status == 413


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_mutations_of_a_real_message_never_raise_anything_else(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from([GOOD, pack(Message(Kind.EVALUATION, 0, EVALUATION), PLAN, up=True)])))
    for _ in range(data.draw(st.integers(1, 6))):
        body[data.draw(st.integers(0, min(80, len(body) - 1)))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        unpack(bytes(body), PLAN, up=True)


@pytest.mark.parametrize(
    "body", [Goodbye(weights_sha256="0" * 64), Failure(site="alpha", reason="no disk"), EVALUATION]
)
def test_control_messages_come_back(body: Any) -> None:
    kinds: dict[type, Kind] = {Goodbye: Kind.GOODBYE, Failure: Kind.FAILURE, Evaluation: Kind.EVALUATION}
    kind = kinds[type(body)]
    assert unpack(pack(Message(kind, 3, body), PLAN, up=True), PLAN, up=True).body == body
