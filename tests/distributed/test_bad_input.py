"""What is wrong at one rank is named at all, and nobody waits in vain."""

from __future__ import annotations

import math
import os
import re
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


def refused(attempt: Callable[[], object]) -> str:
    began = perf_counter()
    try:
        attempt()
    except RankdadError as error:
        assert perf_counter() - began < SECONDS
        return str(error)
    return "nothing was refused"


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


def every_mistake() -> dict[str, str]:
    odd, model, wrapped = place() == 1, perceptron(), DistributedDataParallel(perceptron())
    wider = nn.Sequential(nn.Linear(60, 81), nn.ReLU(), nn.Linear(81, 3))
    narrower = nn.Sequential(nn.Linear(60, 81), nn.ReLU(), nn.Linear(81, 2))
    said = {
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
        "complex": refused(lambda: LowRank(nn.Linear(60, 3, dtype=torch.complex64))),
        "a dtype": refused(lambda: LowRank(model, wire=torch.float16 if odd else "float16")),  # type: ignore[arg-type]
        "gather": refused(lambda: LowRank(model, gather_up_to="8")),  # type: ignore[arg-type]
        "other frozen": refused(lambda: LowRank(with_frozen(70 if odd else 60))),
        "other buffer": refused(lambda: LowRank(with_buffer(7 if odd else 6))),
        "no buffer": refused(lambda: LowRank(with_buffer(0 if odd else 6))),
    }
    said |= in_use(model, 8)
    return said | {f"{name} in a tree": sentence for name, sentence in in_use(model, 1).items()}


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


def in_use(model: nn.Sequential, up_to: int) -> dict[str, str]:
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


AT_THE_START = {
    "rank": "the ranks disagree on rank: 4 at rank 0, 8 at rank 1",
    "wire": "the ranks disagree on wire: 'float32' at rank 0, 'int8' at rank 1",
    "feedback": "the ranks disagree on feedback: 'both' at rank 0, 'none' at rank 1",
    "model": r"the ranks disagree on the model: rank 1: parameter 3 is 2.weight \[2, 81\] torch.float32, at rank 0 "
    r"2.weight \[3, 81\] torch.float32",
    "fewer": "the ranks disagree on the model: rank 1: 2 parameters, at rank 0 4",
    "no wire": r'rank 0: wire: got "int9", expected.*; rank 1: wire: .*; rank 2: wire: .*',
    "no rank": "rank 1: rank: got 0, expected.*",
    "wrapped": r"rank 0: the model is wrapped in DistributedDataParallel: pass model.module, or use low_rank_hook; .*",
    "hook": "the ranks disagree on rank: 4 at rank 0, 8 at rank 1",
    "another model": "low_rank_hook: the LowRankState is of another model than DistributedDataParallel, or of one .*",
    "frozen": "rank 0: the model has no parameter that is trained; .*",
    "no module": "rank 1: model: got a NoneType, expected a torch.nn.Module",
    "not whole": "rank 0: 0.weight has no shape yet: run a batch through the model first; rank 1: .*",
    "complex": "rank 0: weight holds complex numbers, which do not travel, expected real ones; rank 1: .*",
    "a dtype": 'rank 1: wire: got torch.float16, expected its name: "float16"',
    "gather": "rank 0: gather_up_to: got '8', a str, expected Python's own int or str; rank 1: .*",
    "other frozen": r"the ranks disagree on the model: rank 1: parameter 3 is frozen 1.weight \[3, 70\] torch.float32, "
    r"at rank 0 frozen 1.weight \[3, 60\] torch.float32",
    "other buffer": r"the ranks disagree on the model: rank 1: parameter 3 is buffer mean \[7\] .*",
    "no buffer": "the ranks disagree on the model: rank 1: 2 parameters, at rank 0 3",
}
EXPECTED = AT_THE_START | {
    "nan": "rank 1: the loss holds NaN or infinity: lower the learning rate or clip",
    "overflow": r"rank 1: the gradient of [\w.]+ holds NaN or infinity: lower the learning rate or clip",
    "nothing": "no rank has samples in this step: every weight is 0",
    "weight": "rank 1: weight: got -3, expected a number of at least 0, at most 1e\\+300",
    "no weight": "rank 1: weight: got '3', expected a number of at least 0, at most 1e\\+300",
    "too heavy": r"rank 0: weight: got 1e\+308, expected a number of at least 0.*; rank 1: .*; rank 2: .*",
    "cancelled": "rank 0: weight: got -3, expected a number of at least 0, at most 1e\\+300",
    "scaler": "rank 1: AttributeError: 'str' object has no attribute 'get_scale'",
    "no loss": "rank 0: loss: got None, expected a loss, or weight=0 instead of 3; rank 1: .*; rank 2: .*",
    "raises": "rank 1: ValueError: no derivative",
    "step": "rank 0: it is at step 1, and not all are: load_state_dict at every rank; "
    "rank 1: it is at step 7, .*; rank 2: it is at .*",
    "of another rank": r"load_state_dict: rank: got 7, expected \d",
    "of other options": r"load_state_dict: options: got \{'rank': 4, .*, expected \{'rank': 2, .*",
    "of another shape": r"load_state_dict: 0.weight has \[4, 9\] in the checkpoint, expected \['any', 61\]",
    "of nothing": "load_state_dict: expected what state_dict returned for this model: .*",
    "of no mapping": "load_state_dict: got a NoneType, expected what state_dict returned",
    "of no step": "load_state_dict: step: got -5, expected a number of steps",
    "of three rows": "load_state_dict: expected what state_dict returned for this model: ValueError.*",
    "of NaN": "load_state_dict: 0.weight holds no numbers, or NaN or infinity, in the checkpoint",
    "of tensors": r"load_state_dict: rank: got tensor\(.*, expected \d",
    "pending": "state_dict: batches were added with exchange=False that no exchange has sent yet",
}


def test_every_mistake_is_named_at_all_ranks() -> None:
    ranks = run_ranks(3, every_mistake)
    assert ranks[0].keys() == {*EXPECTED, *(f"{name} in a tree" for name in list(EXPECTED)[len(AT_THE_START) :])}
    for heard, sentence in ranks[0].items():
        assert re.fullmatch(EXPECTED[heard.removesuffix(" in a tree")], sentence), (heard, sentence)
        if not heard.startswith(("of another rank", "of tensors")):
            assert [said[heard] for said in ranks] == [sentence] * 3


def left_alone(gather_up_to: int) -> str:
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
    for said in (first, second):
        assert re.match(
            r"a step's exchange did not come to its end: another rank has ended, or did not get there", said
        )
        assert "timeout=timedelta(seconds=60)" in said


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
