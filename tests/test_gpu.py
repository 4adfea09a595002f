"""What must hold on a GPU: the same factors, nearly the same weights as on the CPU, and the same bits when repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from rankdad.common.data import SiteData
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.reduction.block import block
from rankdad.common.lowrank.reduction.exact import exact
from rankdad.common.lowrank.reduction.spi import spi
from rankdad.distributed.low_rank import LowRank
from rankdad.simulations.lockstep import run
from tests.conftest import run_spec
from tests.runs import final_weights, summary_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]
Data = Callable[..., dict[str, SiteData]]


def test_capture_on_a_gpu_is_autograds_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)).double().to("cuda:0")
    inputs, labels = torch.randn(9, 7, dtype=torch.float64, device="cuda:0"), torch.arange(9, device="cuda:0") % 3
    loss = nn.functional.cross_entropy(model(inputs), labels)
    expected = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    with FactorCapture(model) as capture:
        capture.backward(nn.functional.cross_entropy(model(inputs), labels))
    found = {name: factor.gradient() for name, factor in capture.factors().items()} | capture.dense()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].is_cuda
        assert torch.allclose(found[name], value, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("reducer", [block, exact, spi])
def test_a_reduction_on_a_gpu_is_as_good_as_on_the_cpu(reducer: Callable[..., Any]) -> None:
    matrix = torch.randn(60, 40, generator=torch.Generator().manual_seed(0)) @ torch.diag(0.7 ** torch.arange(40.0))
    here, there = reducer(matrix, 4), reducer(matrix.to("cuda:0"), 4)
    assert there.delta.is_cuda
    size = torch.linalg.vector_norm(matrix)
    assert torch.linalg.vector_norm(here.gradient() - there.gradient().cpu()) <= 1e-4 * size


METHODS: list[dict[str, Any]] = [
    {"name": "dsgd"},
    {"name": "rank-dad", "rank": 2},
    {"name": "rank-dad", "rank": 2, "reducer": "spi", "wire": "int8"},
    {"name": "powersgd", "rank": 2},
    {"name": "top-k", "density": 0.1},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method['name']}-{method.get('wire', '')}")
def test_a_run_on_a_gpu_ends_as_on_the_cpu_and_repeated_with_the_same_bits(
    tmp_path: Path, site_data: Data, method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    spec = run_spec(method=method, training={"epochs": 1, "optimizer": {"name": "sgd", "lr": 0.05}})
    weights, digests = [], []
    for at, device in enumerate(("cpu", "cuda:0", "cuda:0")):
        weights.append(final_weights(run(spec, site_data(spec), tmp_path / str(at), devices=[device])))
        digests.append(summary_of(tmp_path / str(at))["weights_sha256"])
    assert digests[1] == digests[2]
    tolerance = 1e-4 if method.get("wire", "float32") == "float32" else 1e-2  # of a wire that rounds, ties may turn
    for name, value in weights[0].items():
        apart = torch.linalg.vector_norm(weights[1][name] - value)
        assert apart <= tolerance * torch.linalg.vector_norm(value), name


def test_sites_take_turns_on_several_devices(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(training={"epochs": 1})
    results = run(spec, site_data(spec), tmp_path / "run", devices=["cuda:0", "cpu"])
    assert set(results) == set(spec.federation.sites)


def watched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Let a synchronisation in passes, or in the iterations of a reduction, be an error; count their calls."""
    calls = Counter[str]()

    def watch(place: Any, name: str) -> None:
        plain = getattr(place, name)

        def within(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            torch.cuda.set_sync_debug_mode("error")
            try:
                return plain(*given, **named)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        monkeypatch.setattr(place, name, within)

    watch(FactorCapture, "backward")
    watch(import_module("rankdad.common.lowrank.reduction.block"), "_iterate")
    return calls


@pytest.mark.parametrize(("rank", "wire"), [(8, "int8"), (4, "float32")])
def test_nothing_synchronises_in_the_passes_and_reductions_of_low_rank(
    monkeypatch: pytest.MonkeyPatch, rank: int, wire: str
) -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 40)).to("cuda:0")
    inputs, labels = torch.randn(32, 64, device="cuda:0"), torch.arange(32, device="cuda:0")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with LowRank(model, rank=rank, wire=wire) as sync:
            calls = watched(monkeypatch)
            for _ in range(2):  # the second has directions and residuals
                sync.backward(nn.functional.cross_entropy(model(inputs), labels), weight=32)
    finally:
        dist.destroy_process_group()
    assert calls.keys() == {"backward", "_iterate"}


def test_nothing_synchronises_in_the_passes_and_reductions_of_a_site(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 1})
    calls = watched(monkeypatch)
    run(spec, site_data(spec), tmp_path / "run", devices=["cuda:0"])
    assert calls.keys() == {"backward", "_iterate"}
