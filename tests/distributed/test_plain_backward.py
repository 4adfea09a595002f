"""A `loss.backward()` beside an open LowRank: it exchanges nothing, and was silent."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from rankdad import LowRank
from tests.distributed.nets import batches_of, loss_of, perceptron, place
from tests.ranks import run_ranks


def told(kind: str) -> list[str]:
    """Return the codes of the warnings of a loop in which something happens beside `sync.backward`."""
    model, batch = perceptron(), batches_of((8, 8), 0)[place()]
    if kind == "no linear layer":
        model = nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 4, batch[0].shape[1]), nn.Flatten())
    sync = LowRank(model, rank=2)
    other = copy.deepcopy(model)
    run: nn.Module = torch.compile(model, backend="aot_eager") if kind == "compiled" else model  # type: ignore[assignment]

    def twice() -> None:
        sync.backward(loss_of(model, batch))
        sync.backward(loss_of(model, batch))

    def closed() -> None:
        sync.close()
        loss_of(model, batch).backward()

    beside: dict[str, Callable[[], object]] = {
        "accumulation": lambda: sync.backward(loss_of(model, batch), exchange=False),
        "twice": twice,
        "autograd.grad": lambda: torch.autograd.grad(loss_of(model, batch), list(model.parameters())),
        "a copy": lambda: loss_of(other, batch).backward(),
        "its loss": lambda: None,
        "closed": closed,
        "gone": lambda: loss_of(model, batch).backward(),
    }
    if kind == "gone":
        del sync
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if kind == "its loss":
            for _ in range(2):
                sync.backward(loss_of(other, batch))
        beside.get(kind, lambda: [loss_of(run, batch).backward() for _ in range(2)])()
        if kind not in ("closed", "gone"):
            sync.backward(loss_of(run, batch))
    return [str(one.message).split("[")[-1].rstrip("]") for one in caught]


CASES = {"plain": 1, "no linear layer": 1, "accumulation": 0, "twice": 0, "autograd.grad": 0, "a copy": 0, "closed": 0}


def all_told() -> dict[str, list[str]]:
    return {kind: told(kind) for kind in (*CASES, "gone", "its loss")}


@pytest.mark.slow
def test_a_plain_backward_beside_a_low_rank_is_warned_of_once() -> None:
    for found in run_ranks(2, all_told):
        assert found.pop("its loss") == ["loss-of-another-model"]  # ranks came apart without a word
        assert found == {kind: ["plain-backward"] * CASES.get(kind, 0) for kind in (*CASES, "gone")}


@pytest.mark.slow
def test_a_plain_backward_of_a_compiled_model_is_warned_of() -> None:
    assert run_ranks(1, told, "compiled") == [["plain-backward"]]
