"""What a model is, and becomes, beside a LowRank: divided, replaced, frozen, hooked, copied, left unused."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel

from rankdad.common.errors import RankdadError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.distributed.hook import LowRankState
from rankdad.distributed.low_rank import LowRank
from tests.common.lowrank.test_hooks import megabytes
from tests.distributed.nets import batches_of, digest, error, grads, loss_of, perceptron, place
from tests.ranks import run_ranks

Refusal = tuple[str, str]


def refused(attempt: Callable[[], object]) -> Refusal:
    """Return the code and field of what is raised."""
    try:
        attempt()
    except RankdadError as raised:
        return raised.code, raised.field
    return "", ""


def weights_of(model: nn.Module) -> list[Tensor]:
    tensors = (*model.parameters(), *model.buffers())
    return [p.to_local().clone() if hasattr(p, "to_local") else p.detach().clone() for p in tensors]


def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    fully_shard(model, mesh=mesh)
    return model


def divided() -> dict[str, nn.Module]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    models: dict[str, Callable[[], nn.Module]] = {
        "FSDP": lambda: FullyShardedDataParallel(perceptron(), device_id=torch.device("cpu")),
        "FSDP of a part": lambda: nn.Sequential(
            FullyShardedDataParallel(nn.Linear(60, 40), device_id=torch.device("cpu")), nn.Linear(40, 3)
        ),
        "fully_shard": lambda: sharded(perceptron(), mesh),
        "tensor parallel": lambda: parallelize_module(perceptron(), mesh, {"0": ColwiseParallel()}),
        "meta": lambda: perceptron().to("meta"),
        "fully_shard on meta": lambda: sharded(perceptron().to("meta"), mesh),
        "DDP of a part": lambda: nn.Sequential(DistributedDataParallel(nn.Linear(60, 40)), nn.Linear(40, 3)),
    }
    return {name: make() for name, make in models.items()}


def refuses_divided() -> dict[str, tuple[Refusal, Refusal, bool]]:
    """Return what LowRank and LowRankState say, and whether the weights are as they were."""
    found = {}
    for name, model in divided().items():
        before = weights_of(model)
        says = refused(partial(LowRank, model)), refused(partial(LowRankState, model))
        after = weights_of(model)
        found[name] = (*says, "meta" in name or all(map(torch.equal, before, after)))
    return found


@pytest.mark.slow
def test_divided_models_are_refused_before_a_weight_is_touched() -> None:
    for found in run_ranks(2, refuses_divided):
        codes = {name: (low_rank[0], state[0]) for name, (low_rank, state, _) in found.items()}
        assert codes == {
            **dict.fromkeys(("FSDP", "FSDP of a part"), ("model-sharded",) * 2),
            "fully_shard": ("", "model-sharded"),
            "tensor parallel": ("mesh-does-not-fit", "model-sharded"),  # whose ranks have no batches of their own
            "meta": ("model-on-meta",) * 2,
            "fully_shard on meta": ("model-on-meta", "model-sharded"),
            "DDP of a part": ("model-wrapped",) * 2,
        }
        assert all(same for *_, same in found.values())
        assert found["tensor parallel"][0][1] == "0.weight"


def backward(sync: LowRank, model: nn.Module, step: int = 0) -> None:
    x, y = batches_of((8, 8), step)[place()]
    sync.backward(loss_of(model, (x, y)), weight=len(y))


def replaced() -> dict[str, Refusal]:
    """Return what is said after changes that no step can follow."""

    def new_head(model: nn.Sequential) -> None:
        model[5] = nn.Linear(70, 3)

    def dropped(model: nn.Sequential) -> None:
        model[5].register_parameter("bias", None)

    def more(model: nn.Sequential) -> None:
        model.register_parameter("scale", nn.Parameter(torch.ones(3)))

    def at_one_rank(model: nn.Sequential) -> None:
        if place():
            new_head(model)

    def frozen_at_one_rank(model: nn.Sequential) -> None:
        if place():
            model[3].requires_grad_(False)

    def hooked_at_one_rank(model: nn.Sequential) -> None:
        if place():
            model.get_parameter("3.weight").register_hook(lambda gradient: gradient * 0)

    changes: dict[str, Callable[[nn.Sequential], object]] = {
        "new head": new_head,
        "assigned": lambda m: m.load_state_dict({n: v.clone() for n, v in m.state_dict().items()}, assign=True),
        "weight_norm": lambda m: weight_norm(m[3]),
        "dropped": dropped,
        "more": more,
        "sharded": lambda m: fully_shard(m, mesh=init_device_mesh("cpu", (dist.get_world_size(),))),
        "at one rank": at_one_rank,
        "frozen at one rank": frozen_at_one_rank,
        "hooked at one rank": hooked_at_one_rank,
        "all frozen": lambda m: m.requires_grad_(False),
        "grown": grown,
        "steps in backward": steps_in_backward,
    }
    found = {}
    for name, change in changes.items():
        model = perceptron()
        with LowRank(model, rank=2) as sync:
            backward(sync, model)
            change(model)
            if name == "all frozen":
                found[name] = refused(partial(sync.backward, torch.ones((), requires_grad=True)))
            else:
                found[name] = refused(partial(backward, sync, model))
    return found


def grown(model: nn.Module) -> None:
    """Give the last layer a class more in place, as where a head is made larger."""
    for parameter in model[5].parameters():  # type: ignore[index]
        parameter.data = torch.cat([parameter.data, parameter.data[:1]])


def steps_in_backward(model: nn.Module) -> None:
    weight = model.get_parameter("3.weight")
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(parameter: nn.Parameter) -> None:
        optimizer.step()
        optimizer.zero_grad()

    weight.register_post_accumulate_grad_hook(step)


def followed(rank: int | None, gather_up_to: int) -> tuple[float, list[list[str]], str]:
    """Freeze, unfreeze and hook in mid-training; return the worst error, whose `.grad` is None, and a digest."""
    dtype = torch.float64
    model, nothing, seen = perceptron(dtype), list[list[str]](), dict[str, Tensor]()
    model[0].requires_grad_(False)
    sync = LowRank(model, rank=rank, wire="float64", gather_up_to=gather_up_to)
    worst, handles = 0.0, list[Any]()

    def masks(parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        parameter.grad[:, ::2] = 0

    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: model[0].requires_grad_(True),
        lambda: model[3].requires_grad_(False),
        lambda: model.get_parameter("5.bias").requires_grad_(False),
        lambda: model.requires_grad_(True),
        lambda: handles.append(model.get_parameter("3.weight").register_hook(lambda gradient: gradient * 2)),
        lambda: handles.pop().remove(),
        lambda: handles.append(model.get_parameter("0.weight").register_post_accumulate_grad_hook(masks)),
        lambda: None,
    ]
    for step, change in enumerate(changes):
        change()
        batches = batches_of((8, 8), step, dtype)
        model.zero_grad()
        (sum(loss_of(model, batch) for batch in batches) / 2).backward()  # type: ignore[union-attr]
        expected = grads(model)
        model.zero_grad()
        sync.backward(loss_of(model, batches[place()]), weight=8)
        worst = max(worst, error(grads(model), expected)) if rank is None else worst
        seen |= {f"{step} {name}": value for name, value in grads(model).items()}
        nothing.append([name for name, parameter in model.named_parameters() if parameter.grad is None])
        if step >= 7:
            assert not grads(model)["0.weight"][:, ::2].any()
    return worst, nothing, digest(seen)


def changes() -> tuple[dict[str, Refusal], list[tuple[float, list[list[str]], str]]]:
    return replaced(), [followed(rank, up_to) for rank in (None, 2) for up_to in (8, 1)]


@pytest.mark.slow
def test_what_changes_after_the_constructor_is_followed_or_named_at_all_ranks() -> None:
    ranks = run_ranks(2, changes)
    assert (
        ranks[0][0]
        == ranks[1][0]
        == {
            "new head": ("parameter-replaced", "5.weight"),
            "assigned": ("parameter-replaced", "0.weight"),
            "weight_norm": ("parameter-replaced", "3.weight"),
            "dropped": ("parameter-replaced", "5.bias"),
            "more": ("parameter-replaced", "scale"),
            "sharded": ("", ""),
            "at one rank": ("parameter-replaced", "5.weight"),
            "frozen at one rank": ("ranks-disagree", "model"),
            "hooked at one rank": ("ranks-disagree", "model"),
            "all frozen": ("nothing-trained", "model"),
            "grown": ("parameter-replaced", "5.weight"),
            "steps in backward": ("stepped-in-backward", "3.weight"),
        }
    )
    assert [each[1:] for each in ranks[0][1]] == [each[1:] for each in ranks[1][1]]  # bit for bit
    frozen = [["0.weight", "0.bias"], [], ["3.weight", "3.bias"], ["3.weight", "3.bias", "5.bias"], *[[]] * 5]
    for worst, nothing, _ in (each for rank in ranks for each in rank[1]):
        assert worst <= 1e-10
        assert nothing == frozen


def two_losses() -> float:
    """Return the error of two losses of one forward pass, which count as two batches."""
    model, (batch, other) = perceptron(torch.float64), batches_of((8, 8), 0, torch.float64)
    x, y = (batch, other)[place()]
    sync = LowRank(model, rank=None)
    logits = model(x)
    sync.backward(F.cross_entropy(logits, y), weight=1, exchange=False, retain_graph=True)
    sync.backward(logits.square().mean(), weight=3)
    found = grads(model)
    model.zero_grad()
    for x, y in (batch, other):
        logits = model(x)
        ((F.cross_entropy(logits, y) + 3 * logits.square().mean()) / 8).backward()
    return error(found, grads(model))


def at_any_moment() -> dict[str, Any]:
    """Copy, average, save and let go of a model at any moment; return what was found."""
    model, batch = perceptron(), batches_of((30, 30), 0)[place()]  # fewer rows than a matrix is worth: captured
    sync = LowRank(model, rank=2)
    loss = loss_of(model, batch)
    copied = copy.deepcopy(model)
    AveragedModel(model)
    torch.save(model, io.BytesIO())
    sync.backward(loss, weight=30)
    before = 0.0
    for step in range(503):
        loss_of(model, batch)
        loss_of(copied, batch).backward()
        loss_of(model, batch).backward()
        before = megabytes() if step == 2 else before
    grown = megabytes() - before
    found = {"grown": grown, "captures": len(model[0]._forward_hooks), "repr": repr(sync), "error": two_losses()}
    kept = list(model[0]._forward_hooks)
    for _ in range(2):
        backward(sync, model)
    found["rebuilt"] = list(model[0]._forward_hooks) != kept
    model[3].requires_grad_(False)
    backward(sync, model)
    found["rebuilt on change"] = list(model[0]._forward_hooks) != kept
    reference = weakref.ref(sync)
    del sync
    gc.collect()
    found |= {"gone": reference() is None, "hooks": [len(module._forward_hooks) for module in model]}
    with LowRank(model, rank=2) as other:
        backward(other, model)
    closed = refused(lambda: backward(other, model))
    return found | {"closed": closed, "after": [len(module._forward_hooks) for module in model]}


@pytest.mark.slow
def test_nothing_is_kept_alive_and_models_are_copied_at_any_moment() -> None:
    for found in run_ranks(2, at_any_moment):
        assert found["grown"] < 10
        assert found["captures"] == 1
        assert (found["rebuilt"], found["rebuilt on change"]) == (False, True)
        assert 0 < found["error"] <= 1e-10
        assert found["gone"]
        assert found["hooks"] == found["after"] == [0] * 6
        assert found["closed"] == ("closed", "")
        assert found["repr"].startswith("LowRank(rank=2, feedback='both', wire='int8'")


def captured_in_parts() -> list[float]:
    """Return how far factors of layers that tensor parallel has divided are from whole gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 80), nn.Tanh(), nn.Linear(80, 3)).double()
    x = torch.randn(5, 60, dtype=torch.float64)
    model(x).square().sum().backward()
    whole = grads(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    with FactorCapture(model) as capture:
        capture.backward(model(x).square().sum())
    found = {name: factor.gradient() for name, factor in capture.factors().items()}
    parts = {name: value.full_tensor() for name, value in found.items() if isinstance(value, DTensor)}
    return [error({name: value}, {name: whole[name]}) for name, value in parts.items()]


@pytest.mark.slow
def test_layers_that_tensor_parallel_divides_have_factors() -> None:
    for found in run_ranks(2, captured_in_parts):
        assert len(found) == 2
        assert max(found) < 1e-14


def compiled() -> tuple[float, str]:
    """Return how far a compiled model's gradients are from those of the model as it is, and a digest of them."""
    errors, found = list[float](), dict[str, Tensor]()
    expected: dict[str, Tensor] = {}
    torch._dynamo.reset()
    for wrapped in (False, True):
        model = perceptron().double()
        with LowRank(model, rank=3, seed=1) as sync:
            called = torch.compile(model, fullgraph=True, backend="aot_eager") if wrapped else model
            inputs, labels = batches_of((4, 4), 0, torch.float64)[place()]
            sync.backward(F.cross_entropy(called(inputs), labels))
        found = grads(model)
        errors.append(error(found, expected or found))
        expected = expected or found
    torch._dynamo.reset()
    return max(errors), digest(found)


@pytest.mark.slow
def test_a_compiled_model_has_one_graph_and_the_same_gradients() -> None:
    (error_, digest_), (_, other) = run_ranks(2, compiled)
    assert error_ < 1e-12
    assert digest_ == other


def described_by_the_hook() -> list[tuple[str, str, int | None, int | None]]:
    state = LowRankState(nn.Sequential(nn.Embedding(50, 16, sparse=True), nn.Linear(16, 64)), rank=2)
    return [(one.name, one.how, one.rows, one.bytes) for one in state.describe()]


@pytest.mark.slow
def test_the_hook_says_how_parameters_travel() -> None:
    assert run_ranks(2, described_by_the_hook)[0] == [
        ("1.weight", "reduced", 2, 2 * (16 + 64) + 2 * 4 * 2),
        ("1.bias", "dense", None, 64 + 4),
        ("0.weight", "sparse", None, None),
    ]
