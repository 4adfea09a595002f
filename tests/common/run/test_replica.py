"""Schedules, clipping, and gradients of any memory layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankdad.common.run.optimizer import learning_rate
from rankdad.common.run.replica import Replica
from tests.conftest import run_spec


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "constant"}, {0: 1.0, 39: 1.0}),
        ({"name": "cosine"}, {0: 1.0, 20: 0.5, 40: 0.0}),
        ({"name": "cosine", "warmup": 4, "floor": 0.2}, {0: 0.25, 3: 1.0, 4: 1.0, 22: 0.6, 40: 0.2}),
        ({"name": "step", "epochs": 2, "gamma": 0.1}, {0: 1.0, 19: 1.0, 20: 0.1, 39: 0.1}),
    ],
)
def test_the_schedule_is_a_function_of_the_step(schedule: dict[str, Any], expected: dict[int, float]) -> None:
    training = run_spec(training={"epochs": 4, "schedule": schedule, "optimizer": {"name": "sgd", "lr": 1.0}}).training
    assert {step: learning_rate(training, step, 10) for step in expected} == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", [{"name": "adam", "lr": 0.1}, {"name": "sgd", "lr": 0.1, "momentum": 0.9}])
def test_a_gradients_strides_do_not_matter(optimizer: dict[str, Any]) -> None:
    """A slice, as a weight beside its folded bias is: fused optimizers would read it in the wrong order."""
    replicas = [Replica(run_spec(training={"optimizer": optimizer})) for _ in range(2)]
    for replica, contiguous in zip(replicas, (True, False), strict=True):
        for step in range(2):
            gradients = {}
            for name, parameter in replica.model.named_parameters():
                wide = torch.arange(parameter.numel() * 2.0).reshape(*parameter.shape, 2).sin() + step
                gradients[name] = wide[..., 0].contiguous() if contiguous else wide[..., 0]
            replica.apply(gradients)
    assert replicas[0].digest() == replicas[1].digest()


def test_clipping_bounds_the_norm_of_what_is_applied() -> None:
    spec = run_spec(training={"clip": 0.5, "optimizer": {"name": "sgd", "lr": 1.0}})
    replica = Replica(spec)
    before = replica.weights()
    replica.apply({name: torch.full_like(p, 3.0) for name, p in replica.model.named_parameters()})
    moved = sum(float((replica.weights()[name] - value).square().sum()) for name, value in before.items())
    assert moved**0.5 == pytest.approx(0.5, rel=1e-4)


def test_a_state_whose_moments_do_not_fit_is_refused() -> None:
    """A fused optimizer would read and write beyond the end of one that is too small."""
    spec = run_spec()
    replica = Replica(spec)
    replica.apply({name: torch.ones_like(value) for name, value in replica.model.named_parameters()})
    state = replica.state()
    name = next(name for name in state if name.startswith("exp_avg/"))
    with pytest.raises(ValueError, match="got \\[1\\], expected"):
        replica.load_state(state | {name: torch.zeros(1)}, 1)
