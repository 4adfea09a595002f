"""Sums for a linear model that a liar may send: they may spoil that model, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdad.common.needs import patients_for_sums
from rankdad.common.policy import Policy
from rankdad.common.preparation import Preparing, Rows, in_memory, linear
from rankdad.common.spec.tasks import TaskSpec
from tests.conftest import run_spec, sampled

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


@pytest.mark.parametrize(("task", "seed"), sampled([(task, seed) for seed in range(3) for task in TASKS], every=9))
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
    weights = preparing.solving.weights(totals)
    outputs = linear.outputs(preparing._task, in_memory(honest.inputs), weights)
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
        (1, 31.0, "slope: expected no more than its loss allows"),
    ):
        wild = sums.clone()
        wild[place] = value
        assert str(preparing.check("linear-1", wild, 30, 30)).startswith(said)
    assert preparing.check("linear-1", sums, 30) is None
    numbers = Preparing(run_spec(task=TASKS[-1], evaluation=LINEAR))
    rows = honest_rows(TASKS[-1], 30, 1)
    labels = numbers.contribution("labels", {}, rows)
    totals = {"labels": labels, "label-squares": numbers.contribution("label-squares", {"labels": labels}, rows)}
    sums = numbers.contribution("linear-1", totals, rows)
    most = float(2 * sums[0] * sums[curvature + 7]) ** 0.5  # by Cauchy and Schwarz
    for part in (0.99, -0.99, 1.01, -1.01):
        sums[2] = part * most
        assert (numbers.check("linear-1", sums, 30, 30) is None) == (abs(part) < 1)


def leading_to(weights: Tensor) -> dict[str, Tensor]:
    """Return a total of the first round that has two classes' second one computed at these weights."""
    curvature = torch.eye(len(weights), dtype=torch.float64)
    slope = -(curvature.diagonal() + linear.PENALTY * (torch.arange(len(weights)) > 0)) * weights
    places = tuple(torch.triu_indices(*curvature.shape))
    return {"loss": torch.zeros(()).double(), "slope": slope, "curvature": curvature[places]}


def descended(task: TaskSpec, totals: list[linear.Sums]) -> Tensor:
    """Return where the next round is taken, of two classes and six inputs."""
    curvature = totals[0]["curvature"] if totals else torch.zeros(28, dtype=torch.float64)
    return linear.descend(task, totals, linear.variances(linear.square(curvature), 7)).at.reshape(1, 7)


def test_an_aggregator_that_chooses_the_weights_reads_no_single_row_off_the_curvature() -> None:
    spec = run_spec(task=TASKS[0], evaluation=LINEAR)
    task, rows, read = spec.task, honest_rows(TASKS[0], 200, 1), dict.fromkeys((1, 8), 0)
    for seed in range(40):
        wanted = 2000 * torch.from_numpy(np.random.default_rng(seed).normal(size=7))
        at = descended(task, [leading_to(wanted)])
        assert torch.allclose(at[0], wanted), "what is sent decides where sums are taken"
        for fewest in read:
            found = linear.sums(task, in_memory(rows.inputs), rows.labels, at, fewest)["curvature"][:7]
            if found[0] > 1e-6:
                distance = (in_memory(rows.inputs) - found[1:] / found[0]).abs().amax(1).min()
                read[fewest] += bool(distance < 1e-3)
    assert read[1] > 5
    assert read[8] == 0


@pytest.mark.parametrize("fewest", [1, 8])
def test_a_plane_that_false_totals_move_past_one_row_between_two_rounds_tells_nothing_of_it(fewest: int) -> None:
    """Ten rows lie on the plane in both rounds, and all others far from it: the slopes differ by one row alone."""
    rows = honest_rows(TASKS[0], 200, 1)
    inputs = in_memory(rows.inputs)
    inputs[:, 0], inputs[:, 1] = 1, torch.arange(200)
    inputs[:10, :2] = 0
    preparing = Preparing(run_spec(task=TASKS[0], evaluation=LINEAR, data={"shape": [6]}))
    told, weights, totals = list[Tensor](), torch.zeros(7, dtype=torch.float64), dict[str, Tensor]()
    held = linear.variances(linear.square(leading_to(weights)["curvature"]), 7)
    for number, border in enumerate((198.5, 199.5)):
        wanted = 1e4 * torch.tensor([0, -border, 1, 0, 0, 0, 0], dtype=torch.float64)
        slope = (1 + held) * (weights - wanted) - held * weights
        total = leading_to(wanted) | {"loss": torch.tensor(-1e15 * number, dtype=torch.float64), "slope": slope}
        totals[f"linear-{number + 1}"] = preparing._stages[f"linear-{number + 1}"].pack(total)
        stage, weights = f"linear-{number + 2}", wanted
        assert torch.allclose(preparing.solving.weights(totals)[0], wanted), "what is sent decides where it is asked"
        told.append(preparing.unpack(stage, preparing.contribution(stage, totals, rows, None, fewest))["slope"])
    assert bool(told[0].any())
    assert torch.allclose((told[0] - told[1])[1:], inputs[199], atol=1e-6) == (fewest == 1)
    assert bool(told[1].any()) == (fewest == 1)


def test_groups_count_once_behind_a_curvature() -> None:
    spec, rows = run_spec(task=TASKS[0], evaluation=LINEAR), honest_rows(TASKS[0], 20, 1)
    start = torch.zeros(1, 7, dtype=torch.float64)
    for count, told in ((20, True), (4, True), (3, False)):
        sums = linear.sums(spec.task, in_memory(rows.inputs), rows.labels, start, 4, torch.arange(20) % count)
        assert bool(sums["curvature"].any()) == told


def test_scales_that_leave_the_side_of_a_bound_alone_get_no_sums() -> None:
    spec, rows = run_spec(task=TASKS[0], evaluation=LINEAR), honest_rows(TASKS[0], 20, 1)
    start = torch.zeros(1, 7, dtype=torch.float64)
    for factor, told in ((1.0, True), (1e102, False)):
        sums = linear.sums(spec.task, in_memory(rows.inputs) * factor, rows.labels, start, 8)
        assert bool(sums["curvature"].any()) == told


def test_where_few_rows_are_left_behind_sums_the_model_keeps_what_more_have_taught() -> None:
    """Classes that can be told without fail: in the end two rows would make up most of the sums."""
    spec, rows = run_spec(task=TASKS[0], evaluation=LINEAR), honest_rows(TASKS[0], 40, 3)
    labels = (in_memory(rows.inputs)[:, 0] > 0).long()
    totals: list[linear.Sums] = []
    for _ in range(linear.ROUNDS):
        at = descended(spec.task, totals)
        totals.append(linear.sums(spec.task, 3 * in_memory(rows.inputs), labels, at, 25))
    assert any(float(total["loss"]) > 1e200 for total in totals)
    outputs = linear.outputs(spec.task, 3 * in_memory(rows.inputs), descended(spec.task, totals))
    assert (outputs.argmax(1) == labels).double().mean() > 0.9


@pytest.mark.parametrize(("inputs", "whole", "fold"), [(4, 260, 43), (20, 1836, 171)])
def test_numbers_that_leave_are_counted_as_the_page_says(inputs: int, whole: int, fold: int) -> None:
    """Of two classes, 5 folds and a refit: with 4 per rank half of the cells are 190 and 257 patients'."""
    csv = {"reader": "csv", "file": "t.csv", "features": [f"c{i}" for i in range(inputs)], "label": "y"}
    changes = {"data": csv | {"values": ["a", "b"]}, "model": {"name": "linear"}, "training": {"solver": "exact"}}
    spec = run_spec(task=TASKS[0], evaluation={"name": "k-fold", "folds": 5}, preparation=PREPARED, **changes)
    preparing = Preparing(spec)
    assert preparing.numbers() == (whole, fold)
    sizes = map(preparing.size, preparing.stages)
    assert sum(sizes) == whole + fold, "of one line no product stands twice"


def test_from_how_many_patients_on_a_site_lets_the_sums_out_is_what_the_page_says() -> None:
    page = Path("docs/how-to/study.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    folds = {"name": "k-fold", "folds": 5}
    asked = [({**folds, "references": ["linear"]}, "steps"), (folds, "exact"), ({"name": "holdout"}, "exact")]
    for inputs, *told in rows:
        csv = {"reader": "csv", "file": "t.csv", "features": [f"c{i}" for i in range(int(inputs))], "label": "y"}
        found = [
            patients_for_sums(
                run_spec(
                    task=TASKS[0],
                    data=csv | {"values": ["a", "b"]},
                    model={"name": "linear"},
                    evaluation=evaluation,
                    preparation=PREPARED,
                    training={"solver": solver},
                ),
                Policy(),
            )
            for evaluation, solver in asked
        ]
        assert found == list(map(int, told))
    assert len(rows) == 4
