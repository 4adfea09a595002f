"""What is wrong at one rank is named at all, and nobody waits in vain."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankdad.common.errors import RankdadError, UserError
from rankdad.distributed.hook import LowRankState, low_rank_hook
from rankdad.distributed.low_rank import LowRank
from tests.distributed.nets import batches_of, grads, loss_of, perceptron, place
from tests.ranks import run_ranks

SECONDS = 30.0  # a busy machine's


def test_without_a_process_group_it_says_how_to_make_one() -> None:
    state = LowRankState(perceptron())  # as a framework wants it, which makes the group later
    for attempt in (lambda: LowRank(perceptron()), state.state_dict, lambda: state.load_state_dict({})):
        with pytest.raises(UserError) as caught:
            attempt()
        assert caught.value.code == "no-process-group"


Said = tuple[str, str, str]


def refused(attempt: Callable[[], object]) -> Said:
    """Return code, field and sentence of what is raised."""
    began = perf_counter()
    try:
        attempt()
    except RankdadError as error:
        assert perf_counter() - began < SECONDS
        return error.code, error.field or "", str(error)
    return "", "", ""


def backward(
    sync: LowRank, model: nn.Sequential, *, step: int = 0, times: float = 1.0, steep: bool = False, **options: Any
) -> None:
    x, y = batches_of((8, 8, 8), step)[place()]
    loss = loss_of(model, (x, y)) * times
    if steep:  # the loss is finite, its gradient is not
        loss = loss + (model.get_parameter("2.weight").sum() * 0).sqrt()
    sync.backward(loss, **{"weight": len(y)} | options)


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        raise ValueError("no derivative")


def residual(value: object) -> dict[str, Any]:
    return {"residuals": {"0.weight": value}, "bases": {}}


class Sideways(nn.Linear):
    low_rank_layout = "sideways"


def at_the_start() -> dict[str, Said]:
    odd, model, wrapped = place() == 1, perceptron(), DistributedDataParallel(perceptron())
    wider = nn.Sequential(nn.Linear(60, 81), nn.ReLU(), nn.Linear(81, 3))
    narrower = nn.Sequential(nn.Linear(60, 81), nn.ReLU(), nn.Linear(81, 2))
    return {
        "rank": refused(lambda: LowRank(model, rank=8 if odd else 4)),
        "wire": refused(lambda: LowRank(model, wire="int8" if odd else "float32")),
        "feedback": refused(lambda: LowRank(model, feedback="none" if odd else "both")),
        "model": refused(lambda: LowRank(narrower if odd else wider)),
        "fewer": refused(lambda: LowRank(wider[:1] if odd else wider)),
        "no wire": refused(lambda: LowRank(model, wire="int9")),
        "no rank": refused(lambda: LowRank(model, rank=0 if odd else 4)),
        "wrapped": refused(lambda: LowRank(wrapped)),
        "hook": refused(lambda: LowRankState(model, rank=8 if odd else 4)),
        "another model": refused(lambda: hooked_on(wrapped, model)),
        "frozen": refused(lambda: LowRank(nn.Linear(2, 2).requires_grad_(False))),
        "no module": refused(lambda: LowRank(None if odd else model)),  # type: ignore[arg-type]
        "not whole": refused(lambda: LowRank(nn.Sequential(nn.LazyLinear(3)))),
        "no layout": refused(lambda: LowRank(Sideways(2, 2))),
        "complex": refused(lambda: LowRank(nn.Linear(60, 3, dtype=torch.complex64))),
        "a dtype": refused(lambda: LowRank(model, wire=torch.float16 if odd else "float16")),  # type: ignore[arg-type]
        "gather": refused(lambda: LowRank(model, gather_up_to="8")),  # type: ignore[arg-type]
        "other frozen": refused(lambda: LowRank(with_frozen(70 if odd else 60))),
        "other buffer": refused(lambda: LowRank(with_buffer(7 if odd else 6))),
        "no buffer": refused(lambda: LowRank(with_buffer(0 if odd else 6))),
    }


def with_frozen(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(60, 3), nn.Linear(width, 3).requires_grad_(False))


def with_buffer(length: int) -> nn.Module:
    model = nn.Linear(60, 3)
    if length:
        model.register_buffer("mean", torch.zeros(length))
    return model


def hooked_on(wrapped: DistributedDataParallel, model: nn.Module) -> None:
    wrapped.register_comm_hook(LowRankState(model), low_rank_hook)
    loss_of(wrapped, batches_of((8, 8, 8), 0)[place()]).backward()


def in_use(up_to: int) -> dict[str, Said]:
    model = perceptron()
    odd, sync = place() == 1, LowRank(model, gather_up_to=up_to)
    said = {
        "nan": refused(lambda: backward(sync, model, times=float("nan") if odd else 1.0)),
        "overflow": refused(lambda: backward(sync, model, steep=odd)),
        "nothing": refused(lambda: backward(sync, model, weight=0)),
        "weight": refused(lambda: backward(sync, model, weight=-3 if odd else 3)),
        "no weight": refused(lambda: backward(sync, model, weight="3" if odd else 3)),
        "too heavy": refused(lambda: backward(sync, model, weight=1e308)),
        "cancelled": refused(lambda: backward(sync, model, weight=(-3, 0, 3)[place()])),
        "scaler": refused(lambda: backward(sync, model, scaler="no" if odd else None)),
        "no loss": refused(lambda: sync.backward(None, weight=3)),
    }
    apply: Callable[[Tensor], Tensor] = Raises.apply
    handle = model.register_forward_hook(lambda module, args, output: apply(output) if odd else output)
    said["raises"] = refused(lambda: backward(sync, model))
    handle.remove()
    backward(sync, model)  # all go on
    kept = sync.state_dict()
    other = {**kept, "site": {**kept["site"], "bases": {"0.weight": torch.zeros(4, 9)}}}
    ranked = LowRank(model, rank=2, gather_up_to=up_to)
    said |= {
        "of another rank": refused(lambda: sync.load_state_dict({**kept, "rank": 7})),
        "of other options": refused(lambda: ranked.load_state_dict(kept)),
        "of another shape": refused(lambda: sync.load_state_dict(other)),
        "of nothing": refused(lambda: sync.load_state_dict({**kept, "node": 3})),
        "of no mapping": refused(lambda: sync.load_state_dict(None)),  # type: ignore[arg-type]
        "of no step": refused(lambda: sync.load_state_dict({**kept, "step": -5})),
        "of three rows": refused(
            lambda: sync.load_state_dict(
                {**kept, "site": residual(tuple(map(torch.zeros, ((1, 80), (1, 61), (1, 1)))))}
            )
        ),
        "of NaN": refused(lambda: sync.load_state_dict({**kept, "site": residual(torch.full((80, 61), math.nan))})),
        "of tensors": refused(lambda: sync.load_state_dict({**kept, "rank": torch.ones(3)})),
    }
    ranked.close()
    if odd:
        sync.load_state_dict({**kept, "step": 7})
    said["step"] = refused(lambda: backward(sync, model))
    sync.load_state_dict(kept)
    backward(sync, model, exchange=False)
    said["pending"] = refused(sync.state_dict)
    sync.close()
    return said


NAMED: dict[tuple[str, str], list[str]] = {  # code and field
    ("ranks-disagree", "rank"): ["rank", "hook"],
    ("ranks-disagree", "wire"): ["wire"],
    ("ranks-disagree", "feedback"): ["feedback"],
    ("ranks-disagree", "model"): ["model", "fewer", "other frozen", "other buffer", "no buffer"],
    ("field-invalid", "wire"): ["no wire"],
    ("field-invalid", "rank"): ["no rank"],
    ("model-wrapped", ""): ["wrapped"],
    ("another-model", ""): ["another model"],
    ("nothing-trained", "model"): ["frozen"],
    ("not-a-module", "model"): ["no module"],
    ("parameter-without-shape", "0.weight"): ["not whole"],
    ("complex-parameter", "weight"): ["complex"],
    ("layout-unknown", "low_rank_layout"): ["no layout"],
    ("dtype-not-name", "wire"): ["a dtype"],
    ("wrong-type", "gather_up_to"): ["gather"],
    ("not-finite", "the loss"): ["nan"],
    ("not-finite", "the gradient of 2.weight"): ["overflow"],
    ("no-samples", ""): ["nothing"],
    ("weight-out-of-range", "weight"): ["weight", "no weight", "too heavy", "cancelled"],
    ("rank-failed", ""): ["scaler", "raises"],
    ("loss-missing", "loss"): ["no loss"],
    ("checkpoint-does-not-fit", "rank"): ["of another rank", "of tensors"],
    ("checkpoint-does-not-fit", "options"): ["of other options"],
    ("checkpoint-does-not-fit", "0.weight"): ["of another shape"],
    ("checkpoint-malformed", ""): ["of nothing", "of no mapping", "of three rows"],
    ("checkpoint-malformed", "step"): ["of no step"],
    ("not-finite", "0.weight"): ["of NaN"],
    ("steps-differ", ""): ["step"],
    ("batches-pending", ""): ["pending"],
}
NAMES = {name: named for named, names in NAMED.items() for name in names}  # at the start first, then in use
AT_RANK_1 = ("no rank", "no module", "a dtype", "nan", "overflow", "weight", "no weight", "scaler", "raises")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("attempts", "arguments"),
    [
        (at_the_start, ()),
        *(pytest.param(in_use, (gathered,), marks=pytest.mark.slow) for gathered in (8, 1)),  # by all, by owners
    ],
)
def test_every_mistake_is_named_at_all_ranks(attempts: Callable[..., Any], arguments: tuple[int, ...]) -> None:
    names = list(NAMES)
    half = names.index("nan")
    ranks = run_ranks(3, attempts, *arguments)
    assert set(ranks[0]) == set(names[:half] if attempts is at_the_start else names[half:])
    for name, (code, field, sentence) in ranks[0].items():
        assert (code, field) == NAMES[name], name
        assert sentence.startswith("rank 1: ") == (name in AT_RANK_1), name
        if NAMES[name] != ("checkpoint-does-not-fit", "rank"):  # of which each rank says its own
            assert [said[name] for said in ranks] == [ranks[0][name]] * 3


def left_alone(gather_up_to: int) -> Said:
    model = perceptron()
    sync = LowRank(model, gather_up_to=gather_up_to)
    backward(sync, model)
    if place() == 2:
        os._exit(0)  # as a killed process leaves it: without a word

    def go_on() -> None:
        for step in range(3):
            backward(sync, model, step=step)

    return refused(go_on)


@pytest.mark.slow
@pytest.mark.parametrize("gather_up_to", [8, 1])
def test_a_rank_that_dies_ends_the_others_with_a_sentence(gather_up_to: int) -> None:
    first, second, gone = run_ranks(3, left_alone, gather_up_to)
    assert gone is None
    assert first[:2] == second[:2] == ("rank-gone", "")
    assert "timeout" in first[2]


def test_nccl_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"the process group is one of nccl, which needs a GPU"):
        LowRank(perceptron())


def hooked_overflow() -> list[bool]:
    """Return whether gradients were finite: in a step, in one where they overflow at a rank, and after it."""
    model = perceptron()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(LowRankState(model), low_rank_hook)
    found = []
    for step in range(3):
        model.zero_grad()
        batch = batches_of((8, 8), step)[place()]
        (loss_of(ddp, batch) * (float("inf") if step == 1 and place() else 1.0)).backward()
        found.append(all(bool(value.isfinite().all()) for value in grads(model).values()))
    return found


@pytest.mark.slow
def test_the_hook_spreads_an_overflow_and_goes_on() -> None:
    assert run_ranks(2, hooked_overflow) == [[True, False, True]] * 2
