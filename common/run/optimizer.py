"""The optimizer and its learning rate, equal at every site."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rankdad.common.run.factored_adam import FactoredAdam, moments_of
from rankdad.common.spec import Adam, Constant, Cosine, Training


def lr_scale(training: Training, sites: int) -> float:
    """Return the factor by which the learning rate grows with the global batch."""
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
    """Return the spec's optimizer; torch's are fused: one kernel for all parameters."""
    spec = training.optimizer
    if isinstance(spec, Adam) and spec.second_moment == "factored":
        return FactoredAdam(parameters, spec.lr, spec.betas, spec.weight_decay)
    if isinstance(spec, Adam):
        kind = torch.optim.AdamW if spec.weight_decay else torch.optim.Adam
        return kind(parameters, lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay, fused=True)
    return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True)


def expected_moments(training: Training, parameter: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what the optimizer keeps of a parameter, by name; its step has one number, in float32."""
    if training.sends_squares:
        return moments_of(parameter)
    shape = tuple(parameter.shape)
    if isinstance(training.optimizer, Adam):
        return {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
    return {"momentum_buffer": shape}
