"""The wire: what is packed comes back, a body is as large as the plan says, and everything else is refused."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.errors import NonFiniteError, ProtocolError, RankdadError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Payload
from rankdad.common.lowrank.wire import as_received, decode, encode, is_lossless, wire_bytes
from rankdad.common.metrics.monitoring import monitored
from rankdad.common.metrics.tally_codec import pack_tally, tally_bytes
from rankdad.common.models import build_model
from rankdad.common.projections import Projections
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.message_sizes import body_bytes, body_limit
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.protocol.versions import WIRE
from rankdad.common.rounds.evaluation import Evaluation, PooledMetrics
from rankdad.common.rounds.goodbye import Goodbye
from rankdad.common.rounds.scores import scores_shape
from rankdad.common.rounds.step import Step
from rankdad.common.run.weight_sketch import PARTS
from tests.common.metrics.samples import tallied
from tests.conftest import examples, run_spec, sampled


def plan_of(**changes: Any) -> Plan:
    spec = run_spec(
        **({"method": {"name": "rank-dad", "rank": 3}, "model": {"name": "mlp", "hidden": [16, 16]}} | changes)
    )
    return make_plan(spec, build_model(spec))


PLAN = plan_of()


def payload_of(plan: Plan, rows: int, seed: int = 0, phase: int = 0, *, up: bool = True) -> Payload:
    """Random numbers in every slot of a layout, so many rows where they are free."""
    generator = torch.Generator().manual_seed(seed)
    values: list[Factor | torch.Tensor] = []
    for slot in plan.layout(phase, up=up).slots:
        kept = slot.rows if slot.fixed else min(rows, slot.rows)
        arrays = [torch.randn(kept, width, generator=generator) for width in slot.widths]
        values.append(Factor(*arrays) if len(arrays) == 2 else arrays[0])
    return tuple(values)


def step_of(rows: int, seed: int = 0) -> Message:
    return Message(Kind.STEP, 7, Step(8.0, 0.5, 1.25, payload_of(PLAN, rows, seed)))


@settings(max_examples=examples(30))
@given(rows=st.integers(0, 3), seed=st.integers(0, 99))
def test_a_step_comes_back(rows: int, seed: int) -> None:
    sent = step_of(rows, seed)
    got = unpack(pack(sent, PLAN, up=True), PLAN, up=True)
    assert (got.kind, got.round, got.exchange) == (Kind.STEP, 7, 0)
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


METHODS: list[dict[str, Any]] = [
    {"name": "dsgd"},
    {"name": "dad"},
    {"name": "edad"},
    {"name": "rank-dad", "rank": 3},
    {"name": "powersgd", "rank": 3},
    {"name": "top-k", "density": 0.1},
]


WIRES = ["float32", "float64", "bfloat16", "float16", "int8", "int4", "int2"]
REFUSED = {(name, wire) for name in ("dsgd", "dad", "edad", "powersgd") for wire in ("int4", "int2")} | {
    ("edad", "int8")
}


@pytest.mark.parametrize(
    ("method", "wire"),
    sampled([(m, w) for m in METHODS for w in WIRES if (m["name"], w) not in REFUSED], every=3),
)
def test_a_body_has_the_size_that_the_plan_predicts_in_every_exchange(method: dict[str, Any], wire: str) -> None:
    """Exactly, whatever the round, with all rows; fewer rows are fewer bytes; the header is 64 bytes at most."""
    plan = plan_of(method=method | {"wire": wire})
    assert len(plan.exchanges) == 1 + (method["name"] == "powersgd")
    for phase in range(len(plan.exchanges)):
        for up in (True, False):
            payload = payload_of(plan, 10**6, 0, phase, up=up)
            layout = plan.layout(phase, up=up)
            for round_ in (0, 2**31):
                body = pack(Message(Kind.STEP, round_, Step(1.0, 0.5, 2.0, payload), phase), plan, up=up)
                assert len(body) == body_bytes(plan, phase, up=up)
                assert len(body) - layout.payload_bytes(wire) - 4 * layout.variable <= 64
                got = unpack(body, plan, up=up)
                assert (got.round, got.exchange) == (round_, phase)
            if layout.variable:
                short = Step(1.0, 0.5, 2.0, payload_of(plan, 1, 0, phase, up=up))
                assert len(pack(Message(Kind.STEP, 0, short, phase), plan, up=up)) < len(body)


def test_a_number_too_large_for_the_wire_is_not_sent_as_infinity() -> None:
    plan = plan_of(method={"name": "dsgd", "wire": "float16"})
    payload = tuple(torch.full(route.matrix, 1e5) for route in plan.routes)
    with pytest.raises(RankdadError, match=r"the gradient of 1\.weight is too large for float16"):
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


ROUND = bytes(8)
NAN = torch.tensor([float("nan")]).numpy().tobytes()
GOOD = pack(step_of(3), PLAN, up=True)
BUFFER: bytes = msgpack.unpackb(GOOD)["b"]
SCORES = torch.tensor([[2.0, 0.5, 0.1], [0.3, 0.2, 0.9], [0.3, 1.2, 0.9]])
TALLY = tallied(PLAN.task, SCORES, torch.tensor([0, 1, 1]))
MONITORED = pack_tally(monitored(PLAN.task, "loss", SCORES, torch.tensor([0, 1, 1]), torch.ones(3)))
EVALUATION = Evaluation(split="test", fold=0, epoch=0, tally=TALLY, baseline=TALLY)


def evaluation(**changes: Any) -> bytes:
    document = msgpack.unpackb(pack(Message(Kind.EVALUATION, 0, EVALUATION), PLAN, up=True))
    packed: bytes = msgpack.packb(document | {"d": document["d"] | changes})
    return packed


def hello(**changes: Any) -> bytes:
    digest = "0" * 64
    fields = {"version": "0.1.0", "wire": WIRE, "spec_sha256": digest, "plan_sha256": digest, "weights_sha256": digest}
    body = fields | {"samples": bytes(12), "dropped": 0, "warnings": []} | changes
    packed: bytes = msgpack.packb({"k": 1, "r": ROUND, "p": 0, "d": body})
    return packed


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
        (msgpack.packb({"k": 2, "x": [{}] * 900}), "more than 3 maps and lists"),
        (msgpack.packb([[[]] * 900] * 40), "more than 3 maps and lists"),
        (msgpack.packb({"k": 99}), "k: got 99"),
        (msgpack.packb({"k": True}), "k: got True"),
        (msgpack.packb({"k": 2}), "keys"),
        (changed(GOOD, extra=1), "keys"),
        (changed(GOOD, r=-1), "r: got -1"),
        (changed(GOOD, r=b"1234567"), "r: got 7 bytes"),
        (changed(GOOD, p=1), "p: got 1"),
        (changed(GOOD, p=True), "p: got True"),
        (changed(GOOD, m=1.0), "m: got 1.0"),
        (changed(GOOD, m=struct.pack("<3d", -1, 0, 0)), "m: got weight -1"),
        (changed(GOOD, m=struct.pack("<3d", 1, float("nan"), 0)), "m: got loss nan"),
        (changed(GOOD, m=struct.pack("<3d", 1, 0, float("inf"))), "m: got norm inf"),
        (changed(GOOD, m=struct.pack("<3d", 1, 1e308, 0)), r"m: got loss 1e\+308"),
        (changed(GOOD, n=b""), "n: got 0 bytes"),
        (changed(GOOD, n=b"\xff" * 4 * 2), "rows for"),
        (changed(GOOD, b=BUFFER[:-4]), "b: got"),
        (changed(GOOD, b="text"), "b: got 'text'"),
        (changed(GOOD, b=NAN + BUFFER[4:]), "hold NaN"),
        (msgpack.packb({"k": 6, "r": ROUND, "p": 0, "d": {"weights_sha256": "../x"}}), "weights_sha256"),
        (msgpack.packb({"k": 6, "r": ROUND, "p": 0, "d": 3}), "d."),
        (msgpack.packb({"k": 7, "r": ROUND, "p": 0, "d": {"site": "a", "reason": "x" * 501}}), "reason"),
        (evaluation(tally=b"1234"), "d.tally: got 4 bytes"),
        (evaluation(tally=b"\xff" * tally_bytes(PLAN.task)), "d.tally: a count is larger than"),
        (evaluation(baseline=b""), "d.baseline: got 0 bytes"),
        (evaluation(split="validation"), "d.tally: got"),
        (evaluation(split="validation", tally=MONITORED, baseline=b"1"), "d.baseline: got 1 bytes"),
        (evaluation(fold=-1), "d.fold: "),
        (msgpack.packb({"k": 9, "r": ROUND, "p": 0, "d": {"stage": "sums", "values": b""}}), "no preparation stage"),
        (hello(samples=b"1234"), "d.samples: got 4 bytes, expected 12"),
        (hello(warnings=["x"]), "d.warnings.0: "),
        (hello(warnings=["one-class"] * 11), "d.warnings: "),
        (hello(dropped=-1), "d.dropped: "),
    ],
)
def test_nonsense_is_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as error:
        unpack(body, PLAN, up=True)
    assert error.value.status == 422
    assert len(str(error.value)) < 300


COMPARED = plan_of(evaluation={"name": "holdout", "references": ["site"]})
COUNTS = torch.ones(scores_shape(COMPARED)).flatten()


@pytest.mark.parametrize(
    ("plan", "scores", "taken"),
    [
        (COMPARED, COUNTS, True),
        (COMPARED, torch.cat([COUNTS, COUNTS]), False),
        (COMPARED, COUNTS[:-1], False),
        (PLAN, COUNTS, False),  # nothing is compared
        *((COMPARED, torch.cat([COUNTS[1:], torch.tensor([one])]), False) for one in (-1.0, 1e10)),
        *((COMPARED, torch.cat([COUNTS[1:], torch.tensor([float(one)])]), False) for one in ("nan", "inf")),
    ],
)
def test_histograms_that_come_down_are_of_the_plan_s_size_and_are_counts(
    plan: Plan, scores: torch.Tensor, taken: bool
) -> None:
    where: dict[str, Any] = {"split": "test", "fold": 0, "epoch": 0, "samples": 3, "values": {"auc": 0.5}, "absent": 0}
    answer = PooledMetrics.model_construct(**where, auc_error=None, scores=scores)
    body = pack(Message(Kind.EVALUATION, 0, answer), COMPARED, up=False)
    if taken:
        found = unpack(body, plan, up=False).body
        assert isinstance(found, PooledMetrics)
        assert found.scores is not None
        assert torch.equal(found.scores.flatten(), scores)
        return
    with pytest.raises(ProtocolError) as error:
        unpack(body, plan, up=False)
    assert error.value.status in (413, 422)
    assert error.value.field in ("d.scores", "")


SITES = [f"site-{place}" for place in range(9)]
LATE_PLAN = plan_of(federation={"sites": SITES, "quorum": 5, "staleness": 3})
LATE = ((1, 0), (1, 8), (3, 2))
UPDATE = replace(step_of(2), body=Step(8.0, 0.5, 1.25, payload_of(LATE_PLAN, 2, up=False)), late=LATE)


def test_an_update_says_who_was_late_and_by_how_much() -> None:
    packed = pack(replace(UPDATE, missing=frozenset({1, 8})), LATE_PLAN, up=False)
    received = unpack(packed, LATE_PLAN, up=False)
    assert (received.late, received.missing) == (LATE, frozenset({1, 8}))
    full = replace(UPDATE, body=Step(8.0, 0.5, 1.25, payload_of(LATE_PLAN, 99, up=False)), missing=frozenset({1}))
    assert len(pack(full, LATE_PLAN, up=False)) <= body_limit(LATE_PLAN, up=False, replica=False)


@pytest.mark.parametrize(
    ("plan", "changes", "up", "reason"),
    [
        (LATE_PLAN, {"l": bytes(5)}, False, "l: got 5 bytes, expected 6"),
        (LATE_PLAN, {"l": 1}, False, "l: got 1, expected 6 bytes"),
        (LATE_PLAN, {"l": b"\0\2" + bytes(4)}, False, "l: names a site beyond the 9 of the plan"),
        (LATE_PLAN, {}, True, "the body has the keys"),  # no site says so of itself
        (PLAN, {}, False, "the body has the keys"),
    ],
)
def test_who_was_late_is_said_where_it_may_be_and_of_sites_of_the_plan(
    plan: Plan, changes: dict[str, Any], up: bool, reason: str
) -> None:
    body = changed(pack(UPDATE, LATE_PLAN, up=False), **changes)
    with pytest.raises(ProtocolError, match=reason):
        unpack(body, plan, up=up)


def test_a_body_beyond_the_plan_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ProtocolError) as error:
        unpack(bytes(body_limit(PLAN, up=True) + 1), PLAN, up=True)
    assert error.value.status == 413


@settings(max_examples=examples(200))
@given(data=st.data())
def test_mutations_of_a_real_message_never_raise_anything_else(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from([GOOD, pack(Message(Kind.EVALUATION, 0, EVALUATION), PLAN, up=True)])))
    for _ in range(data.draw(st.integers(1, 6))):
        body[data.draw(st.integers(0, min(80, len(body) - 1)))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        unpack(bytes(body), PLAN, up=True)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.GOODBYE, Goodbye(weights_sha256="0" * 64, sketch=torch.zeros(PARTS, dtype=torch.float64))),
        (Kind.FAILURE, Failure(site="alpha", reason="no disk")),
        (Kind.EVALUATION, EVALUATION),
    ],
)
def test_control_messages_come_back(kind: Kind, body: Any) -> None:
    packed = pack(Message(kind, 3, body), PLAN, up=True)
    assert pack(unpack(packed, PLAN, up=True), PLAN, up=True) == packed


def test_rows_that_do_not_fit_together_are_refused() -> None:
    edad = plan_of(method={"name": "edad"})
    payload = list(payload_of(edad, 4))
    last = payload[-1]
    assert isinstance(last, torch.Tensor)
    payload[-1] = last[:3]
    uneven = pack(Message(Kind.STEP, 0, Step(1.0, 0.0, 0.0, tuple(payload))), edad, up=True)
    with pytest.raises(ProtocolError, match="expected as many as for the first, 4"):
        unpack(uneven, edad, up=True)


@settings(max_examples=examples(60))
@given(
    shapes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 150)), min_size=1, max_size=4),
    wire=st.sampled_from(["float32", "float64", "bfloat16", "float16", "int8", "int4", "int2"]),
    scale=st.sampled_from([1e-12, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_what_is_decoded_is_what_the_sender_thinks(
    shapes: list[tuple[int, int]], wire: str, scale: float, seed: int
) -> None:
    """On this rests error feedback: the residual is taken of what the other end has."""
    generator = torch.Generator().manual_seed(seed)
    arrays = [scale * torch.randn(shape, generator=generator) for shape in shapes]
    data = encode(arrays, wire).numpy().tobytes()
    assert len(data) == sum(wire_bytes(wire, *shape) for shape in shapes)
    for array, found in zip(arrays, decode(data, shapes, wire), strict=True):
        assert torch.equal(found.to(array.dtype), as_received([array], wire)[0])
        if is_lossless(wire, array.dtype):
            assert torch.equal(found.float(), array)
        most = {"int4": 0.08, "int2": 1.0}.get(wire, 0.01)  # half a step of a row, whose largest number is seven
        assert ((found - array).abs() <= most * array.abs().amax(1, keepdim=True) + 1e-6).all()


@pytest.mark.parametrize(("wire", "error"), [("int8", 0.0061), ("int4", 0.115), ("int2", 0.36)])
def test_each_number_of_bits_has_the_error_that_its_steps_make(wire: str, error: float) -> None:
    """Of normal numbers, over their norm: 0.1175 ** 0.5 is what no four steps can do better (Max 1960)."""
    array = torch.randn(50, 640, generator=torch.Generator().manual_seed(0))
    found = torch.linalg.vector_norm(as_received([array], wire)[0] - array) / torch.linalg.vector_norm(array)
    assert 0.9 * error < float(found) <= 1.05 * error


def test_projections_that_are_not_finite_are_refused_and_named() -> None:
    optimizer = {"name": "adam", "lr": 0.1, "second_moment": "factored"}
    plan = plan_of(method={"name": "rank-dad", "rank": 3}, training={"optimizer": optimizer})
    slots = plan.layout(0, up=True).projections
    projections = tuple(Projections(*(torch.ones(width) for width in slot.widths)) for slot in slots)
    message = Message(Kind.STEP, 0, Step(1.0, 0.5, 99.0, payload_of(plan, 1), projections))
    body = pack(message, plan, up=True)
    got = unpack(body, plan, up=True).body
    assert isinstance(got, Step)
    assert [tuple(map(len, one)) for one in got.projections] == [(16, 6), (16, 16), (3, 16)]
    for number in (float("nan"), float("inf")):
        with pytest.raises(ProtocolError, match=r"b: the values of 5\.weight hold NaN or infinity"):
            unpack(body[:-4] + struct.pack("<f", number), plan, up=True)
    for number, said in ((float("nan"), "holds NaN or infinity"), (1e60, "is too large for float32")):
        wrong = Projections(*(number * part.double() for part in projections[-1]))
        with pytest.raises(RankdadError, match=rf"the gradient of 5\.weight {said}"):
            pack(replace(message, body=replace(got, projections=(*projections[:-1], wrong))), plan, up=True)
    with pytest.raises(RuntimeError, match="the projections do not match the plan"):
        pack(replace(message, body=Step(1.0, 0.5, 99.0, payload_of(plan, 1))), plan, up=True)
