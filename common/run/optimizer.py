"""The optimizer and its learning rate, equal at every site."""

from __future__ import annotations

import math

import torch
from torch import nn

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
    """Return the spec's optimizer, fused: one kernel for all parameters."""
    spec = training.optimizer
    if isinstance(spec, Adam):
        kind = torch.optim.AdamW if spec.weight_decay else torch.optim.Adam
        return kind(parameters, lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay, fused=True)
    return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True)
