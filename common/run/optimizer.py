"""The optimizer and its learning rate, equal at every site."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rankdad.common.methods.local_steps import Average, LocalSteps, Nesterov
from rankdad.common.run.factored_adam import FactoredAdam, moment_shapes
from rankdad.common.spec import Adam, Constant, Cosine, Training


def lr_scale(training: Training, sites: int) -> float:
    """Return the factor of the learning rate for the size of the global batch."""
    return {"none": 1.0, "linear": float(sites), "sqrt": math.sqrt(sites)}[training.lr_scaling]


def learning_rate(training: Training, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0 over the whole run."""
    base, schedule = training.optimizer.lr, training.schedule
    if isinstance(schedule, Constant):
        return base
    if isinstance(schedule, Cosine):
        if step < schedule.warmup:
            return base * (step + 1) / schedule.warmup
        falling = max(1, training.epochs * steps_per_epoch - schedule.warmup)
        share = (1 + math.cos(math.pi * (step - schedule.warmup) / falling)) / 2
        return base * (schedule.floor + (1 - schedule.floor) * share)
    return float(base * schedule.gamma ** (step // (schedule.epochs * steps_per_epoch)))


def make_optimizer(training: Training, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Create the spec's optimizer; torch's are fused, with one kernel for all parameters."""
    spec = training.optimizer
    if isinstance(spec, Adam) and spec.second_moment == "factored":
        return FactoredAdam(parameters, spec.lr, spec.betas, spec.weight_decay)
    if isinstance(spec, Adam):
        kind = torch.optim.AdamW if spec.weight_decay else torch.optim.Adam
        return kind(parameters, lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay, fused=True)
    return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True)


def make_outer_optimizer(spec: LocalSteps, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Create the optimizer that applies the mean of the sites' differences, as a gradient."""
    outer = spec.outer
    if isinstance(outer, Average):
        return torch.optim.SGD(parameters, lr=outer.lr, fused=True)
    if isinstance(outer, Nesterov):
        return torch.optim.SGD(parameters, lr=outer.lr, momentum=outer.momentum, nesterov=True, fused=True)
    return torch.optim.Adam(parameters, lr=outer.lr, betas=outer.betas, eps=outer.epsilon, fused=True)


def expected_moments(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an optimizer's moments of a parameter, by kind; the step is one float32 number."""
    if isinstance(optimizer, FactoredAdam):
        return moment_shapes(parameter)
    shape = tuple(parameter.shape)
    if isinstance(optimizer, torch.optim.Adam):
        return {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
    return {"momentum_buffer": shape} if optimizer.defaults["momentum"] else {}


def moments_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return an optimizer's moments by kind and parameter, such as `exp_avg/0.weight`, without copying."""
    return {
        f"{kind}/{name}": value
        for name, parameter in parameters.items()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], moments: Mapping[str, Tensor]
) -> None:
    """Copy moments from `moments_of` into an optimizer; before the first step there are none.

    Raises:
        ValueError: they do not match this optimizer and these parameters; a fused one would access memory beyond a
            moment that is too small.
    """
    expected = {
        f"{kind}/{name}": (kind, name, shape)
        for name, parameter in parameters.items()
        for kind, shape in expected_moments(optimizer, parameter).items()
    }
    if moments and moments.keys() != expected.keys():
        known = ", ".join(sorted({kind for kind, *_ in expected.values()})) or "no moment"
        raise ValueError(f"expected {known} of every trained weight, and nothing else")
    for key, value in moments.items():
        kind, name, shape = expected[key]
        owner = parameters[name]
        if tuple(value.shape) != shape or value.dtype != (torch.float32 if kind == "step" else owner.dtype):
            raise ValueError(f"{kind} of {name}: got {list(value.shape)}, expected {list(shape)}")
        copied = value.to(owner.device, copy=True)
        whole = kind != "step" and shape == owner.shape
        optimizer.state[owner][kind] = laid_out_as(owner, copied) if whole else copied


def laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Return a gradient or moment in its parameter's strides, which fused optimizers assume."""
    gradient = gradient.to(parameter).reshape(parameter.shape)
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)
