"""Transformers on texts: padding changes nothing, and factors and gradients are autograd's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rankdad.common.models import build_model
from rankdad.common.spec.text import BYTES, PADDING
from tests.common.faults import fault
from tests.common.lowrank.test_capture import check
from tests.common.test_models_networks import TASKS, assert_update_is_of_the_pooled_batch
from tests.conftest import run_spec
from tests.texts import text_spec

KINDS: dict[str, dict[str, Any]] = {"rope": {}, "learned": {"positions": "learned"}}
every_kind = pytest.mark.parametrize("kind", KINDS)
texts = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5)


def padded(texts: list[bytes], length: int) -> Tensor:
    x = torch.full((len(texts), length), PADDING)
    for row, text in enumerate(texts):
        x[row, : len(text)] = torch.tensor(list(text)) + 4
    return x


def build(kind: str, **changes: Any) -> nn.Module:
    method = {"name": "dad", "wire": "float64"}
    return build_model(text_spec(model=KINDS[kind], training={"dtype": "float64"}, method=method, **changes)).eval()


@every_kind
@given(texts=texts)
def test_padding_changes_no_output(kind: str, texts: list[bytes]) -> None:
    model = build(kind)
    together = model(padded(texts, 32))
    for row, text in enumerate(texts):
        alone = model(padded([text], len(text)))
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-12)


@every_kind
def test_the_order_of_tokens_counts(kind: str) -> None:
    one, other = build(kind)(padded([b"ab ba", b"ba ab"], 8))
    assert (one - other).abs().max() > 1e-9


@pytest.mark.parametrize("task", ["classification", "language-model"])
def test_half_precision_computes_nearly_the_same(task: str) -> None:
    changes = {} if task == "classification" else {"task": {"name": task}}
    model, x = build_model(text_spec(**changes)).eval(), padded([b"a text", b"another one"], 32)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(x)
    torch.testing.assert_close(outputs.float(), model(x), rtol=0.05, atol=0.05)
    outputs.float().sin().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("task", TASKS)
def test_outputs_are_as_wide_as_the_task(task: str) -> None:
    spec = run_spec(task=TASKS[task][0], model=text_spec().model.model_dump(), data={"shape": [9], "tokens": 12})
    assert build_model(spec)(torch.randint(12, (5, 9))).shape == (5, TASKS[task][1])


@every_kind
def test_linear_layers_have_factors_and_gradients_are_autograds(kind: str) -> None:
    torch.manual_seed(0)
    model, x = build(kind), torch.randint(BYTES, (5, 32))
    x[:2, 20:] = PADDING
    capture = check(model, x, passes="clc")
    linear = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    assert capture.factors().keys() == linear
    assert capture.dense()["embed.weight"][PADDING].abs().max() == 0


def test_sites_of_unequal_size_train_as_one() -> None:
    spec = run_spec(
        model=text_spec().model.model_dump(),
        data={"shape": [9], "tokens": 12},
        method={"name": "dad", "wire": "float64"},
        training={"dtype": "float64"},
    )
    assert_update_is_of_the_pooled_batch(spec)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": {"name": "transformer", "width": 8, "depth": 1, "heads": 3}}, ("field-invalid", "model")),
        ({"model": {"name": "transformer", "width": 6, "depth": 1, "heads": 2}}, ("field-invalid", "model")),
        ({"model": {"name": "transformer", "width": 8, "depth": 1, "heads": 2}}, ("shape-does-not-fit", "model.name")),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], expected: tuple[str, str]) -> None:
    assert fault(lambda: build_model(run_spec(**changes)))[:2] == expected
