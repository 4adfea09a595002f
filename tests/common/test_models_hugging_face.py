"""Architectures of transformers: padding, factors, weights by name, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.routes import gather, scatter
from rankdad.common.memory import check_memory
from rankdad.common.models import build_model
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from tests.common.faults import fault
from tests.common.test_models_text import padded
from tests.texts import CLASSES, text_spec

LANGUAGE: dict[str, Any] = {"name": "language-model"}
SMALL: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "gpt2": {"n_embd": 8, "n_layer": 1, "n_head": 2},
}


def spec_of(architecture: str, task: dict[str, Any] = CLASSES, **changes: Any) -> RunSpec:
    own = {"name": "hugging-face", "architecture": architecture, "config": SMALL.get(architecture, {})} | changes
    document = text_spec(task=task).model_dump(mode="json") | {"model": own}
    return RunSpec.model_validate(document)


def inner(model: nn.Module) -> dict[str, Tensor]:
    """Weights by the names that files of transformers have."""
    return model.get_submodule("model").state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "task"), [("bert", CLASSES), ("gpt2", CLASSES), ("gpt2", LANGUAGE)])
def test_padding_changes_no_output_and_layers_have_routes(architecture: str, task: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    spec = spec_of(architecture, task)
    model = build_model(spec).eval()
    texts = [b"abc", b"a longer text"]
    together = model(padded(texts, 32))
    assert together.shape == (2, *spec.output_shape)
    for row, text in enumerate(texts):
        alone = model(padded([text], len(text)))[0]
        own = together[row] if task is CLASSES else together[row, : len(text)]
        torch.testing.assert_close(own, alone, rtol=0, atol=1e-5)
    trained = {name for name, _ in model.named_parameters()}
    plan = make_plan(spec, model)
    assert {name for route in plan.routes for name in route.names} == trained
    for name, value in inner(build_model(spec)).items():
        assert torch.equal(value, inner(model)[name])


def test_layers_of_gpt2_have_factors() -> None:
    """Their weights are [in, out]: a run had formed their gradients."""
    pytest.importorskip("transformers")
    spec = spec_of("gpt2")
    model = build_model(spec).eval()
    routes = make_plan(spec, model).routes
    units = {route.name: route.units for route in routes if route.linear == "in-out"}
    layers = {"attn.c_attn": 24, "attn.c_proj": 8, "mlp.c_fc": 32, "mlp.c_proj": 8}
    assert units == {f"model.transformer.h.0.{name}.weight": most for name, most in layers.items()}
    with FactorCapture(model, units) as capture:
        capture.backward(model(padded([b"a text", b"another"], 8)).square().sum())
    assert capture.factors().keys() == units.keys()
    payload = gather(routes, capture.factors(), capture.dense(), torch.zeros(()))
    found = scatter(routes, payload)
    trained = dict(model.named_parameters())
    loss = model(padded([b"a text", b"another"], 8)).square().sum()
    for name, expected in zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True):
        torch.testing.assert_close(found[name], expected)


def test_weights_are_those_of_a_local_file(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    given = inner(build_model(spec_of("bert")))
    given = {name: value + 1 if value.is_floating_point() else value for name, value in given.items()}
    safetensors.torch.save_file(given, tmp_path / "bert.safetensors")
    digest = hashlib.sha256((tmp_path / "bert.safetensors").read_bytes()).hexdigest()
    model = build_model(spec_of("bert", pretrained={"file": "bert.safetensors", "sha256": digest}), weights=tmp_path)
    for name, value in inner(model).items():
        assert torch.equal(value, given[name])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"config": {"auto_map": {"AutoModel": "owner/name--code.Model"}}}, ("remote-code", "model.config")),
        ({"config": {"trust_remote_code": True}}, ("remote-code", "model.config")),
        ({"config": {"_attn_implementation": "owner/kernel"}}, ("remote-code", "model.config")),
        ({"config": {"attn_implementation": "owner/kernel"}}, ("remote-code", "model.config")),
        ({"config": {"parts": [{"_attn_implementation": "owner/kernel"}]}}, ("remote-code", "model.config")),
        pytest.param(
            {"config": SMALL["bert"] | {"num_hidden_layers": 10**9}},
            ("architecture-unsuitable", "model.config"),
            marks=pytest.mark.slow,
        ),
        ({"architecture": "no-such"}, ("architecture-unknown", "model.architecture")),
        ({"config": {"no_such": 1}}, ("architecture-unknown", "model.config")),
        ({"config": {"hidden_size": 9, "num_attention_heads": 2}}, ("architecture-unsuitable", "model.config")),
        ({"architecture": "vit", "config": {}}, ("architecture-unsuitable", "model.config")),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, Any], expected: tuple[str, str]) -> None:
    if expected[0] != "remote-code":
        pytest.importorskip("transformers")
    assert fault(lambda: build_model(spec_of(**{"architecture": "bert"} | changes)))[:2] == expected


PART: dict[str, Any] = {
    "hidden_size": 8,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
}
CROSSED: dict[str, Any] = PART | {"cross_attn_k": 1, "hidden_size_global": 8}
HASHED: dict[str, Any] = {
    **{"encoder_hash_byte_group_size": [4], "encoder_hash_byte_group_vocab": 999, "patch_in_forward": False},
    **{"encoder_config": CROSSED, "decoder_config": CROSSED, "global_config": PART, "cross_attn_k": 1},
}
EXPERTS: dict[str, Any] = {"num_experts": 200, "num_experts_per_tok": 1, "moe_intermediate_size": 4}


OWN: dict[str, Any] = {key: value for key, value in PART.items() if key != "num_key_value_heads"}
MANY: dict[str, Any] = {"encoder_hash_byte_group_vocab": 12, "encoder_hash_byte_group_nb_functions": 100}


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("blt", HASHED),
        ("blt", HASHED | MANY),
        ("qwen3_moe", PART | EXPERTS),
        ("mixtral", PART | {"num_local_experts": 9}),
        ("ibert", OWN),
        ("longformer", OWN | {"attention_window": 8}),
        ("xlnet", {"d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 8, "initializer_range": 0.0}),
    ],
)
def test_what_may_be_about_one_text_is_refused(architecture: str, config: dict[str, Any]) -> None:
    """A row of a hashed n-gram, a buffer with the largest value, layers whose rows are not ordered by text."""
    pytest.importorskip("transformers")
    task = CLASSES if architecture in ("ibert", "longformer") else LANGUAGE
    found = fault(lambda: build_model(spec_of(architecture, task, config=config)))
    assert found[:2] == ("architecture-unsuitable", "model.architecture")


@pytest.mark.parametrize("architecture", ["llama", "roberta", "gpt_neox", "electra"])
@pytest.mark.parametrize("task", [CLASSES, LANGUAGE])
def test_usual_architectures_are_built(architecture: str, task: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    spec = spec_of(architecture, task, config=OWN | {"num_hidden_layers": 2})
    build_model(spec)
    check_memory(spec)  # makes it without weights
