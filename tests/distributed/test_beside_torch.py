"""Beside PyTorch's own: DistributedDataParallel and its powerSGD_hook."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.low_rank import contenders, sent_bytes
from rankdad.common.lowrank.routes import Route
from rankdad.common.methods import Contribution, MethodState
from rankdad.common.methods.dsgd import DsgdMethod
from rankdad.common.methods.powersgd import PowerSgd, PowerSgdMethod
from rankdad.distributed.hook import LowRankState, low_rank_hook
from tests.common.lowrank.steps import exchange, matrix_of
from tests.distributed.nets import batches_of, digest, error, grads, loss_of, perceptron, place, pooled
from tests.ranks import run_ranks

STEPS, BATCH, LR, RANK = 400, 32, 0.05, 4
AVERAGED = 20
ROUTE = Route("weight", (40, 60), up=RANK, down=RANK)


def trained(seed: int) -> dict[str, tuple[float, float]]:
    """Return each method's loss on all digits after 400 steps, and the bytes that this rank has sent for a step.

    The loss is the mean over the last 20 steps: after a single one, methods differ by 3 % to either side from seed to
    seed, exact gradients too.
    """

    def network() -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
        )

    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(labels)
    found = {}
    for contender in contenders(network, RANK, LR):
        generator, before, losses = torch.Generator().manual_seed(10 * seed + place()), sent_bytes(), list[float]()
        for step in range(STEPS):
            chosen = torch.randint(len(x), (BATCH,), generator=generator)
            contender.step(x[chosen], y[chosen])
            if step >= STEPS - AVERAGED:
                with torch.no_grad():
                    losses.append(float(F.cross_entropy(contender.model(x), y)))
        dist.barrier()
        found[contender.name] = fmean(losses), (sent_bytes() - before) / STEPS
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_digits_end_within_5_percent_of_power_sgd_at_no_more_bytes(seed: int) -> None:
    for found in run_ranks(2, trained, seed):
        print(found)
        (ours, our_bytes), (hook, _), (torchs, their_bytes) = found.values()
        assert ours <= 1.05 * torchs  # 1.017, 0.997, 1.028
        assert hook <= 1.1 * torchs  # 0.996, 1.045, 1.029
        assert our_bytes <= their_bytes


def beside_data_parallel() -> tuple[bool, list[float]]:
    """Return whether our dsgd's gradients are DistributedDataParallel's, and our PowerSGD's errors step by step.

    The first error is 0 if every bit is equal: it is where a processor's products of batches round as single ones do.
    Directions are then those of the identity's columns, which no normalisation rounds; later ones torch orthogonalises,
    and ours normalises: the same up to rounding.
    """
    model = perceptron()
    ddp, batches = DistributedDataParallel(model), batches_of((8, 8), 0)
    sites = [tuple(value.reshape(len(value), -1) for value in pooled(model, [batch]).values()) for batch in batches]
    mean, _ = DsgdMethod().aggregate(0, [Contribution(8, site) for site in sites], MethodState(), 0)
    loss_of(ddp, batches[place()]).backward()
    pairs = zip(grads(model).values(), mean, strict=True)
    same = all(torch.equal(found, matrix_of(value).reshape(found.shape)) for found, value in pairs)

    layer = nn.Linear(60, 40, bias=False).double()
    state = PowerSGDState(None, RANK, start_powerSGD_iter=2)
    wrapped = DistributedDataParallel(layer, bucket_cap_mb=1000)
    wrapped.register_comm_hook(state, powerSGD_hook)
    method = PowerSgdMethod(PowerSgd(name="powersgd", rank=RANK, wire="float64"), (ROUTE,), 0)
    start = torch.eye(60, dtype=torch.float64)[:RANK]
    states, aggregator, errors = [MethodState(bases={"weight": start})] * 2, MethodState(), list[float]()
    for step in range(8):
        if step == 2:  # torch begins now
            state.p_memory_dict[0] = torch.empty(40 * RANK, dtype=torch.float64)
            state.q_memory_dict[0] = start.T.flatten()
        batches = batches_of((8, 8), step, torch.float64)
        layer.zero_grad()
        wrapped(batches[place()][0]).square().mean().backward()
        if step < 2:
            continue
        sites = [torch.autograd.grad(layer(x).square().mean(), [layer.weight]) for x, _ in batches]
        (value,), states, aggregator = exchange(method, [(8, site) for site in sites], states, aggregator)
        assert layer.weight.grad is not None
        errors.append(float((matrix_of(value) - layer.weight.grad).norm() / layer.weight.grad.norm()))
    return same, errors


@pytest.mark.slow
def test_dsgd_is_data_parallel_and_powersgd_is_torchs_to_the_last_bit_where_both_define_it() -> None:
    for same, (first, *others) in run_ranks(2, beside_data_parallel):
        assert same
        assert (
            first <= torch.finfo(torch.float64).eps
        )  # 0 where batched and single products round alike: not on every CPU
        assert all(0 < worst <= 1e-11 for worst in others), others


class AtTimes(nn.Module):
    """A perceptron whose middle layer no rank uses in two of three steps, and one rank alone in the third.

    Attributes:
        uses: whether the next pass does.
    """

    uses = True

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.middle = perceptron(), nn.Linear(80, 80)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers[:3](x)
        result: Tensor = self.layers[3:](hidden + self.middle(hidden) if self.uses else hidden)
        return result


def hooked(wire: str, gather_up_to: int) -> tuple[float, float, str]:
    """Return errors of the hook: with all rows in one step, and of what was applied and is kept in twelve; a digest."""
    model, few = perceptron(), AtTimes()
    exact, kept = DistributedDataParallel(model), LowRankState(few, rank=2, wire=wire, gather_up_to=gather_up_to)
    exact.register_comm_hook(LowRankState(exact, rank=20, wire="float64", gather_up_to=gather_up_to), low_rank_hook)
    ddp = DistributedDataParallel(few, bucket_cap_mb=0.02, find_unused_parameters=True)  # several buckets
    ddp.register_comm_hook(kept, low_rank_hook)
    meant, applied = dict[str, Tensor](), dict[str, Tensor]()
    for step in range(12):
        batches = batches_of((8, 8), step)
        for rank, batch in enumerate(batches):
            few.uses = step % 3 == rank
            own = torch.autograd.grad(loss_of(few, batch), list(few.parameters()), materialize_grads=True)
            for (name, _), value in zip(few.named_parameters(), own, strict=True):
                meant[name] = meant.get(name, torch.zeros(())) + value / 2
        few.zero_grad()
        few.uses = step % 3 == place()
        loss_of(ddp, batches[place()]).backward()
        for name, value in grads(few).items():
            applied[name] = applied.get(name, torch.zeros(())) + value
    seen = digest(applied)
    for name, value in applied.items():
        left = torch.zeros_like(value)
        for part in ("site", "node"):
            residual = kept.state_dict()[part]["residuals"].get(name)
            left += 0 if residual is None else residual.reshape(value.shape)
        dist.all_reduce(left)
        applied[name] = value + left
    loss_of(exact, batches[place()]).backward()
    return error(grads(model), pooled(model, batches)), error(applied, meant), seen


def both_hooks() -> list[tuple[float, float, str]]:
    return [hooked("float32", 8), hooked("int8", 8), hooked("float32", 1), hooked("int8", 1)]


@pytest.mark.slow
def test_the_hook_averages_in_buckets_and_forgets_nothing() -> None:
    first, second = run_ranks(2, both_hooks)
    assert first == second
    for whole, telescoped, _ in first:
        assert whole <= 1e-5
        assert telescoped <= 1e-5
