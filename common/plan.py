"""The plan: what all agree on before the first round, and the exact layout of every payload.

It follows from the spec and the initial model alone, so that sites and aggregator make it independently and compare
digests. Whether a layer's factor really covers its weight is found out by one synthetic batch on a copy of the model.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import __version__
from common.capture import FactorCapture, linear_layers
from common.errors import SpecError, one_line
from common.factors import Factor
from common.replica import saved_buffers, weights_sha256
from common.seeds import derive
from common.spec import Dad, Dsgd, RunSpec

PROBE_SAMPLES = 4
Payload = tuple[Factor | Tensor, ...]


@dataclass(frozen=True)
class Route:
    """How one parameter travels.

    Args:
        name: the parameter.
        shape: its own shape.
        bias: the bias that travels as the last column of the weight's matrix, if any.
        captured: whether the gradient is captured as a factor; else its matrix is formed first.
        up: rows of the factor that a site sends at most; None sends the matrix itself (dense).
        down: the same for the aggregator.
    """

    name: str
    shape: tuple[int, ...]
    bias: str | None = None
    captured: bool = False
    up: int | None = None
    down: int | None = None

    @cached_property
    def matrix(self) -> tuple[int, int]:
        """Shape [out, columns] of the gradient as a matrix, the bias's column included."""
        out = self.shape[0] if self.shape else 1
        return out, math.prod(self.shape[1:]) + (self.bias is not None)

    def floats(self, rows: int | None) -> int:
        """Return how many numbers travel for a factor of so many rows, or dense."""
        out, columns = self.matrix
        return out * columns if rows is None else rows * (out + columns)


@dataclass(frozen=True)
class BufferSlot:
    """One buffer of the model: its name, dtype (as torch names it) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Plan:
    """What all agree on: compared by digest in the hello round.

    Args:
        version: of rankdad.
        torch: version of torch's numerics.
        spec_sha256: digest of the spec.
        weights_sha256: digest of the initial weights.
        sites: names in the order of concatenation.
        seed: of everything random.
        threads: of tensor operations.
        wire: dtype of payloads.
        routes: of every trained parameter, in the model's order.
        buffers: of the model, in its order.
        classes: of the task.
        dense_bytes: size of one full gradient in float32, what dsgd sends.
        warnings: layers that look like factors but are not, one sentence each.
    """

    version: str
    torch: str
    spec_sha256: str
    weights_sha256: str
    sites: tuple[str, ...]
    seed: int
    threads: int
    wire: str
    routes: tuple[Route, ...]
    buffers: tuple[BufferSlot, ...]
    classes: int
    dense_bytes: int
    warnings: tuple[str, ...]

    @property
    def factor_names(self) -> frozenset[str]:
        """Names of the weights whose factors are captured."""
        return frozenset(route.name for route in self.routes if route.captured)

    def payload_bytes(self, *, up: bool) -> int:
        """Return the size of a payload with all factors at their largest rank, in bytes."""
        return self._payload_bytes[0 if up else 1]

    @cached_property
    def _payload_bytes(self) -> tuple[int, int]:
        wire: torch.dtype = getattr(torch, self.wire)
        up, down = (sum(r.floats(r.up) for r in self.routes), sum(r.floats(r.down) for r in self.routes))
        return wire.itemsize * up, wire.itemsize * down

    @cached_property
    def buffer_bytes(self) -> int:
        """Size of the model's buffers, in bytes."""
        return sum(buffer.size for buffer in self.buffers)

    def document(self) -> dict[str, object]:
        """Return the plan as JSON, with its own digest."""
        return {**asdict(self), "sha256": self.sha256()}

    def sha256(self) -> str:
        """Return the digest of the plan's JSON form."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def make_plan(spec: RunSpec, model: nn.Module) -> Plan:
    """Make the plan from the spec and the initial model.

    Raises:
        SpecError: the model does not take the data's shape or does not return logits of the task's classes.
    """
    rows, warnings = _probe(spec, model)
    dense_bytes = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Plan(
        version=__version__,
        torch=torch.__version__.split("+")[0],
        spec_sha256=spec.sha256(),
        weights_sha256=weights_sha256(model.state_dict()),
        sites=spec.federation.sites,
        seed=spec.seed,
        threads=spec.training.threads,
        wire=spec.method.wire,
        routes=_routes(spec, model, rows),
        buffers=tuple(
            BufferSlot(name, str(buffer.dtype).removeprefix("torch."), tuple(buffer.shape))
            for name, buffer in saved_buffers(model).items()
        ),
        classes=spec.task.classes,
        dense_bytes=dense_bytes,
        warnings=warnings,
    )


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
        For each route a factor where one was captured, else the matrix [out, columns]; what this step did not use is
        zero, or has no rows where factors travel.
    """
    values: list[Factor | Tensor] = []
    for route in routes:
        out, columns = route.matrix
        if route.name in factors:
            factor = factors[route.name]
            values.append(factor.with_ones() if route.bias else factor)
        elif route.name in dense:
            matrix = dense[route.name].reshape(out, -1)
            values.append(torch.cat([matrix, dense[route.bias][:, None]], dim=1) if route.bias else matrix)
        elif route.up is None:
            values.append(like.new_zeros(out, columns))
        else:
            values.append(Factor(like.new_zeros(0, out), like.new_zeros(0, columns)))
    return tuple(values)


def scatter(routes: tuple[Route, ...], payload: Payload) -> dict[str, Tensor]:
    """Return the gradient of each parameter in its own shape: the reverse of `gather`."""
    gradients: dict[str, Tensor] = {}
    for route, value in zip(routes, payload, strict=True):
        matrix = value.gradient() if isinstance(value, Factor) else value
        if route.bias is not None:
            gradients[route.bias] = matrix[:, -1]
            matrix = matrix[:, :-1]
        gradients[route.name] = matrix.reshape(route.shape)
    return gradients


def _routes(spec: RunSpec, model: nn.Module, rows: Mapping[str, int]) -> tuple[Route, ...]:
    """Choose factor or dense by bytes. `rows`: rows per sample of each weight that a factor covers."""
    layers = linear_layers(model)
    routes: dict[str, Route] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            bias = layers[name][1] if name in rows else None
            routes[name] = _route(spec, name, tuple(parameter.shape), bias, rows.get(name))
    folded = {route.bias for route in routes.values()}
    return tuple(route for name, route in routes.items() if name not in folded)


def _route(spec: RunSpec, name: str, shape: tuple[int, ...], bias: str | None, rows_per_sample: int | None) -> Route:
    dense = Route(name, shape)
    if isinstance(spec.method, Dsgd) or len(shape) < 2:
        return dense
    rows = None  # some rows do not grow with the batch: hence at least the probe's
    if rows_per_sample is not None:
        rows = rows_per_sample * max(spec.training.batch_size, PROBE_SAMPLES)
    if isinstance(spec.method, Dad):
        if rows is None:
            return dense
        route = Route(name, shape, bias, True, rows, rows * len(spec.federation.sites))
        if route.floats(route.down) >= route.floats(None):
            route = replace(route, down=None)
    else:
        # A reduction loses part of the bias; only feedback at both ends brings it back: without it, it goes dense.
        kept = bias if spec.method.feedback == "both" else None
        route = Route(name, shape, kept, False, spec.method.rank, spec.method.rank)
        # With more rows than that the product is the smaller operator, and autograd forms it anyway.
        route = replace(route, captured=rows is not None and route.floats(rows) <= route.floats(None))
    return route if route.floats(route.up) < route.floats(None) else dense


def _probe(spec: RunSpec, model: nn.Module) -> tuple[dict[str, int], tuple[str, ...]]:
    """Run one synthetic batch on a copy: rows per sample of every weight whose factor equals autograd's gradient."""
    copied = copy.deepcopy(model).cpu().train()
    generator = torch.Generator().manual_seed(derive(spec.seed, "probe"))
    shape = (PROBE_SAMPLES, *spec.data.shape)
    if spec.data.tokens is None:
        inputs = torch.randn(shape, generator=generator, dtype=getattr(torch, spec.training.dtype))
    else:
        inputs = torch.randint(spec.data.tokens, shape, generator=generator)
    with torch.random.fork_rng(devices=[]), FactorCapture(copied) as capture:
        torch.manual_seed(derive(spec.seed, "probe"))
        try:
            logits = copied(inputs)
        except Exception as error:
            raise SpecError(
                "model", f"does not take inputs of shape {list(shape)} (data.shape): {one_line(error)}"
            ) from error
        expected = (PROBE_SAMPLES, spec.task.classes)
        if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
            got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise SpecError("model", f"returned {got} for {PROBE_SAMPLES} samples, expected {list(expected)}")
        F.cross_entropy(logits, torch.arange(PROBE_SAMPLES) % spec.task.classes).backward()
    rows: dict[str, int] = {}
    warnings: list[str] = []
    for name, factor in capture.factors().items():
        gradient = copied.get_parameter(name).grad
        assert gradient is not None
        if torch.linalg.vector_norm(factor.gradient() - gradient) <= 1e-3 * torch.linalg.vector_norm(gradient):
            rows[name] = math.ceil(factor.rows / PROBE_SAMPLES)
        else:
            warnings.append(f"{name} is also used outside its layer: its factor is not used")
    return rows, tuple(warnings)
