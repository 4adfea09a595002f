"""Recurrent networks: torch's equations, and padding that changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankdad.common.errors import SpecError
from rankdad.common.models import build_model
from tests.conftest import run_spec

FEATURES = 3
every_kind = pytest.mark.parametrize("kind", ["gru", "lstm"])
every_pooling = pytest.mark.parametrize("pooling", ["last", "mean"])


def network(kind: str, pooling: str = "last", hidden: tuple[int, ...] = (6, 5), **options: Any) -> nn.Module:
    model = {"name": kind, "hidden": list(hidden), "pooling": pooling} | options
    spec = run_spec(model=model, data={"shape": [9, FEATURES]}, training={"dtype": "float64"})
    return build_model(spec).eval()


def series(*lengths: int) -> list[Tensor]:
    torch.manual_seed(len(lengths))
    return [torch.randn(length, FEATURES, dtype=torch.float64) for length in lengths]


def padded(parts: list[Tensor], frames: int) -> Tensor:
    batch = torch.full((len(parts), frames, FEATURES), torch.nan, dtype=torch.float64)
    for row, part in zip(batch, parts, strict=True):
        row[: len(part)] = part
    return batch


@every_kind
@every_pooling
def test_torchs_layers_compute_the_same(kind: str, pooling: str) -> None:
    model = network(kind, pooling)
    (x,) = (states,) = (torch.stack(series(9, 9)),)
    for layer in model.get_submodule("layers").children():
        made = nn.GRU if kind == "gru" else nn.LSTM
        inputs, hidden = layer.get_parameter("input.weight").shape[1], layer.get_parameter("state.weight").shape[1]
        torchs = made(inputs, hidden, batch_first=True, dtype=torch.float64)
        torchs.load_state_dict(
            {
                f"{kind_of}_{ours[0]}h_l0": layer.get_parameter(f"{module}.{kind_of}")
                for ours, module in (("i", "input"), ("h", "state"))
                for kind_of in ("weight", "bias")
            }
        )
        states = torchs(states)[0]
    pooled = states[:, -1] if pooling == "last" else states.mean(dim=1)
    torch.testing.assert_close(model(x), model.get_submodule("head")(pooled))


@every_kind
@every_pooling
@pytest.mark.parametrize("frames", [9, 30])
def test_padding_changes_no_output_and_no_gradient(kind: str, pooling: str, frames: int) -> None:
    model, parts = network(kind, pooling), series(9, 4, 1, 6)
    alone = torch.cat([model(part[None]) for part in parts])
    alone.sin().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    together = model(padded(parts, frames))
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    together.sin().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-12)


@every_kind
@every_pooling
def test_how_much_padding_follows_changes_not_a_bit(kind: str, pooling: str) -> None:
    model, parts = network(kind, pooling), series(7, 4)
    assert torch.equal(model(padded(parts, 8)), model(padded(parts, 50)))


@every_kind
@every_pooling
def test_gaps_within_are_left_out(kind: str, pooling: str) -> None:
    model, (part,) = network(kind, pooling), series(6)
    gaps = torch.full((9, FEATURES), torch.nan, dtype=torch.float64)
    gaps[[0, 2, 3, 5, 7, 8]] = part
    torch.testing.assert_close(model(gaps[None]), model(part[None]))


@every_kind
@every_pooling
def test_a_series_of_padding_alone_has_the_output_of_no_state(kind: str, pooling: str) -> None:
    model = network(kind, pooling)
    output = model(padded(series(0), 4))
    assert torch.equal(output[0], model.get_parameter("head.bias"))
    output.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@every_kind
def test_a_single_nan_is_no_padding(kind: str) -> None:
    (part,) = series(5)
    part[2, 1] = torch.nan
    assert network(kind)(part[None]).isnan().all()


@every_kind
def test_dropout_is_for_training(kind: str) -> None:
    model, x = network(kind, dropout=0.5), torch.stack(series(9, 9))
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


@every_kind
def test_more_frames_than_torch_can_free_the_graph_of_are_refused(kind: str) -> None:
    """Of 20,000 the process ends with a segmentation fault."""
    model = {"name": kind, "hidden": [4, 4]}
    build_model(run_spec(model=model, data={"shape": [5000, FEATURES]}))
    with pytest.raises(SpecError, match=r"data\.shape: got 5001 frames for 2 layers of .*, expected .* at most 10,000"):
        build_model(run_spec(model=model, data={"shape": [5001, FEATURES]}))
