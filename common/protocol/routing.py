"""Chooses the route of each parameter, by its shape and by one synthetic batch."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankdad.common.errors import SpecError, one_line
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.layers import copied, has_hooks, layout_of, linear_layers, uncaptured_layers
from rankdad.common.lowrank.routes import Route, routed
from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.common.spec.text import TextData

PROBE_SAMPLES = 4


def choose_routes(spec: RunSpec, model: nn.Module) -> tuple[tuple[Route, ...], tuple[str, ...]]:
    """Choose the route of each trained parameter: as a factor, or dense if that is smaller.

    Returns:
        Routes in the model's order, and a sentence for every layer that looks like a factor but is not.

    Raises:
        SpecError: the model does not fit data or task.
    """
    rows, warnings = _probe(spec, model)
    warnings += tuple(
        f"{name or 'the model'}: its factor is not used, {reason}" for name, reason in uncaptured_layers(model).items()
    )
    layers = linear_layers(model)
    routes: dict[str, Route] = {}
    named = _embeddings(model) if isinstance(spec.data, TextData) else frozenset()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layer, bias = layers[name] if name in rows else (None, None)
            layout = None if layer is None else layout_of(layer)
            dense = Route(name, tuple(parameter.shape), linear=layout is not None or name in named)
            if layout == "in-out":
                dense = replace(dense, linear="in-out")
            route = _route(spec, dense, bias, rows.get(name))
            # A hook's changes to a gradient, such as a mask's zeros, would not survive a reduction.
            routes[name] = Route(name, route.shape) if has_hooks(parameter) else route
    chosen = routed(routes.values())
    if hooked := [name for name, p in model.named_parameters() if p.requires_grad and has_hooks(p)]:
        check_wire(getattr(spec.method, "wire", ""), hooked[0], "method.wire")
    for field in ("rank", "density"):
        if hasattr(spec.method, field) and spec.solver == "steps" and all(route.dense for route in chosen):
            value = getattr(spec.method, field)
            warnings += (f"{field} {value} makes no layer smaller: all gradients are dense",)
    return chosen, warnings


def check_wire(wire: str, hooked: str, field: str) -> None:
    """Check that a wire can send a gradient that a hook has changed.

    Args:
        wire: number format.
        hooked: the parameter with the hook.
        field: that names the wire.

    Raises:
        SpecError: the wire has no zero, so that masked entries would change.
    """
    if wire == "int2":
        raise SpecError(
            field,
            f"got int2, which has no zero, but {hooked} has a hook on its gradient, which may be a mask: expected int4 "
            "or a wider wire",
            code="wire-without-zero",
        )


def _embeddings(model: nn.Module) -> frozenset[str]:
    """Return the names of weights with a row for each token."""
    weights = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)}
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) in weights)


def _route(spec: RunSpec, dense: Route, bias: str | None, rows_per_sample: int | None) -> Route:
    """Choose the route of one parameter.

    Args:
        spec: of the run.
        dense: its dense route.
        bias: that may be the last column of its matrix; None without one.
        rows_per_sample: rows of its factor per sample; None if its gradient is not captured as a factor.
    """
    if len(dense.shape) < 2:
        return dense
    rows = None  # at least the probe's rows; some layers' may not grow with the batch
    if rows_per_sample is not None and spec.local is None:  # a difference of weights is a matrix
        largest = max(spec.at(site).training.batch_size for site in spec.federation.sites)
        rows = rows_per_sample * max(largest, PROBE_SAMPLES) * spec.training.accumulate
    return spec.method.route(dense, bias, rows, len(spec.federation.sites))


def _probe(spec: RunSpec, model: nn.Module) -> tuple[dict[str, int], tuple[str, ...]]:
    """Run one synthetic batch on a copy; return the rows per sample of every weight whose factor is its gradient."""
    try:
        probe = copied(model).cpu().train()
    except Exception as error:
        raise SpecError(
            "model", f"cannot be copied for a test: {one_line(error)}", code="model-cannot-be-copied"
        ) from error
    generator = torch.Generator().manual_seed(derive(spec.seed, "probe"))
    with torch.no_grad():
        for parameter in probe.parameters():  # zeros would block gradients
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.01 * noise.to(parameter))
    shape = (PROBE_SAMPLES, *spec.data.shape)
    if spec.data.tokens is None:
        inputs = torch.randn(shape, generator=generator, dtype=getattr(torch, spec.training.dtype))
    else:
        inputs = torch.randint(spec.data.tokens, shape, generator=generator)
    with torch.random.fork_rng(devices=[]), FactorCapture(probe) as capture:
        torch.default_generator.manual_seed(derive(spec.seed, "probe"))
        try:
            logits = probe(inputs)
        except Exception as error:
            raise SpecError(
                "model",
                f"does not take inputs of shape {list(shape)} (data.shape): {one_line(error)}",
                code="model-input-shape",
            ) from error
        expected = (PROBE_SAMPLES, *spec.output_shape)
        if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
            got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise SpecError(
                "model",
                f"returned {got} for {PROBE_SAMPLES} samples, expected {list(expected)}",
                code="model-output-shape",
            )
        F.mse_loss(logits, (torch.arange(logits.numel()) % 2).to(logits).reshape(expected)).backward()  # any loss
    rows: dict[str, int] = {}
    warnings: list[str] = []
    for name, factor in capture.factors().items():
        gradient = probe.get_parameter(name).grad
        assert gradient is not None
        if torch.linalg.vector_norm(factor.gradient() - gradient) <= 1e-3 * torch.linalg.vector_norm(gradient):
            rows[name] = math.ceil(factor.rows / PROBE_SAMPLES)
        else:
            warnings.append(f"{name} is also used outside its layer: its factor is not used")
    return rows, tuple(warnings)
