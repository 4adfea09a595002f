"""The aggregator without sockets: differing hellos, and answers to repeated requests."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch
from torch import Tensor

from rankdad.common.errors import ProtocolError, SpecError, UserError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.methods import MethodState
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Failure, Kind, Message
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.rounds.base import Collected
from rankdad.common.rounds.hello import Hello
from rankdad.common.rounds.step import Step, StepRound
from rankdad.common.run.replica import Replica
from rankdad.common.user_code import CodeOrigin, origin
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.report.run_report import report
from rankdad.remote.run_directory import new_directory
from rankdad.remote.run_reader import FILE
from tests.conftest import SITES, run_spec


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    spec = run_spec()
    made = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter)
    yield made
    made.close()


def hello_of(aggregator: Aggregator, **changes: Any) -> bytes:
    plan = aggregator.plan
    fields = {
        **OUR_VERSION,
        "spec_sha256": plan.spec_sha256,
        "plan_sha256": plan.sha256(),
        "weights_sha256": plan.weights_sha256,
        "samples": ((10, 2, 2),) * plan.folds,
        "dropped": 0,
        "warnings": [],
    }
    return pack(Message(Kind.HELLO, 0, Hello.model_validate(fields | changes)), plan, up=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.9.0"}, "d.version: beta is rankdad 0.9.0"),
        ({"wire": 2}, r"d.version: the sender is rankdad 0.1.0 \(wire 2\)"),
        ({"spec_sha256": "0" * 64}, "its spec differs"),
        ({"weights_sha256": "0" * 64}, "its initial weights differ"),
        ({"plan_sha256": "0" * 64}, "its plan differs"),
        ({"samples": ((0, 2, 2),)}, "d.samples: 0 samples to train on are 0 steps an epoch"),
    ],
)
def test_hello_is_refused_if_it_differs_and_in_what_is_said(
    aggregator: Aggregator, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ProtocolError, match=said) as error:
        aggregator.take("beta", hello_of(aggregator, **changes))
    assert error.value.status == 422
    assert aggregator.barrier.missing() == SITES, "it may come again"


@pytest.mark.exhaustive
def test_a_model_of_another_version_is_refused_and_a_readers_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, reader = "torch.nn:Linear", "tests.nowhere:read"
    spec = run_spec(
        model={"name": "factory", "factory": model, "arguments": {"in_features": 6, "out_features": 3}},
        data={"reader": "function", "function": reader, "shape": [6]},
    )
    made = Aggregator(spec, Replica(spec, [f"{model}@torch==*"]), tmp_path / "run", time.perf_counter)
    here, file = origin(model), CodeOrigin(reader)
    told = (
        ((), "fields-differ"),
        ((replace(here, version="1.0"), file), "hello-differs"),
        ((CodeOrigin(model), file), "hello-differs"),
    )
    for functions, code in told:
        with pytest.raises(ProtocolError) as error:
            made.take("alpha", hello_of(made, functions=functions))
        assert (error.value.code, error.value.field) == (code, "d.functions")
    other = CodeOrigin(reader, "readers", "2.0")
    for site, own in (("alpha", file), ("beta", file), ("gamma", other)):
        made.take(site, hello_of(made, functions=(here, own)))
    made.close()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["warnings"] == {"reader-differs": ["gamma"]}
    assert [(one["name"], one["distribution"], one["version"], one["sites"]) for one in summary["functions"]] == [
        (reader, "", "", ["alpha", "beta"]),
        (reader, "readers", "2.0", ["gamma"]),
        (model, "torch", here.version, list(SITES)),
    ]
    assert "readers 2.0 (gamma)" in report(tmp_path / "run")


def test_every_site_that_fails_is_answered_with_the_first_failure(aggregator: Aggregator) -> None:
    def failure(site: str) -> bytes:
        return pack(
            Message(Kind.FAILURE, 0, Failure(site="someone else", reason=f"{site} is ill", code="ill", field="f")),
            aggregator.plan,
            up=True,
        )

    aggregator.take("alpha", hello_of(aggregator))
    answers = aggregator.take("beta", failure("beta"))
    assert set(answers) == set(SITES)
    (answer,) = set(answers.values())
    told = unpack(answer, aggregator.plan, up=False).body
    assert told == Failure(site="beta", reason="beta is ill", code="ill", field="f"), (
        "the sender's name is not its own to choose"
    )
    assert aggregator.take("gamma", failure("gamma")) == {"gamma": answer}
    assert aggregator.take("alpha", hello_of(aggregator)) == {"alpha": answer}
    aggregator.close()
    summary = json.loads((aggregator.recorder.directory / "summary.json").read_text())
    assert (summary["code"], summary["field"]) == ("ill", "f")


def test_what_a_site_writes_is_shown_and_does_nothing(aggregator: Aggregator, tmp_path: Path) -> None:
    reason = "[/x]\x1b[2J\r\n\u202eforged\0\x9b" + "x" * 480
    body = msgpack.packb({"k": 7, "r": bytes(8), "p": 0, "d": {"site": "\x1bc", "reason": reason, "final": False}})
    aggregator.take("beta", body)
    aggregator.depart("beta", aggregator.recorder.progress.problems["beta"])
    assert aggregator.barrier.stored is not None
    told = unpack(aggregator.barrier.stored, aggregator.plan, up=False).body
    aggregator.close()
    assert isinstance(told, Failure)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for said in (told.reason, summary["reason"].removeprefix("beta: "), summary["problems"]["beta"]):
        assert said.startswith("[/x]\\x1b[2J\\r\\n\\u202eforged\\x00\\x9bxxx")
        assert len(said) == 500
    page = report(tmp_path / "run")
    assert "[/x]\\x1b[2J" in page
    assert all(letter.isprintable() or letter == "\n" for letter in page)


def test_an_unknown_site_is_refused_before_its_body_is_read(aggregator: Aggregator) -> None:
    with pytest.raises(ProtocolError) as error:
        aggregator.take("../x", b"\xc1")
    assert error.value.status == 404


@pytest.mark.parametrize("method", [{"name": "rank-dad", "rank": 2}, {"name": "dad"}, {"name": "edad"}])
@pytest.mark.parametrize("sizes", [(3e38, 1e-38), (3e38, 3e38), (1e30, 1e30), (1e7, 1e7), (0.1, 1e14), (1e-38, 1e-38)])
def test_numbers_at_the_edge_of_float32_neither_crash_nor_poison(
    tmp_path: Path, method: dict[str, Any], sizes: tuple[float, float]
) -> None:
    """They are refused, or the run goes on with finite weights."""
    spec = run_spec(method=method, model={"name": "mlp", "hidden": [64, 64]})
    replica = Replica(spec)
    made = Aggregator(spec, replica, tmp_path / "run", time.perf_counter)
    for site in SITES:
        made.take(site, hello_of(made))
    generator = torch.Generator().manual_seed(0)
    refused = pytest.raises(ProtocolError, match="b: the gradient of") if max(sizes) > 1e19 else nullcontext()
    with contextlib.closing(made), refused:
        for round_ in (1, 2):
            for site in SITES:
                arrays = []
                for slot in made.plan.layout(0, up=True).slots:
                    own = [torch.randn(slot.rows, w, generator=generator).sign() for w in slot.widths]
                    scaled = [array * size for array, size in zip(own, sizes, strict=False)]
                    arrays.append(Factor(*scaled) if len(scaled) == 2 else scaled[0])
                body = pack(Message(Kind.STEP, round_, Step(5.0, 1.0, 1.0, tuple(arrays))), made.plan, up=True)
                answers = made.take(site, body)
            unpack(answers["alpha"], made.plan, up=False)
            assert all(bool(torch.isfinite(weight).all()) for weight in replica.weights().values())


def said_hello(tmp_path: Path, now: list[float], **federation: Any) -> Aggregator:
    spec = run_spec(federation={"sites": list(SITES), **federation})
    made = Aggregator(spec, Replica(spec), tmp_path / "run", lambda: now[0])
    for site in SITES:
        made.take(site, hello_of(made))
    return made


def failure(aggregator: Aggregator, site: str) -> bytes:
    message = Message(Kind.FAILURE, 1, Failure(site=site, reason="its loss holds NaN"))
    return pack(message, aggregator.plan, up=True)


def test_a_round_without_its_quorum_ends_the_run_after_the_timeout_by_name(tmp_path: Path) -> None:
    now = [0.0]
    with contextlib.closing(said_hello(tmp_path, now, quorum=2, timeout=30.0)) as made:
        now[0] = 29.0
        assert made.tick() == {}
        now[0] = 31.0
        answers = made.tick()
        assert set(answers) == set(SITES)
        told = unpack(answers["alpha"], made.plan, up=False).body
    assert isinstance(told, Failure)
    assert told.site == "aggregator"
    assert "quorum of 2 sites within 30 s (federation.timeout): no word from alpha, beta, gamma" in told.reason


def test_a_site_that_fails_is_done_without_as_long_as_the_quorum_allows(tmp_path: Path) -> None:
    with contextlib.closing(said_hello(tmp_path, [0.0], quorum=0.6)) as made:
        answers = made.take("gamma", failure(made, "gamma"))
        assert set(answers) == {"gamma"}, "it is answered, and the others are not disturbed"
        assert not made.ended
        assert made.barrier.departed == {"gamma"}
        assert made.recorded("gamma", 1) is None, "started again, it is back"
        assert not made.barrier.departed
        made.take("gamma", failure(made, "gamma"))
        made.take("beta", failure(made, "beta"))
        assert made.ended, "one of three is less than the quorum"


@pytest.mark.parametrize("quorum", [0, 4, 1.0, "most", 0.0])
def test_a_quorum_that_cannot_be_met_is_refused(quorum: Any) -> None:
    with pytest.raises(SpecError, match=r"federation"):
        run_spec(federation={"sites": list(SITES), "quorum": quorum})


def test_rounds_that_a_late_site_asks_for(tmp_path: Path) -> None:
    with contextlib.closing(said_hello(tmp_path, [0.0])) as made:
        assert made.recorded("alpha", 1) is None
        assert made.recorded("alpha", 0) is not None
        with pytest.raises(ProtocolError, match="the run is in round 1") as error:
            made.recorded("alpha", 2)
        assert error.value.status == 409
        made.barrier.round = 7
        with pytest.raises(ProtocolError, match="round 3 is no longer stored") as error:
            made.recorded("alpha", 3)
        assert error.value.status == 410


@pytest.mark.slow
@pytest.mark.parametrize("ledger", [None, LedgerOptions()])
def test_a_run_that_a_site_refuses_is_refused_and_leaves_its_directory_free(
    tmp_path: Path, ledger: LedgerOptions | None
) -> None:
    spec = run_spec()
    for after in ("refused", "failed"):  # the second time alpha's process dies without a word
        made = Aggregator(spec, Replica(spec), tmp_path, time.perf_counter, ledger=ledger)
        if after == "refused":
            made.note_problem("alpha", "its policy allows no such run")
        made.depart("alpha", "ended with status 2")
        made.close()
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert (summary["status"], summary["epochs"], summary["best_epoch"]) == (after, 0, 0)
        assert ("its policy" in summary["reason"]) is (after == "refused")
        page = report(tmp_path)
        assert "No site warned about its data" not in page
        assert "interrupted" not in page.partition("<style")[0] + page.rpartition("</style>")[2]
        assert (tmp_path / FILE).exists() is (ledger is not None and after == "failed")
    with pytest.raises(UserError) as taken:
        new_directory(tmp_path)
    assert (taken.value.code, taken.value.field) == ("directory-holds-a-run", "--output")


def step_of(aggregator: Aggregator, site: str) -> bytes:
    """Return a site's contribution to the step that is due."""
    plan, state, round_ = aggregator.plan, aggregator.state, aggregator.barrier.round
    generator = torch.Generator().manual_seed(SITES.index(site))
    slots = plan.layout(0, up=True).slots
    payload = tuple(torch.randn(slot.rows, *slot.widths, generator=generator) for slot in slots)
    weight = float(state.weight(plan.sites.index(site)))
    return pack(Message(Kind.STEP, round_, Step(weight, 0.5, 0.0, payload)), plan, up=True)


def test_a_run_goes_on_where_another_processor_rounds_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec()

    def opened() -> Aggregator:
        return Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LedgerOptions())

    before = opened()
    for site in SITES:
        before.take(site, hello_of(before))
    for _ in range(2):
        for site in SITES:
            before.take(site, step_of(before, site))
    weights, round_ = before.state.replica.digest(), before.barrier.round
    before.abandon()

    aggregate = StepRound.aggregate

    def otherwise(self: StepRound, here: Collected) -> tuple[Step, MethodState]:
        body, state = aggregate(self, here)
        first, *rest = body.payload
        assert isinstance(first, Tensor)  # which is off by one unit in the last place
        return replace(body, payload=(first.nextafter(torch.full_like(first, torch.inf)), *rest)), state

    monkeypatch.setattr(StepRound, "aggregate", otherwise)
    with closing(opened()) as after:
        after.resume()
        assert (after.state.replica.digest(), after.barrier.round) == (weights, round_)
        assert after.recorder.progress.warnings == {"replay-differs": ["aggregator"]}
