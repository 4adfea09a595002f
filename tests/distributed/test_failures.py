"""What fails at one rank is raised at all, as what it is: no gradient of NaN in its place, and nobody waits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankdad.distributed.hook import LowRankState, low_rank_hook
from rankdad.distributed.low_rank import LowRank
from tests.distributed.nets import batches_of, digest, grads, loss_of, perceptron, place
from tests.distributed.test_models import refused
from tests.ranks import run_ranks


def no_memory(*args: Any, **options: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


def said(attempt: Callable[[], object]) -> tuple[str, str, str]:
    """Return kind, code and sentence of what is raised."""
    try:
        attempt()
    except Exception as error:
        return type(error).__name__, getattr(error, "code", ""), str(error)
    return "", "", ""


def among_owners() -> list[tuple[str, str, str]]:
    """Return what is said where reducing fails: at owners, at a rank, under a scaler; and after."""
    model = perceptron()
    sync, found, scaler = LowRank(model, rank=2, gather_up_to=1), [], torch.amp.GradScaler("cpu")
    x, y = batches_of((8,) * 4, 0)[place()]
    for who, part, name, scaled in (
        (1, sync._node, "aggregate", None),
        (0, sync._node, "aggregate", None),
        (3, sync._site, "step", None),
        (1, sync._node, "aggregate", scaler),
        (3, sync._site, "step", scaler),
    ):
        with mock.patch.object(part, name, no_memory if place() == who else getattr(part, name)):
            loss = loss_of(model, (x, y))
            found.append(said(partial(sync.backward, loss, weight=8, scaler=scaled)))
    found.append(said(lambda: sync.backward(loss_of(model, (x, y)), weight=8)))
    return found


@pytest.mark.slow
def test_an_error_of_a_rank_or_an_owner_is_named_at_all_ranks() -> None:
    ranks = run_ranks(4, among_owners)
    assert ranks == [ranks[0]] * 4
    for (kind, code, sentence), who in zip(ranks[0], (1, 0, 3, 1, 3), strict=False):
        assert (kind, code) == ("RankdadError", "rank-failed")
        assert sentence.startswith(f"rank {who}: ")
        assert "OutOfMemoryError" in sentence
    assert ranks[0][-1] == ("", "", "")


def hooked(model: nn.Module, state: LowRankState) -> DistributedDataParallel:
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets
    ddp.register_comm_hook(state, low_rank_hook)
    return ddp


def under_the_hook() -> dict[str, Any]:
    model, batch = perceptron(), batches_of((8, 8), 0)[place()]
    state = LowRankState(model, rank=2)
    ddp = hooked(model, state)

    def step() -> None:
        model.zero_grad()
        loss_of(ddp, batch).backward()

    found: dict[str, Any] = {"fine": said(step), "first": digest(grads(model))}
    with mock.patch.object(state, "_components", no_memory if place() else state._components):
        found["memory"] = said(step)
    ddp = hooked(model, state)  # DistributedDataParallel itself does not go on after an error in its backward pass
    found["after"] = said(step)
    found["finite"] = all(bool(value.isfinite().all()) for value in grads(model).values())
    masked = perceptron()
    masked.get_parameter("0.weight").register_hook(lambda gradient: gradient * (torch.arange(60) % 2))
    masked.get_parameter("3.weight").register_post_accumulate_grad_hook(halve)
    wrapped = hooked(masked, LowRankState(masked, rank=2, wire="float32"))
    loss_of(wrapped, batch).backward()
    expected = [perceptron() for _ in range(2)]
    for other, own in zip(expected, batches_of((8, 8), 0), strict=True):
        loss_of(other, own).backward()
    first, second = (grads(other) for other in expected)
    mean = {name: (value + second[name]) / 2 for name, value in first.items()}
    gap = grads(masked)["3.weight"] - mean["3.weight"] / 2
    found["masked"] = not grads(masked)["0.weight"][:, ::2].any(), float(gap.norm() / mean["3.weight"].norm()) < 1e-5
    return found | late() | before_the_group()


def halve(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def late() -> dict[str, Any]:
    """Return what is said of changes after the state was made."""
    found = {}
    changes: dict[str, Callable[[nn.Sequential], object]] = {
        "hooked": lambda m: m.get_parameter("0.weight").register_hook(lambda gradient: gradient),
        "unfrozen": lambda m: m[3].requires_grad_(True),
        "replaced": lambda m: m.load_state_dict({n: v.clone() for n, v in m.state_dict().items()}, assign=True),
        "nothing": lambda m: None,
    }
    for name, change in changes.items():
        model = perceptron()
        model[3].requires_grad_(False)
        state = LowRankState(model, rank=2)
        if name == "replaced":
            change(model)
        ddp = hooked(model, state)
        if name != "replaced":
            change(model)
        found[name] = refused(loss_of(ddp, batches_of((8, 8), 0)[place()]).backward)
    return found


def before_the_group() -> dict[str, Any]:
    """Make states while there is no process group, as frameworks do."""
    batch, found = batches_of((8, 8), 0)[place()], dict[str, Any]()
    for name, rank in {"early": 2, "early, disagreeing": 2 + place()}.items():
        model = perceptron()
        with mock.patch.object(dist, "is_initialized", return_value=False):
            state = LowRankState(model, rank=rank)
        ddp = hooked(model, state)
        found[name] = refused(loss_of(ddp, batch).backward)
        if name == "early":
            found["early digest"] = digest(grads(model))
    return found


@pytest.mark.slow
def test_the_hook_raises_what_fails_and_follows_hooks_and_early_states() -> None:
    first, second = run_ranks(2, under_the_hook)
    for found in (first, second):
        assert found["fine"] == found["after"] == ("", "", "")
        assert found["finite"]
        assert found["masked"] == (True, True)
        assert found["hooked"] == ("hooked-late", "0.weight")
        assert found["unfrozen"] == ("unfrozen", "3.weight")
        assert found["replaced"] == ("another-model", "")
        assert found["nothing"] == found["early"] == ("", "")
        assert found["early digest"] == found["first"]
        assert found["early, disagreeing"] == ("ranks-disagree", "rank")
    assert first["memory"][:2] == ("RankdadError", "rank-failed")
    assert "rank 1" in first["memory"][2]
    assert second["memory"][0] == "OutOfMemoryError"


def a_rank_gone() -> tuple[str, str, str]:
    model = perceptron()
    ddp = hooked(model, LowRankState(model, rank=2))
    batch = batches_of((8, 8, 8), 0)[place()]
    for _ in range(2):  # after the first one DistributedDataParallel lays its buckets out anew, by itself
        loss_of(ddp, batch).backward()
    if place() == 2:
        os._exit(0)  # as a killed process leaves it: without a word

    def go_on() -> None:
        for _ in range(3):
            loss_of(ddp, batch).backward()

    return said(go_on)


@pytest.mark.slow
def test_a_rank_that_dies_under_the_hook_is_named() -> None:
    *others, gone = run_ranks(3, a_rank_gone)
    assert gone is None
    assert [found[:2] for found in others] == [("RankdadError", "rank-gone")] * 2


def options() -> dict[str, Any]:
    found: dict[str, Any] = {}
    refusals: dict[str, Callable[[], object]] = {
        "dtype": lambda: LowRank(perceptron(), wire=torch.float16),  # type: ignore[arg-type]
        "dtype, hook": lambda: LowRankState(perceptron(), wire=torch.bfloat16),  # type: ignore[arg-type]
        "int4": lambda: LowRank(perceptron(), rank=None, wire="int4"),
        "int2": lambda: LowRank(perceptron(), rank=None, wire="int2"),
        "bool rank": lambda: LowRank(perceptron(), rank=True),
        "no rank": lambda: LowRankState(perceptron(), rank=None),  # type: ignore[arg-type]
        "both": lambda: LowRankState(perceptron(), feedback="both"),
        "neither": lambda: LowRank(perceptron(), feedback="sometimes"),
        "half a rank": lambda: LowRank(perceptron(), rank=2.5),  # type: ignore[arg-type]
        "no ranks": lambda: LowRank(perceptron(), gather_up_to=-1),
        "seed": lambda: LowRankState(perceptron(), seed="a"),  # type: ignore[arg-type]
        "losses": lambda: LowRank(perceptron()).backward(torch.ones(3, requires_grad=True), weight=3),
    }
    for name, attempt in refusals.items():
        found[name] = refused(attempt)
    found["feedback"] = [repr(LowRank(perceptron(), feedback=each)) for each in (True, "both", False, "none")]
    states = [LowRankState(perceptron(), feedback=each)._options["feedback"] for each in (True, "site", False, "none")]
    found["states"] = states
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LowRank(perceptron(), rank=10_000)
        LowRankState(perceptron(), rank=10_000)
        LowRank(perceptron(), rank=4)
    found["warnings"] = [str(each.message) for each in caught if "rank" in str(each.message)]
    found["place"] = [each.filename.endswith("test_failures.py") for each in caught if "rank" in str(each.message)]
    return found


@pytest.mark.slow
def test_options_are_taken_or_refused_by_name() -> None:
    for found in run_ranks(2, options):
        assert found["dtype"] == found["dtype, hook"] == ("dtype-not-name", "wire")
        assert found["int4"] == found["int2"] == ("wire-needs-rank", "wire")
        assert found["bool rank"] == ("wrong-type", "rank")
        assert found["no rank"] == ("method-needs-rank", "rank")
        assert found["both"] == ("feedback-unknown", "feedback")
        assert found["neither"][1] == "feedback"
        assert found["half a rank"] == ("wrong-type", "rank")
        assert found["no ranks"] == ("gather-out-of-range", "gather_up_to")
        assert found["seed"] == ("wrong-type", "seed")
        assert found["losses"] == ("loss-not-scalar", "loss")
        on, both, off, none = found["feedback"]
        assert on == both != off == none
        assert found["states"] == ["site", "site", "none", "none"]
        assert len(found["warnings"]) == 2
        assert found["place"][0]
