"""Networks of MONAI by name: captured exactly, trained alike at all sites, and nonsense named."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from rankdad.common.errors import SpecError, UserError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.models import build_model
from rankdad.common.spec import RunSpec
from tests.conftest import run_spec

NETWORK: dict[str, Any] = {"name": "monai", "network": "ResNet10", "dims": 2}


def spec_of(shape: tuple[int, ...] = (1, 32, 32), **changes: Any) -> RunSpec:
    return run_spec(model=NETWORK | changes, data={"shape": list(shape)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "norm"),
    [
        ("ResNet10", "group"),
        ("ResNet50", "batch"),
        ("DenseNet121", "group"),
        ("EfficientNetB0", "batch"),
    ],
)
def test_what_is_captured_of_a_network_is_its_gradient(network: str, norm: str) -> None:
    pytest.importorskip("monai")
    model = build_model(spec_of(network=network, norm=norm)).train()
    inputs, labels = torch.randn(4, 1, 32, 32), torch.tensor([0, 1, 2, 0])
    torch.manual_seed(0)
    with FactorCapture(model) as capture:
        capture.backward(F.cross_entropy(model(inputs), labels))
        found = {name: one.gradient() for name, one in capture.factors().items()} | capture.dense()
    assert capture.factors().keys(), "the last layer is linear"
    model.zero_grad()
    torch.manual_seed(0)
    F.cross_entropy(model(inputs), labels).backward()
    expected = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=1e-5), name


def test_without_monai_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "monai.networks", None)
    with pytest.raises(UserError, match=r"model.name: monai needs MONAI, .*pip install 'rankdad\[monai\]'"):
        build_model(spec_of())


@pytest.mark.parametrize(
    ("shape", "changes", "said"),
    [
        ((1, 32, 32), {"network": "os.system"}, "model.network"),
        ((1, 32, 32), {"dropout": 0.5}, "dropout: got 0.5, but ResNet10 has none, expected 0"),
        ((1, 32, 31), {}, r"model.network: ResNet10 halves .* data.shape \[1, 32, 31\], expected at least 32"),
        ((1, 32, 32, 32), {}, r"model.name: monai expected \[height, width\]"),
    ],
)
def test_nonsense_is_named(shape: tuple[int, ...], changes: dict[str, Any], said: str) -> None:
    pytest.importorskip("monai")
    with pytest.raises(SpecError, match=said):
        build_model(spec_of(shape, **changes))
