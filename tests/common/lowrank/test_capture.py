"""Factors against autograd: together with the dense gradients they are autograd's, whatever the model."""

from __future__ import annotations

import doctest
import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from rankdad.common.lowrank import capture as capture_module
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.layers import uncaptured_layers
from tests.conftest import examples, sampled

Input = Tensor | PackedSequence
Case = tuple[nn.Module, tuple[Input, ...], str]  # the model, its inputs, the weights that have a factor

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13, torch.complex128: 1e-13}
# The passes: by capture.backward (c) or loss.backward (l).
WAYS = list(itertools.product((torch.float32, torch.float64), ("c", "l", "cc", "ll", "clc")))
in_every_way = pytest.mark.parametrize(("dtype", "passes"), sampled(WAYS, every=5))


class Model(nn.Module):
    """Named parts, and a forward pass over them."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Input) -> Any:
        return self.run(self, *inputs)


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def total(output: Any) -> Tensor:
    """A loss that no normalisation makes constant, of whatever a model returns."""
    if isinstance(output, Tensor):
        return (torch.view_as_real(output) if output.is_complex() else output).sin().sum()
    return sum((total(part) for part in output if isinstance(part, tuple) or part.requires_grad), torch.zeros(()))


def check(model: nn.Module, *inputs: Input, passes: str = "c", tolerance: float | None = None) -> FactorCapture:
    """Compare what is captured in some passes with the gradients of as many passes without a capture."""
    model.zero_grad()
    for _ in passes:
        total(model(*inputs)).backward()
    expected = {name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None}
    with FactorCapture(model) as capture:
        for way in passes:
            loss = total(model(*inputs))
            capture.backward(loss) if way == "c" else loss.backward()
    found = {name: factor.gradient() for name, factor in capture.factors().items()}
    assert not found.keys() & capture.dense().keys()
    found |= capture.dense()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert found[name].shape == gradient.shape
        error = torch.linalg.vector_norm(found[name] - gradient)
        assert error <= (tolerance or TOLERANCE[gradient.dtype]) * torch.linalg.vector_norm(gradient), name
    return capture


def linear(**options: Any) -> nn.Linear:
    return nn.Linear(4, 4, **options)


def mlp() -> nn.Sequential:
    return nn.Sequential(linear(), nn.ReLU(inplace=True), linear())


def tied(first: Any, second: Any) -> nn.Sequential:
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def hooked(layer: nn.Linear) -> nn.Linear:
    layer.register_forward_hook(lambda module, args, output: 3 * output)
    return layer


def weight_norm(layer: nn.Linear) -> nn.Linear:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # deprecated, and still in use
        return nn.utils.weight_norm(layer)


def also_without_gradients(model: Any, x: Tensor) -> Any:
    with torch.no_grad():
        model.a(x)
    with torch.inference_mode():
        model.a(x)
    return model.a(x)


def convolution(kind: Any, dims: int, **options: Any) -> Case:
    model = Model(lambda m, x: m.b(m.a(x).flatten(2).sum(2)), a=kind(4, 6, **options), b=nn.Linear(6, 2))
    return model, x(2, 4, *[6] * dims), "b.weight"


def recurrent(kind: Any, lengths: list[int], pack: bool, layers: int = 2, bidirectional: bool = True) -> Case:
    def run(model: Any, x: Input) -> Any:
        output, state = model.a(x)
        return model.b(output.data), state

    model = Model(run, a=kind(4, 3, layers, batch_first=True, bidirectional=bidirectional))
    model.b = nn.Linear(6 if bidirectional else 3, 2)
    padded = torch.randn(len(lengths), max(lengths), 4)
    return model, (pack_padded_sequence(padded, lengths, True, False) if pack else padded,), "b.weight"


def checkpointed(parts: str, reentrant: bool) -> Case:
    def run(model: Any, x: Tensor) -> Tensor:
        x.requires_grad_()  # else torch warns that there is nothing to checkpoint for
        for name, part in model.named_children():
            x = checkpoint(part, x, use_reentrant=reentrant) if name in parts else part(x)
        return x

    return Model(run, a=mlp(), b=mlp(), c=linear()), x(3, 4), "a.0.weight a.2.weight b.0.weight b.2.weight c.weight"


def nested(reentrant: bool) -> Case:
    inner, inputs, weights = checkpointed("b", not reentrant)
    model = Model(lambda m, x: checkpoint(m.a, x.requires_grad_(), use_reentrant=reentrant), a=inner)
    return model, inputs, " ".join(f"a.{name}" for name in weights.split())


def x(*shape: int) -> tuple[Tensor]:
    return (torch.randn(*shape),)


def ids(*shape: int) -> tuple[Tensor]:
    return (torch.randint(6, shape),)


CASES: dict[str, Callable[[], Case]] = {
    "linear": lambda: (mlp(), x(5, 4), "0.weight 2.weight"),
    "linear 1-D": lambda: (mlp(), x(4), "0.weight 2.weight"),
    "linear 4-D": lambda: (mlp(), x(2, 3, 5, 4), "0.weight 2.weight"),
    "linear 3-D, transposed": lambda: (Model(lambda m, x: m.a(x.mT).mT, a=linear()), x(3, 4, 5), "a.weight"),
    "linear 3-D, without bias": lambda: (nn.Sequential(linear(bias=False), nn.Tanh()), x(2, 3, 4), "0.weight"),
    "linear without samples": lambda: (mlp(), x(0, 4), "0.weight 2.weight"),
    "linear by keyword": lambda: (Model(lambda m, x: m.a(input=x), a=linear()), x(5, 4), "a.weight"),
    "layer used twice": lambda: (Model(lambda m, x: m.a(m.a(x).tanh()), a=linear()), x(5, 4), "a.weight"),
    "layer in two places": lambda: (nn.Sequential(*[linear()] * 2), x(5, 4), "0.weight"),
    "hook that replaces the output": lambda: (hooked(linear()), x(5, 4), "weight"),
    "also without gradients": lambda: (Model(also_without_gradients, a=linear()), x(5, 4), "a.weight"),
    "frozen": lambda: (nn.Sequential(linear().requires_grad_(False), linear()), x(5, 4), "1.weight"),
    "unused": lambda: (Model(lambda m, x: m.a(x), a=linear(), b=linear()), x(5, 4), "a.weight"),
    "only a functional use": lambda: (Model(lambda m, x: F.linear(x, m.a.weight), a=linear()), x(5, 4), ""),
    "subclass": lambda: (nn.Sequential(Doubled(4, 4), linear()), x(5, 4), "1.weight"),
    "parametrised": lambda: (nn.Sequential(parametrizations.weight_norm(linear()), linear()), x(5, 4), "1.weight"),
    "weight_norm": lambda: (nn.Sequential(weight_norm(linear()), linear()), x(5, 4), "1.weight"),
    "tied layers": lambda: (tied(linear(), linear(bias=False)), x(5, 4), ""),
    "tied head": lambda: (tied(nn.Embedding(6, 4), nn.Linear(4, 6)), ids(3, 5), ""),
    "tied head, sparse": lambda: (tied(nn.Embedding(6, 4, sparse=True), nn.Linear(4, 6)), ids(3, 5), ""),
    "embedding": lambda: (nn.Sequential(nn.Embedding(6, 4, padding_idx=0), linear()), ids(3, 5), "1.weight"),
    "embedding, sparse": lambda: (nn.Sequential(nn.Embedding(6, 4, sparse=True), linear()), ids(3, 5), "1.weight"),
    "embedding bag": lambda: (nn.Sequential(nn.EmbeddingBag(6, 4), linear()), ids(3, 5), "1.weight"),
    "embedding bag, sparse": lambda: (nn.EmbeddingBag(6, 4, mode="sum", sparse=True), ids(3, 5), ""),
    "conv1d": lambda: convolution(nn.Conv1d, 1, kernel_size=3, groups=2, stride=2, padding=1),
    "conv2d": lambda: convolution(nn.Conv2d, 2, kernel_size=(3, 2), dilation=2, padding="same"),
    "conv3d": lambda: convolution(nn.Conv3d, 3, kernel_size=2, groups=2, padding=1, padding_mode="circular"),
    "transposed conv": lambda: convolution(nn.ConvTranspose2d, 2, kernel_size=3, stride=2, groups=2),
    "norms": lambda: (
        nn.Sequential(nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), linear()),
        x(9, 4),
        "3.weight",
    ),
    "attention": lambda: (Model(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(4, 2)), x(3, 5, 4), ""),
    "encoder layer": lambda: (nn.TransformerEncoderLayer(4, 2, 8, 0.0), x(3, 5, 4), "linear1.weight linear2.weight"),
    **{
        f"{kind.__name__}, {pack=}": partial(recurrent, kind, [2, 5, 3], pack)
        for kind in (nn.RNN, nn.GRU, nn.LSTM)
        for pack in (False, True)
    },
    **{
        f"checkpoint of {p}, reentrant {r}": partial(checkpointed, p, r)
        for p in ("a", "b", "c", "abc")
        for r in (False, True)
    },
    "checkpoint in a reentrant one": partial(nested, True),
    "reentrant checkpoint in one": partial(nested, False),
}


def built(case: Callable[[], Case], dtype: torch.dtype) -> Case:
    torch.manual_seed(0)
    model, inputs, weights = case()
    return model.to(dtype), tuple(i.to(dtype) if i.data.is_floating_point() else i for i in inputs), weights


@pytest.mark.parametrize(
    ("name", "dtype", "passes"), sampled(((name, *way) for name in CASES for way in WAYS), every=7)
)
def test_factors_and_dense_are_autograds_gradients(name: str, dtype: torch.dtype, passes: str) -> None:
    model, inputs, weights = built(CASES[name], dtype)
    assert check(model, *inputs, passes=passes).factors().keys() == set(weights.split())


@in_every_way
@settings(max_examples=examples(10))
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), out=st.integers(1, 5), seed=st.integers(0, 99))
def test_linear(dtype: torch.dtype, passes: str, shape: list[int], out: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(shape[-1], out), nn.ReLU(inplace=True), nn.Linear(out, 3)).to(dtype)
    capture = check(model, torch.randn(shape, dtype=dtype), passes=passes)
    assert {factor.rows for factor in capture.factors().values()} == {len(passes) * torch.Size(shape[:-1]).numel()}


def test_rows_are_of_whom_the_samples_are_over_several_passes_and_tokens() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with FactorCapture(model) as capture:
        for people in ([7, 7, 5], [5]):
            capture.people = torch.tensor(people)
            capture.backward(model(torch.randn(len(people), 2, 3)).square().sum())
        assert capture.biases == {"0.weight": "0.bias", "2.weight": "2.bias"}
        for name, factor in capture.factors().items():
            parts = capture.parts(name)
            assert [None if own is None else own.tolist() for _, own in parts] == [[7, 7, 7, 7, 5, 5], [5, 5]]
            assert torch.equal(torch.cat([part.delta for part, _ in parts]), factor.delta)
    with FactorCapture(model) as capture:
        capture.people = torch.tensor([1, 2])
        capture.backward(model(torch.randn(3, 3)).sum())
        assert capture.parts("0.weight")[0][1] is None, "three rows are not two samples'"


@in_every_way
@settings(max_examples=examples(10))
@given(
    dims=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {"kernel_size": st.integers(1, 3), "stride": st.integers(1, 2), "padding": st.integers(0, 2)}
        | {"dilation": st.integers(1, 2), "groups": st.sampled_from([1, 2]), "bias": st.booleans()}
    ),
)
def test_convolution(dtype: torch.dtype, passes: str, dims: int, options: dict[str, Any]) -> None:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    model, inputs, _ = built(lambda: convolution(kind, dims, **options), dtype)
    check(model, *inputs, passes=passes)


@in_every_way
@settings(max_examples=examples(10))
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    pack=st.booleans(),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
)
def test_gru(dtype: torch.dtype, passes: str, lengths: list[int], **options: Any) -> None:
    model, inputs, _ = built(lambda: recurrent(nn.GRU, lengths, **options), dtype)
    check(model, *inputs, passes=passes)


def gradient_in_forward(model: Any, x: Tensor, create_graph: bool) -> Any:
    x.requires_grad_()
    (slope,) = torch.autograd.grad(model.a(x).sin().sum(), x, create_graph=create_graph)
    return model.a(x + slope)


OUTSIDE: dict[str, tuple[Callable[..., Any], str]] = {
    "functional use": (lambda m, x: m.a(x) + F.linear(x, m.a[0].weight), "a.2.weight"),
    "weight as input": (lambda m, x: m.a(m.a[0].weight), "a.2.weight"),
    "weights replaced": (lambda m, x: m.a(x) + functional_call(m.a, {"0.weight": m.a[0].weight * 2}, x), "a.2.weight"),
    "gradient in forward": (lambda m, x: gradient_in_forward(m, x, False), "a.0.weight a.2.weight"),
    "gradient's gradient": (lambda m, x: gradient_in_forward(m, x, True), ""),
    "jacobian": (lambda m, x: jacrev(lambda y: m.a(y).sum(0))(x) + m.a(x).sum(), ""),
    "vmap": (lambda m, x: torch.vmap(m.a)(x), ""),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("passes", ["c", "cc"])
def test_a_weight_used_outside_its_layer_is_dense(name: str, passes: str) -> None:
    run, weights = OUTSIDE[name]
    model = Model(run, a=nn.Sequential(linear(), nn.Tanh(), linear())).double()
    capture = check(model, torch.randn(5, 4, dtype=torch.float64), passes=passes)
    assert capture.factors().keys() == set(weights.split())


def test_a_weight_used_outside_its_layer_in_a_later_pass_is_dense() -> None:
    uses: Any = itertools.cycle([lambda m, x: m.a(x), lambda m, x: F.linear(x, m.a.weight)])
    model = Model(lambda m, x: next(uses)(m, x), a=linear())
    assert check(model, *x(5, 4), passes="cccc").factors() == {}


def test_complex_layers() -> None:
    assert check(linear(dtype=torch.complex128), torch.randn(5, 4, dtype=torch.complex128)).factors()


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith(("linear", "layer", "enc", "conv", "check"))]
)
@pytest.mark.parametrize("passes", ["c", "ll"])
def test_autocast(name: str, passes: str) -> None:
    inner, inputs, weights = built(CASES[name], torch.float32)
    model = Model(torch.autocast("cpu", torch.bfloat16)(lambda m, *inputs: m.a(*inputs)), a=inner)
    factors = check(model, *inputs, passes=passes, tolerance=6e-3).factors()
    assert factors.keys() == {f"a.{name}" for name in weights.split()}
    for factor in factors.values():
        assert factor.delta.dtype == factor.activation.dtype == torch.float32
        assert torch.equal(factor.activation, factor.activation.bfloat16().float())


def test_a_scaled_loss_scales_delta_alone() -> None:
    model, inputs = mlp(), x(5, 4)
    with FactorCapture(model) as plain:
        plain.backward(total(model(*inputs)))
    with FactorCapture(model) as scaled:
        scaled.backward(total(model(*inputs)) * 65536)
    for name, factor in plain.factors().items():
        assert torch.equal(scaled.factors()[name].scaled(1 / 65536).gradient(), factor.gradient())


def test_gradients_that_factors_replace_are_not_formed() -> None:
    model, inputs, flops = mlp(), *x(5, 4), list[int]()
    for only in ((), {"2.weight"}, None):
        with FactorCapture(model, only=only) as capture:
            loss = total(model(inputs))
            with FlopCounterMode(display=False) as counter:
                capture.backward(loss)
            flops.append(counter.get_total_flops())
    assert [flops[0] - each for each in flops] == [0, 2 * 5 * 4 * 4, 2 * 2 * 5 * 4 * 4]


@pytest.mark.parametrize("autocast", [False, True])  # which keeps a copy
def test_an_input_changed_in_place_is_an_error(autocast: bool) -> None:
    def run(model: Any, x: Tensor) -> Tensor:
        x = x.sin()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y: Tensor = model.a(x)
        x.zero_()
        return y

    model = Model(run, a=linear())
    if autocast:
        check(model, *x(5, 4), tolerance=6e-3)
    else:
        with FactorCapture(model) as capture, pytest.raises(RuntimeError, match=r"a\.weight was changed in place"):
            capture.backward(total(model(*x(5, 4))))


def test_hooks_leave_no_trace() -> None:
    def hooks() -> list[list[int]]:
        found = (value for module in model.modules() for name, value in vars(module).items() if "_hooks" in name)
        return [list(value) for value in found if not isinstance(value, bool)]

    def step() -> None:
        with FactorCapture(model) as capture:
            assert hooks() != before
            capture.backward(total(model(*x(3, 4))))
            raise InterruptedError

    model = nn.Sequential(hooked(linear()), linear())
    before = hooks()
    for _ in range(3):
        with pytest.raises(InterruptedError):
            step()
        assert hooks() == before
    with FactorCapture(model) as capture:
        capture.backward(total(model(*x(3, 4))))
    model(*x(3, 4)).sum().backward()
    assert [factor.rows for factor in capture.factors().values()] == [3, 3]


def test_layers_that_look_like_linear_and_are_not_followed_are_named() -> None:
    assert uncaptured_layers(Doubled(4, 4)) == {"": "Doubled is a subclass of Linear"}
    model = nn.Sequential(
        parametrizations.orthogonal(linear()),
        weight_norm(linear()),
        Doubled(4, 4).requires_grad_(False),
        tied(linear(), Doubled(4, 4)),
        *(mlp(), nn.TransformerEncoderLayer(4, 2, 8), nn.Bilinear(4, 4, 4), nn.Conv1d(4, 4, 1), nn.GRU(4, 4)),
    )
    assert uncaptured_layers(model) == {"0": "it is parametrised", "1": "it is parametrised"}


def test_the_docstrings_example_works() -> None:
    assert doctest.testmod(capture_module) == doctest.TestResults(failed=0, attempted=6)
