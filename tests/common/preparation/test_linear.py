"""Sums for a linear model that a liar may send: they may spoil that model, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdad.common.preparation import Preparing, Rows, linear
from tests.conftest import run_spec

LINEAR = {"name": "holdout", "references": ["linear"]}
PREPARED = {"standardise": "federated"}
TASKS: list[dict[str, Any]] = [
    {"name": "classification", "classes": 2},
    {"name": "classification", "classes": 3},
    {"name": "regression"},
]


def honest_rows(task: dict[str, Any], count: int, seed: int) -> Rows:
    draw = np.random.default_rng(seed)
    labels = draw.normal(size=count) if task["name"] == "regression" else draw.integers(0, task["classes"], count)
    return Rows(torch.from_numpy(draw.normal(size=(count, 6))), torch.from_numpy(labels))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task['name']}-{task.get('classes', 0)}")
@pytest.mark.parametrize("seed", range(3))
def test_whatever_one_site_may_send_the_others_sums_are_numbers_and_so_is_the_model(
    task: dict[str, Any], seed: int
) -> None:
    spec = run_spec(task=task, evaluation=LINEAR, preparation=PREPARED)
    preparing = Preparing(spec)
    honest, liar = honest_rows(task, 30, 1), honest_rows(task, 9, 2)
    totals: dict[str, Tensor] = {}
    generator, lies = np.random.default_rng(seed), 0
    for stage in preparing.stages:
        true = preparing.contribution(stage, totals, honest)
        told = preparing.contribution(stage, totals, liar)
        for place in generator.permutation(len(told))[:40]:
            for value in generator.permutation([10.0**power for power in (*range(-300, 300, 25), 99, 219)]):
                wild = told.clone()
                wild[place] = float(value * generator.choice([-1, 1]))
                if preparing.check(stage, wild, 4e9) is None:
                    told, lies = wild, lies + 1
                    break
        totals[stage] = true + told
    assert lies > 20
    weights = preparing.linear(totals)
    outputs = linear.outputs(preparing._task, honest.inputs, weights)
    assert weights.isfinite().all()
    assert outputs.isfinite().all()


def test_what_no_rows_add_up_to_is_named() -> None:
    preparing = Preparing(run_spec(task=TASKS[0], evaluation=LINEAR))
    sums = preparing.contribution("linear-1", {}, honest_rows(TASKS[0], 30, 1))
    curvature = 1 + 7  # behind the loss and the slope
    for place, value, said in (
        (0, -1.0, "loss: expected no number below 0"),
        (curvature, 30.0, "curvature: expected that of 30 rows"),
        (curvature + 7, -1.0, "curvature: expected none below 0"),
        (curvature + 8, 1e9, "curvature: expected no more than its diagonal allows"),
        (1, float("nan"), "slope: expected numbers"),
    ):
        wild = sums.clone()
        wild[place] = value
        assert str(preparing.check("linear-1", wild, 30)).startswith(said)
    assert preparing.check("linear-1", sums, 30) is None
