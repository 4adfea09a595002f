"""Weights to begin with, frozen layers, and what is said where names, shapes or files do not fit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from rankdad.common.models import build_model, build_network
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from tests.common.faults import fault
from tests.common.lowrank.steps import BATCHES, batch_of, site_gradients
from tests.conftest import run_spec

MLP: dict[str, Any] = {"name": "mlp", "hidden": [16, 8]}
FACTORY: dict[str, Any] = {"name": "factory", "factory": "torch.nn:Linear"}
FACTORY["arguments"] = {"in_features": 6, "out_features": 3}


def beginning(folder: Path, model: dict[str, Any], weights: dict[str, Tensor], **options: Any) -> RunSpec:
    """A run that begins with weights, which are written into a file."""
    save_file(weights, folder / "w.safetensors")
    digest = hashlib.sha256((folder / "w.safetensors").read_bytes()).hexdigest()
    return run_spec(model=model | {"pretrained": {"file": "w.safetensors", "sha256": digest} | options})


def weights_of(model: dict[str, Any] = MLP) -> dict[str, Tensor]:
    return build_network(run_spec(model=model, seed=7), ["torch.nn:Linear@torch==*"]).state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("model", [MLP, FACTORY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_network_begins_with_the_files_weights(tmp_path: Path, model: dict[str, Any], dtype: torch.dtype) -> None:
    weights = {name: value.to(dtype) for name, value in weights_of(model).items()}
    spec = beginning(tmp_path, model, weights)
    replica = Replica(spec, ["torch.nn:Linear@torch==*"], weights=tmp_path)
    assert replica.weights().keys() == weights.keys()
    for name, value in replica.weights().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, weights[name].float())


def test_what_is_skipped_keeps_its_random_weights(tmp_path: Path) -> None:
    weights = weights_of() | {"5.weight": torch.zeros(10, 8), "decoder.weight": torch.zeros(2)}
    del weights["3.bias"]
    spec = beginning(tmp_path, MLP, weights, skip=["5.*", "3.bias", "decoder*"])
    loaded, random = build_model(spec, weights=tmp_path).state_dict(), build_network(spec).state_dict()
    assert loaded.keys() == random.keys()
    for name, value in loaded.items():
        assert torch.equal(value, (weights if name in ("1.weight", "1.bias", "3.weight") else random)[name])


@pytest.mark.parametrize(
    ("changes", "options", "code"),
    [
        ({"3.bias": None}, {}, "weights-do-not-fit"),
        ({"extra": torch.zeros(1)}, {}, "weights-do-not-fit"),
        ({"5.weight": torch.zeros(10, 8)}, {}, "weights-do-not-fit"),
        ({"5.bias": torch.zeros(3, dtype=torch.int64)}, {}, "weights-do-not-fit"),
        ({"5.bias": torch.full((3,), torch.nan)}, {}, "weights-do-not-fit"),
        ({"5.bias": torch.full((3,), 1e300, dtype=torch.float64)}, {}, "weights-do-not-fit"),
        ({}, {"skip": ["head.*"]}, "pattern-matches-nothing"),
        ({}, {"sha256": "0" * 64}, "digest-differs"),
        ({}, {"file": "other.safetensors"}, "cannot-read"),
        ({}, {"file": "../w.safetensors"}, "field-invalid"),
        ({}, {"sha256": "ABC"}, "field-invalid"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, changes: dict[str, Tensor | None], options: dict[str, Any], code: str
) -> None:
    weights = {name: value for name, value in (weights_of() | changes).items() if value is not None}
    assert fault(lambda: build_model(beginning(tmp_path, MLP, weights, **options), weights=tmp_path))[0] == code


def test_a_missing_folder_and_another_format_are_said(tmp_path: Path) -> None:
    spec = beginning(tmp_path, MLP, weights_of())
    assert fault(lambda: build_model(spec))[:2] == ("weights-missing", "model.pretrained.file")
    (tmp_path / "w.safetensors").write_bytes(content := b"\x80\x04 no tensors")
    pretrained = {"file": "w.safetensors", "sha256": hashlib.sha256(content).hexdigest()}
    assert (
        fault(lambda: build_model(run_spec(model=MLP | {"pretrained": pretrained}), weights=tmp_path))[0]
        == "not-safetensors"
    )


@pytest.mark.parametrize("method", [{"name": "dsgd"}, {"name": "dad"}, {"name": "rank-dad", "rank": 2}])
def test_frozen_parameters_neither_travel_nor_change(method: dict[str, Any]) -> None:
    spec = run_spec(model=MLP | {"frozen": ["1.*", "3.bias"]}, method=method)
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    trained = {"3.weight", "5.weight", "5.bias"}
    assert {route.name for route in plan.routes} | {route.bias for route in plan.routes if route.bias} == trained
    assert plan.dense_bytes == 4 * (16 * 8 + 8 * 3 + 3)
    payload = site_gradients(plan, replica, batch_of(BATCHES[0], 0, "float32"))
    assert len(payload) == len(plan.routes)
    before = replica.weights()
    replica.apply({name: torch.ones_like(replica.model.get_parameter(name)) for name in trained})
    changed = {name for name, value in replica.weights().items() if not torch.equal(value, before[name])}
    assert changed == trained
    other = Replica(spec)
    other.load_state(replica.state(), replica.step)
    assert other.digest() == replica.digest()


@pytest.mark.parametrize(
    ("frozen", "code"),
    [(["1.*", "head.*"], "pattern-matches-nothing"), (["*"], "nothing-to-train"), ([3], "field-invalid")],
)
def test_patterns_that_cannot_be_meant_are_named(frozen: list[Any], code: str) -> None:
    assert fault(lambda: build_model(run_spec(model=MLP | {"frozen": frozen})))[0] == code
