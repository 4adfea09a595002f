"""Local steps: a site trains alone for some batches, and contributes the change of the weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rankdad.common.run.optimizer import laid_out_as, learning_rate, load_moments, lr_scale, make_optimizer, moments_of
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.batch import StepBatch

Moments = Mapping[str, Tensor]  # of a site's own optimizer, named as by `moments_of`
Gradients = Callable[[StepBatch], tuple[Mapping[str, Tensor], float]]


def differences(
    spec: RunSpec, run: RunState, site: int, batches: Sequence[StepBatch], moments: Moments, gradients: Gradients
) -> tuple[dict[str, Tensor], float, Moments]:
    """Train on some batches, then restore the shared weights; only buffers keep their new values.

    Args:
        spec: of a run with local steps.
        run: with the site's replica, which has the shared weights.
        site: its place in the plan.
        batches: one for each local step.
        moments: of the site's optimizer; without them it starts fresh.
        gradients: returns the gradients of a batch's mean loss by parameter, and that loss.

    Returns:
        The weights before minus those after, by parameter, to be used as a gradient; a batch without samples changes
        nothing. The mean loss over all samples. The optimizer's moments, if they are kept.

    Source: arXiv 1602.05629, Algorithm 1; the proximal term arXiv 1812.06127, Algorithm 2; both loops arXiv 2311.08105,
    Algorithm 1.
    """
    local, training, trained = spec.local, spec.training, run.replica.trained
    assert local is not None
    shared = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimizer = make_optimizer(training, list(trained.values()))
    load_moments(optimizer, trained, moments)
    take_step = inspect.unwrap(type(optimizer).step)
    scale, (first, per_epoch) = lr_scale(training, len(spec.federation.sites)), run.next_batch(site)
    samples, mean = sum(map(len, batches)), 0.0
    try:
        for number, batch in enumerate(batches, first):
            if not len(batch):  # a site with fewer samples than batches: momentum alone would change the weights
                continue
            found, loss = gradients(batch)
            mean += loss * len(batch) / samples
            with torch.no_grad():
                for name, parameter in trained.items():
                    own = found.get(name)  # missing for an unused weight
                    parameter.grad = torch.zeros_like(parameter) if own is None else laid_out_as(parameter, own)
                    if local.proximal:
                        parameter.grad.add_(parameter - shared[name], alpha=local.proximal)
                if training.clip is not None:
                    nn.utils.clip_grad_norm_(trained.values(), training.clip)
                for group in optimizer.param_groups:
                    group["lr"] = scale * learning_rate(training, number, per_epoch)
                take_step(optimizer)
        moved = {name: shared[name] - parameter.detach() for name, parameter in trained.items()}
    finally:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.grad = None
                parameter.copy_(shared[name])
    return moved, mean, moments_of(optimizer, trained) if local.moments == "kept" else {}
