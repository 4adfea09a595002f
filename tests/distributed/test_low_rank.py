"""`LowRank` over real ranks: exact where nothing is left out, the same everywhere, and what a loop needs around it."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.low_rank import sent_bytes
from rankdad.common.errors import RankdadError
from rankdad.distributed.batches import Batches
from rankdad.distributed.hook import LowRankState, low_rank_hook
from rankdad.distributed.low_rank import LowRank
from tests.conftest import sampled
from tests.distributed.nets import batches_of, digest, error, grads, loss_of, perceptron, place, pooled
from tests.distributed.test_models import refused
from tests.ranks import run_ranks

SIZES = (8, 3, 0, 5)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
FULL = (None, 1000, 20)  # full factors, no layer is reduced, as many rows as the pooled batch can need


def step_by_step(rank: int | None, dtype: torch.dtype, gather_up_to: int) -> tuple[float, str]:
    """Return the largest error of three steps, and what their gradients were."""
    model, places = perceptron(dtype), dist.get_world_size()
    sync = LowRank(model, rank=rank, wire="float64", gather_up_to=gather_up_to)
    worst, seen = 0.0, dict[str, Tensor]()
    for step in range(3):
        batches = batches_of((*SIZES[: places - 1], 5), step, dtype)
        expected = pooled(model, batches)
        model.zero_grad()
        own = batches[place()]
        sync.backward(loss_of(model, own), weight=len(own[1]))
        worst = max(worst, error(grads(model), expected))
        seen |= {f"{step} {name}": value for name, value in grads(model).items()}
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
    sync.close()
    return worst, digest(seen)


def all_exact() -> list[tuple[Any, ...]]:
    settings = [(rank, dtype, up_to) for rank in FULL for dtype in TOLERANCE for up_to in (8, 1)]
    return [(setting, *step_by_step(*setting)) for setting in settings]


@pytest.mark.slow
@pytest.mark.parametrize("places", sampled([2, 3, 4], 3))
def test_nothing_left_out_is_the_pooled_gradient_at_every_rank_unequal_and_empty_batches_included(places: int) -> None:
    for (rank, dtype, up_to), worst, *_ in (ranks := run_ranks(places, all_exact))[0]:
        assert 0 < worst <= TOLERANCE[dtype], (rank, dtype, up_to, worst)
    assert ranks == [ranks[0]] * places


class Transposed(nn.Module):
    """A layer of weights [in, out], such as GPT-2's."""

    low_rank_layout = "in-out"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs, generator=torch.Generator().manual_seed(inputs)) / 9)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight + self.bias


def transposed() -> tuple[list[float], list[Any]]:
    model = nn.Sequential(Transposed(60, 128), nn.Tanh(), Transposed(128, 512), nn.Linear(512, 3)).double()
    errors = list[float]()
    for rank in (None, 1000, 8):
        sync = LowRank(model, rank=rank, wire="float64")
        batches = batches_of((4, 4), 0, torch.float64)
        expected = pooled(model, batches)
        model.zero_grad()
        own = batches[place()]
        sync.backward(loss_of(model, own), weight=len(own[1]))
        errors.append(error(grads(model), expected))
        described = sync.describe()
        sync.close()
    return errors, described


@pytest.mark.slow
def test_a_layer_of_weights_turned_round_has_a_factor_and_says_so() -> None:
    errors, described = run_ranks(2, transposed)[0]
    assert max(errors) <= TOLERANCE[torch.float64]  # eight samples: rank 8 leaves nothing out
    by_name = {one.name: one for one in described}
    how = [by_name[name].how for name in ("0.weight", "2.weight", "2.bias", "3.weight")]
    assert how == ["factor", "factor", "dense", "dense"]
    assert (by_name["2.weight"].rows, by_name["2.weight"].bytes) == (8, 8 * (128 + 512) * 8)


def of_many_rows() -> tuple[list[str], bool]:
    model = nn.Linear(60, 60)
    with LowRank(model, rank=4) as sync:
        sync.backward(model(torch.ones(500, 60)).square().mean())
        described = [str(one.how) for one in sync.describe()]
    with LowRank(model, rank=4) as sync, pytest.MonkeyPatch.context() as patched:
        model.weight.grad, model.bias.grad = torch.ones(60, 60), torch.ones(60)
        patched.setattr(Batches, "_gradients", fails)
        with pytest.raises(RankdadError):
            sync.backward(model(torch.ones(5, 60)).square().mean())
    return described, all(bool((gradient == 1).all()) for gradient in grads(model).values())


def fails(*_: object) -> None:
    raise MemoryError


@pytest.mark.slow
def test_a_layer_of_many_rows_is_said_to_be_reduced_and_a_failure_leaves_gradients_alone() -> None:
    assert run_ranks(2, of_many_rows) == [(["reduced"], True)] * 2


class Many(nn.Module):
    """A layer used twice, one used outside itself, a convolution, an embedding, and a parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 60)
        self.convolution = nn.Conv1d(1, 4, 5, padding=2)
        self.twice, self.outside, self.last = nn.Linear(60, 60), nn.Linear(60, 60), nn.Linear(60, 3)
        self.unused = nn.Linear(60, 60)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.embedding(torch.arange(len(x)) % 7)
        x = self.convolution(x[:, None]).sum(dim=1).relu()
        x = self.twice(self.twice(x).relu())
        result: Tensor = self.last(self.outside(x) + F.linear(x, self.outside.weight).tanh())
        return result


def any_module(gather_up_to: int) -> float:
    torch.manual_seed(0)
    model = Many().double()
    model.register_buffer("counts", torch.full((3,), place(), dtype=torch.int16))  # gloo does not send these
    sync, batches = LowRank(model, rank=None, gather_up_to=gather_up_to), batches_of((8, 3), 0, torch.float64)
    x, y = batches[place()]
    parts = [F.cross_entropy(model(x), y) * len(y) / 11 for x, y in batches]  # the embedding counts within each batch
    used = {name: p for name, p in model.named_parameters() if not name.startswith("unused")}
    expected = dict(zip(used, torch.autograd.grad(parts[0] + parts[1], list(used.values())), strict=True))
    sync.backward(F.cross_entropy(model(x), y), weight=len(y))
    assert not any(p.grad is not None for p in model.unused.parameters())
    assert model.get_buffer("counts").tolist() == [0, 0, 0]
    return error({name: value for name, value in grads(model).items() if name in used}, expected)


def accumulated() -> tuple[float, float]:
    """Return errors of three batches that count as one, and of a second exchange on top of the first."""
    model = perceptron(torch.float64)
    sync = LowRank(model, rank=None)
    batches = batches_of((8, 3, 5, 2, 4, 1), 0, torch.float64)
    expected = pooled(model, batches)
    for number, batch in enumerate(batches[place() :: 2]):
        sync.backward(loss_of(model, batch), weight=len(batch[1]), exchange=number == 2)
        model.eval()(batch[0])  # leaves nothing behind
        model.train()
    once = error(grads(model), expected)
    sync.backward(loss_of(model, batches[place()]), weight=len(batches[place()][1]))
    more = pooled(model, batches[:2])
    return once, error(grads(model), {name: value + more[name] for name, value in expected.items()})


def in_half_precision() -> tuple[float, str]:
    model = perceptron()
    sync, batches = LowRank(model, rank=None), batches_of((8, 3), 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = pooled(model, batches)
        sync.backward(loss_of(model, batches[place()]), weight=len(batches[place()][1]))
    return error(grads(model), expected), digest(grads(model))


def scaled() -> tuple[list[float], float, list[bool]]:
    """Return the scale after each step, and the error of the one without overflow against no scaler at all."""
    model, scaler = perceptron(), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = copy.deepcopy(model)
    sync, plain, scales, moved = LowRank(model, rank=4), LowRank(other, rank=4), list[float](), list[bool]()
    for step in range(3):
        x, y = batches_of((8, 8), step)[place()]
        before = [p.clone() for p in model.parameters()]
        optimizer.zero_grad()
        times = 1e38 if step == 1 and place() == 1 else 1.0  # at one rank a gradient overflows
        sync.backward(loss_of(model, (x, y)) * times, weight=len(y), scaler=scaler)
        if step == 0:
            plain.backward(loss_of(other, (x, y)), weight=len(y))
            worst = error({n: g / 1024 for n, g in grads(model).items()}, grads(other))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)))
    return scales, worst, moved


def telescoped(wire: str, gather_up_to: int) -> float:
    """Return by how much all that was applied and all that is kept differ from all pooled gradients."""
    model = perceptron()
    sync = LowRank(model, rank=2, wire=wire, gather_up_to=gather_up_to)
    meant: dict[str, Tensor] = {}
    for step in range(12):
        batches = batches_of((8, 3 + step % 3), step)
        for name, value in pooled(model, batches).items():
            meant[name] = meant.get(name, torch.zeros(())) + value
        sync.backward(loss_of(model, batches[place()]), weight=len(batches[place()][1]))  # .grad adds up
    found, state = grads(model), sync.state_dict()
    kept = [state["site"], state["node"]]
    for name in meant:
        weight = name.replace("bias", "weight")  # whose last column may be the bias
        left = torch.zeros_like(found[name])
        for residuals in (part["residuals"] for part in kept):
            value = residuals.get(name, residuals.get(weight))
            if value is not None:
                matrix = value if isinstance(value, Tensor) else value[0].T @ value[1]
                whole = matrix.numel() == left.numel()
                left += (matrix if whole else matrix[:, -1] if name != weight else matrix[:, :-1]).reshape(left.shape)
        dist.all_reduce(left)
        found[name] = found[name] + left
    return error(found, meant)


def resumed(gather_up_to: int) -> list[str]:
    """Return the weights after six steps without a break, and with one after three."""
    ends = []
    for stop in (6, 3):
        model = perceptron()
        sync, saved = LowRank(model, rank=2, wire="int8", gather_up_to=gather_up_to), io.BytesIO()
        for step in range(6):
            if step == stop:
                torch.save((model.state_dict(), sync.state_dict()), saved)
                saved.seek(0)
                model = perceptron()
                sync = LowRank(model, rank=2, wire="int8", gather_up_to=gather_up_to)
                weights, state = torch.load(saved, weights_only=True)
                model.load_state_dict(weights)
                sync.load_state_dict(state)
            batch = batches_of((8, 3), step)[place()]
            model.zero_grad()
            sync.backward(loss_of(model, batch), weight=len(batch[1]))
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.5)
        ends.append(digest(dict(model.state_dict())))
    return ends


def sums_of(states: Sequence[bytes]) -> dict[str, Tensor]:
    """Return the sum of all residuals by parameter."""
    found = dict[str, Tensor]()
    for residuals in (state[part]["residuals"] for state in map(read, states) for part in ("site", "node")):
        for name, value in residuals.items():
            matrix = value if isinstance(value, Tensor) else value[0].T @ value[1]
            found[name] = found.get(name, torch.zeros(())) + matrix
    return found


def read(state: bytes) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    return found


def state_after(steps: int, way: str, residuals: str, earlier: list[bytes]) -> tuple[bytes, str]:
    """Return this rank's state after some steps on top of an earlier checkpoint, and a digest of the last gradient."""
    model = perceptron()
    sync: Any = LowRank(model, rank=2) if way == "LowRank" else LowRankState(model, rank=2)
    ddp = DistributedDataParallel(model)
    if way == "hook":
        ddp.register_comm_hook(sync, low_rank_hook)
    if earlier:
        states = list(map(read, earlier))
        sync.load_state_dict(states if residuals == "merge" else states[0], residuals)
    for step in range(steps):
        batch = batches_of((8, 3, 5, 4), step)[place()]
        model.zero_grad()
        sync.backward(loss_of(model, batch)) if way == "LowRank" else loss_of(ddp, batch).backward()
    written = io.BytesIO()
    torch.save(sync.state_dict(), written)
    return written.getvalue(), digest(grads(model))


def not_loaded(way: str, earlier: list[bytes]) -> list[tuple[str, str]]:
    """Return codes and fields of what is said to too few states, another number of ranks, an unknown option."""
    states = list(map(read, earlier))
    sync: Any = LowRank(perceptron(), rank=2) if way == "LowRank" else LowRankState(perceptron(), rank=2)
    attempts = ((states[1:], "merge"), (states[place()], "own"), (states[0], "both"))
    return [refused(partial(sync.load_state_dict, *each)) for each in attempts]


def taken_over(way: str, earlier: list[bytes]) -> tuple[bytes, bytes, str, list[tuple[str, str]]]:
    """Return this rank's state with residuals merged and dropped, a digest of the next step, and what is refused."""
    merged, dropped = (state_after(0, way, residuals, earlier)[0] for residuals in ("merge", "drop"))
    return merged, dropped, state_after(1, way, "merge", earlier)[1], not_loaded(way, earlier)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["LowRank", "hook"])
def test_another_number_of_ranks_merges_or_drops_residuals(way: str) -> None:
    four = [state for state, _ in run_ranks(4, state_after, 3, way, "own", [])]
    before = sums_of(four)
    assert before
    for places in (2, 3):
        merged, dropped, seen, refusals = zip(*run_ranks(places, taken_over, way, four), strict=True)
        after = sums_of(merged)
        assert {read(state)["step"] for state in merged} == {3}
        assert error(after, before) <= 1e-5
        assert not sums_of(dropped)
        assert len(set(seen)) == 1
        assert refusals[0] == [
            ("checkpoint-incomplete", "residuals"),
            ("checkpoint-does-not-fit", "ranks"),
            ("residuals-unknown", "residuals"),
        ]


def around_the_loop() -> dict[str, Any]:
    return {
        "any module": [any_module(up_to) for up_to in (8, 1)],
        "accumulated": accumulated(),
        "half": in_half_precision(),
        "scaled": scaled(),
        "telescoped": [telescoped("float32", 8), telescoped("int8", 8), telescoped("int8", 1)],
        "resumed": [resumed(8), resumed(1)],
    }


@pytest.mark.slow
def test_accumulation_autocast_scaling_clipping_checkpoints_and_any_module() -> None:
    ranks = run_ranks(2, around_the_loop)
    for found in ranks:
        assert all(0 < worst <= 1e-10 for worst in (*found["any module"], *found["accumulated"]))
        assert found["half"][0] <= 1e-2  # bfloat16 has 8 bits
        scales, worst, moved = found["scaled"]
        assert scales == [1024.0, 512.0, 512.0]
        assert worst <= 1e-5
        assert moved == [True, False, True]
        assert all(worst <= 1e-5 for worst in found["telescoped"]), found["telescoped"]
        assert all(undisturbed == broken for undisturbed, broken in found["resumed"])
    assert ranks[0]["half"] == ranks[1]["half"]
    assert ranks[0]["resumed"] == ranks[1]["resumed"]


def sent_in_a_step(way: str, widths: tuple[int, ...]) -> tuple[float, str]:
    """Return the bytes that this rank's connections carry in a step, and a digest of the gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())))
    ddp, steps = DistributedDataParallel(model, bucket_cap_mb=1000), 5
    sync = LowRank(model, rank=4, wire="float32") if way == "LowRank" else None
    if way == "low_rank_hook":
        ddp.register_comm_hook(LowRankState(model, rank=4, wire="float32"), low_rank_hook)
    if way == "powerSGD_hook":
        ddp.register_comm_hook(PowerSGDState(None, 4, start_powerSGD_iter=2), powerSGD_hook)

    def step() -> None:
        x = torch.randn(8, widths[0], generator=torch.Generator().manual_seed(place()))
        loss = (model if sync else ddp)(x).square().mean()
        sync.backward(loss) if sync else loss.backward()

    for _ in range(3):
        step()
    dist.barrier()
    before = sent_bytes()
    for _ in range(steps):
        step()
    dist.barrier()
    return (sent_bytes() - before) / steps, digest(grads(model))


@pytest.mark.slow
@pytest.mark.parametrize("places", sampled([4, 8], 1))
@pytest.mark.parametrize("widths", [(256,) * 7, (64, 512, 10)])  # even; most bytes in one layer
def test_no_rank_sends_more_bytes_than_under_powersgd(places: int, widths: tuple[int, ...]) -> None:
    sent = {}
    for way in ("LowRank", "low_rank_hook", "powerSGD_hook"):
        bytes_of, digests = zip(*run_ranks(places, sent_in_a_step, way, widths), strict=True)
        sent[way] = fmean(bytes_of), max(bytes_of)
        assert len(set(digests)) == 1, way
    (mean, most) = sent.pop("powerSGD_hook")
    for own_mean, busiest in sent.values():
        assert own_mean <= mean, sent
        assert busiest <= most, sent
