"""A weight that a hook masks stays masked in a run, whatever travels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rankdad.common.data import SiteData
from rankdad.common.errors import SpecError
from rankdad.common.lowrank.layers import copied
from rankdad.common.models import build_model
from rankdad.common.protocol.plan import make_plan
from rankdad.local.ranks.fsdp import sharded
from rankdad.simulations.lockstep import run
from tests.conftest import run_spec
from tests.runs import final_weights

FACTORY = "tests.simulations.test_hooks:masked"
METHODS: dict[str, dict[str, Any]] = {
    "rank-dad": {"name": "rank-dad", "rank": 2},
    "rank-dad, int4": {"name": "rank-dad", "rank": 2, "wire": "int4"},
    "powersgd": {"name": "powersgd", "rank": 2},
    "top-k": {"name": "top-k", "density": 0.1},
    "dad": {"name": "dad"},
    "dsgd": {"name": "dsgd"},
    "local steps": {"name": "rank-dad", "rank": 2, "local_steps": 3},
}


def masked(kind: str) -> nn.Module:
    """Half the columns of one weight are never to change."""
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
    weight = model.get_parameter("2.weight")
    mask = (torch.arange(40) % 2).to(weight).expand_as(weight)

    def of_sum(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(mask)

    if kind == "tensor":
        weight.register_hook(lambda gradient: gradient * mask)
    else:
        weight.register_post_accumulate_grad_hook(of_sum)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensor", "post-accumulate"])
@pytest.mark.parametrize("method", METHODS)
def test_a_masked_weight_stays_masked(
    tmp_path: Path, site_data: Callable[..., dict[str, SiteData]], method: str, kind: str
) -> None:
    model = {"name": "factory", "factory": FACTORY, "arguments": {"kind": kind}}
    training = {"optimizer": {"name": "sgd", "lr": 0.1}, "epochs": 1}
    spec = run_spec(model=model, method=METHODS[method], training=training)
    before = build_model(spec, [FACTORY]).state_dict()["2.weight"].clone()
    after = final_weights(run(spec, site_data(spec), tmp_path / "run", allowed_factories=[FACTORY]))["2.weight"]
    assert torch.equal(after[:, ::2], before[:, ::2])
    assert not torch.equal(after[:, 1::2], before[:, 1::2])


@pytest.mark.parametrize("kind", ["tensor", "post-accumulate"])
def test_int2_has_no_zero_for_what_a_hook_masks(kind: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_plan(run_spec(method=METHODS["rank-dad"] | {"wire": "int2"}), masked(kind))
    assert (caught.value.code, caught.value.field) == ("wire-without-zero", "method.wire")


def test_a_copy_to_train_alone_has_the_hooks() -> None:
    for kind in ("tensor", "post-accumulate"):
        model = copied(masked(kind))
        model(torch.randn(5, 6)).square().sum().backward()
        gradient = model.get_parameter("2.weight").grad
        assert gradient is not None
        assert not gradient[:, ::2].any()


def test_sharding_refuses_what_it_would_drop_before_it_divides_anything() -> None:
    model = masked("tensor")
    before = dict(model.named_parameters())
    with pytest.raises(SpecError) as caught:
        sharded(model, DeviceMesh("cpu", [0], _init_backend=False, _rank=0))
    assert (caught.value.code, caught.value.field) == ("hook-lost", "model")
    assert all(before[name] is parameter for name, parameter in model.named_parameters())


@pytest.mark.parametrize("kind", ["tensor", "post-accumulate"])
def test_edad_refuses_what_a_hook_changes(kind: str) -> None:
    spec = run_spec(method={"name": "edad"})
    with pytest.raises(SpecError) as caught:
        make_plan(spec, masked(kind))
    assert (caught.value.code, caught.value.field) == ("edad-misfit", "method.name")
    layered = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    layered[0].register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(SpecError) as caught:
        make_plan(spec, layered)
    assert caught.value.code == "edad-misfit"
