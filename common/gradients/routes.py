"""Routes: how each parameter's gradient travels, chosen from shapes alone, and the order of a payload's entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankdad.common.errors import SpecError, one_line
from rankdad.common.gradients.capture import FactorCapture
from rankdad.common.gradients.factors import Factor, Matrix
from rankdad.common.gradients.layers import copied, has_hooks, linear_layers, unfollowed
from rankdad.common.gradients.sparse import Entries, entries_of
from rankdad.common.gradients.wire import wire_bytes
from rankdad.common.run.seeds import derive
from rankdad.common.spec import Dsgd, Edad, PowerSgd, RankDad, RunSpec, TopK, TopRows

PROBE_SAMPLES = 4
RESIDUAL_ROWS = 64  # to which a residual is reduced: fewer cost accuracy, and hardly less time
Payload = tuple[Matrix, ...]


@dataclass(frozen=True)
class Route:
    """How one parameter travels.

    Args:
        name: the parameter.
        shape: its own shape.
        bias: the bias that travels with the weight, if any: as the last column of its matrix.
        summed: whether the bias is no column, but the sum of the rows of the factor's Δ, whatever a reduction left.
        captured: whether the gradient is captured as a factor; else its matrix is formed first.
        up: rows of the factor that a site sends at most; None sends the matrix itself (dense).
        down: the same for the aggregator.
        residual: leading rows that error feedback keeps of what was not sent; None keeps all of it, as a matrix.
        entries: of the matrix that travel, both ways, where these are not all.
        linear: whether it is a linear layer's weight: each row of its gradient is one unit's.
    """

    name: str
    shape: tuple[int, ...]
    bias: str | None = None
    summed: bool = False
    captured: bool = False
    up: int | None = None
    down: int | None = None
    residual: int | None = None
    entries: Entries | None = None
    linear: bool = False

    @property
    def dense(self) -> bool:
        """Whether a site sends the whole gradient."""
        return self.up is None and self.entries is None

    @property
    def matrix(self) -> tuple[int, int]:
        """Shape [out, columns] of the gradient as a matrix, the bias's column included; a vector is one row."""
        out = self.shape[0] if len(self.shape) > 1 else 1
        return out, math.prod(self.shape) // max(out, 1) + (self.folded is not None)

    @property
    def projected(self) -> tuple[int, int] | None:
        """Shape of the parameter alone as a matrix, if a second moment of it can be factored; None of a vector."""
        out, columns = self.matrix
        shape = out, columns - (self.folded is not None)
        return shape if min(shape) > 1 else None

    @property
    def folded(self) -> str | None:
        """The bias that is a column of the matrix, if any."""
        return None if self.summed else self.bias

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that travel: the weight, and a bias that does so with it."""
        return (self.name,) if self.bias is None else (self.name, self.bias)

    def size(self, rows: int | None, wire: str) -> int:
        """Return the size on the wire, in bytes, of a factor of so many rows, or of the matrix."""
        out, columns = self.matrix
        if rows is None:
            return wire_bytes(wire, out, columns) if self.entries is None else self.entries.payload_bytes(wire)
        return wire_bytes(wire, rows, out) + wire_bytes(wire, rows, columns)


def gather(
    routes: tuple[Route, ...], factors: Mapping[str, Factor], dense: Mapping[str, Tensor], like: Tensor
) -> Payload:
    """Order a model's gradients by route, biases folded in.

    Args:
        routes: of the plan.
        factors: by weight name.
        dense: by parameter name.
        like: a tensor of the dtype and device of what is missing.

    Returns:
        For each route a factor where one was captured, else the matrix [out, columns]. A parameter that this step did
        not use has a zero matrix, or a factor without rows where factors travel.
    """
    values: list[Matrix] = []
    for route in routes:
        out, columns = route.matrix
        if route.name in factors:
            factor = factors[route.name]
            values.append(factor.with_ones() if route.folded else factor)
        elif route.name in dense:
            matrix = dense[route.name].reshape(out, -1)
            if route.folded:
                bias = dense[route.folded] if route.folded in dense else matrix.new_zeros(out)
                matrix = torch.cat([matrix, bias[:, None]], dim=1)
            values.append(matrix)
        elif route.up is None:
            values.append(like.new_zeros(out, columns))
        else:
            values.append(Factor(like.new_zeros(0, out), like.new_zeros(0, columns)))
    return tuple(values)


def scatter(
    routes: tuple[Route, ...], payload: Payload, rows: Callable[[int], slice] = lambda length: slice(None)
) -> dict[str, Tensor]:
    """Return the gradient of each parameter in its own shape: the reverse of `gather`.

    Args:
        routes: of the plan.
        payload: in their order.
        rows: returns which of a parameter's first axis are asked for, of its length; of a factor no others are formed.
    """
    gradients: dict[str, Tensor] = {}
    for route, value in zip(routes, payload, strict=True):
        shape = route.shape
        kept = rows(shape[0]) if shape else slice(None)
        if isinstance(value, Factor):
            value = Factor(value.delta[:, kept], value.activation)
            matrix = value.gradient()
        else:
            matrix = value[kept] if len(shape) > 1 else value[:, kept]
        if route.folded is not None:
            gradients[route.folded] = matrix[:, -1]
            matrix = matrix[:, :-1]
        elif route.bias is not None:
            assert isinstance(value, Factor)
            gradients[route.bias] = value.delta.sum(dim=0)
        gradients[route.name] = matrix.reshape(len(range(shape[0])[kept]), *shape[1:]) if shape else matrix.reshape(())
    return gradients


def choose_routes(spec: RunSpec, model: nn.Module) -> tuple[tuple[Route, ...], tuple[str, ...]]:
    """Choose how each trained parameter travels: as a factor, or dense where that is smaller.

    Returns:
        Routes in the model's order, and a sentence for every layer that looks like a factor but is not.

    Raises:
        SpecError: the model does not fit data or task.
    """
    rows, warnings = _probe(spec, model)
    warnings += tuple(
        f"{name or 'the model'}: its factor is not used, {reason}" for name, reason in unfollowed(model).items()
    )
    layers = linear_layers(model)
    routes: dict[str, Route] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            bias = layers[name][1] if name in rows else None
            route = _route(spec, name, tuple(parameter.shape), bias, rows.get(name))
            # What a hook has made of a gradient, such as zeros of a mask, no reduction keeps.
            routes[name] = Route(name, route.shape) if has_hooks(parameter) else route
    folded = {route.bias for route in routes.values()}
    chosen = tuple(route for name, route in routes.items() if name not in folded)
    if hooked := [name for name, p in model.named_parameters() if p.requires_grad and has_hooks(p)]:
        check_wire(getattr(spec.method, "wire", ""), hooked[0], "method.wire")
    for field in ("rank", "density"):
        if hasattr(spec.method, field) and spec.solver == "steps" and all(route.dense for route in chosen):
            value = getattr(spec.method, field)
            warnings += (f"{field} {value} makes no layer smaller: everything travels dense",)
    return chosen, warnings


def check_wire(wire: str, hooked: str, field: str) -> None:
    """Check that a parameter's gradient can travel as a hook has made it.

    Args:
        wire: how numbers travel.
        hooked: the parameter with the hook.
        field: that names the wire.

    Raises:
        SpecError: they travel without a zero, so that what a hook masks would move.
    """
    if wire == "int2":
        raise SpecError(
            field,
            f"got int2, which has no zero, but {hooked} has a hook on its gradient, which may be a mask: expected int4 "
            "or a wider wire",
            code="wire-without-zero",
        )


def _route(spec: RunSpec, name: str, shape: tuple[int, ...], bias: str | None, rows_per_sample: int | None) -> Route:
    """Choose how one parameter travels.

    Args:
        spec: of the run.
        name: of the parameter.
        shape: of the parameter.
        bias: that may travel as the last column of its matrix; None if it has none of its own.
        rows_per_sample: of its factor, for one sample; None if its gradient is captured as no factor.
    """
    method, sites = spec.method, len(spec.federation.sites)
    dense = Route(name, shape, linear=rows_per_sample is not None)
    if isinstance(method, Dsgd) or len(shape) < 2:
        return dense
    rows = None  # some rows do not grow with the batch: hence at least the probe's
    if rows_per_sample is not None:
        largest = max(spec.at(site).training.batch_size for site in spec.federation.sites)
        rows = rows_per_sample * max(largest, PROBE_SAMPLES) * spec.training.accumulate
    if spec.local is not None:
        rows = None  # a difference of weights is a matrix
    if isinstance(method, RankDad):
        # A reduction loses part of the bias; only feedback at both ends brings it back: without it, it goes dense.
        summed = method.reducer == "published"
        kept = bias if method.feedback == "both" or summed else None
        route = Route(name, shape, kept, summed, False, method.rows, method.rows)
        # With more rows than that the product is the smaller operator, and autograd forms it anyway.
        out, columns = route.matrix
        route = replace(route, captured=rows is not None and rows * (out + columns) <= out * columns)
        if route.captured and method.residual == "factors":
            route = replace(route, residual=RESIDUAL_ROWS)
        return _smaller(route, dense, method.wire)
    if isinstance(method, PowerSgd):
        route = Route(name, shape, None, up=method.rank, down=method.rank)  # biases exact, as published
        return _smaller(route, dense, method.wire)
    if isinstance(method, TopK):
        route = replace(dense, entries=entries_of(dense.matrix, method.density))
        return route if route.size(None, method.wire) < dense.size(None, method.wire) else dense
    if rows is None:
        return dense
    if isinstance(method, Edad):
        return Route(name, shape, bias, captured=True, up=rows, down=rows * sites)
    if isinstance(method, TopRows):
        rows, bias = min(method.rows, rows), None  # three rows say little of a sum over all
    route = Route(name, shape, bias, captured=True, up=rows, down=rows * sites)
    if route.size(route.down, method.wire) >= route.size(None, method.wire):
        route = replace(route, down=None)
    return _smaller(route, dense, method.wire)


def _smaller(route: Route, dense: Route, wire: str) -> Route:
    return route if route.size(route.up, wire) < route.size(None, wire) else dense


def _probe(spec: RunSpec, model: nn.Module) -> tuple[dict[str, int], tuple[str, ...]]:
    """Run one synthetic batch on a copy: rows per sample of every weight whose factor equals autograd's gradient."""
    try:
        probe = copied(model).cpu().train()
    except Exception as error:
        raise SpecError(
            "model", f"cannot be copied, to try it out: {one_line(error)}", code="model-cannot-be-copied"
        ) from error
    generator = torch.Generator().manual_seed(derive(spec.seed, "probe"))
    with torch.no_grad():
        for parameter in probe.parameters():  # a layer of zeros would let no gradient through
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
        expected = (PROBE_SAMPLES, spec.task.outputs)
        if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
            got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise SpecError(
                "model",
                f"returned {got} for {PROBE_SAMPLES} samples, expected {list(expected)}",
                code="model-output-shape",
            )
        F.mse_loss(logits, (torch.arange(logits.numel()) % 2).to(logits).reshape(expected)).backward()  # any loss does
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
