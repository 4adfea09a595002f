"""`python -m benchmarks inversion`: an aggregator solves the gradients of many steps for the patients of a batch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.privacy.hospitals import NO_RULES, RULES, SITES, Refused, Seen, run_sites
from benchmarks.privacy.least_squares import logistic, mlp, recovered, solutions
from rankdad.common.documents import validate
from rankdad.common.policy import Policy
from rankdad.common.rounds.step import Step
from rankdad.common.spec import RunSpec

COLUMNS = 9
HIDDEN = 4
NEAR = 0.01  # standard deviations, of columns that have one each
OPTIMIZERS = {  # as an owner may choose: weights of all columns move apart, and few patients are called with certainty
    "logistic": {"name": "adam", "lr": 0.3},
    "mlp": {"name": "sgd", "lr": 1.0},
}
FIT = 1e-6  # relative residual of a correct solution, by rounding
REDUCED_FIT = 1e-3  # likewise, of reduced ones in single precision
MODELS = {"logistic": logistic, "mlp": mlp}


@dataclass(frozen=True)
class Case:
    """What is attacked.

    Args:
        model: logistic or mlp.
        rank: of rank-dad; None is dsgd, which sends whole gradients.
        batch: samples of a step.
        steps: whose gradients are known.
        patients: of each hospital: as many as a batch, or more.
        policy: of each hospital.
    """

    model: str
    rank: int | None
    batch: int
    steps: int
    patients: int
    policy: Policy


@dataclass(frozen=True)
class Recovered:
    """What comes of a case: cells, of how many of a batch; a code where the hospitals refuse the run."""

    case: Case
    cells: int
    refused: str = ""

    @property
    def outcome(self) -> str:
        """What the table says."""
        return self.refused or f"{self.cells} of {self.case.batch * COLUMNS}"


def invert(case: Case, restarts: int = 3) -> Recovered:
    """Run a case between two hospitals, and solve the first one's messages for the patients of a batch.

    The program takes all steps for those of one batch. Where that is wrong, no patients explain what was sent, and it
    claims none.
    """
    drawn = np.random.default_rng(case.patients)
    inputs = {site: drawn.normal(size=(case.patients, COLUMNS)) for site in SITES}
    with tempfile.TemporaryDirectory() as folder:
        for site, own in inputs.items():
            labels = (own[:, 0] + drawn.normal(size=case.patients) > 0).astype(np.int64)
            (Path(folder) / site / "data").mkdir(parents=True)
            np.savez(Path(folder) / site / "data" / "data.npz", x=own, y=labels)
        seen = run_sites(validate(RunSpec, specified(case)), Path(folder), case.policy)
    if isinstance(seen, Refused):
        return Recovered(case, 0, seen.code)
    found = solved(seen, case, restarts)
    truth = torch.from_numpy(inputs[SITES[0]])
    return Recovered(case, 0 if found is None else recovered(found, truth, NEAR))


def solved(seen: Seen, case: Case, restarts: int) -> Tensor | None:
    """Return a batch that explains a site's first steps, [batch, columns]; None if none is found."""
    steps = [place for place, message in enumerate(seen.up[SITES[0]]) if isinstance(message.body, Step)][: case.steps]
    weights = {
        name: torch.stack([seen.before[place][name].double() for place in steps]) for name in seen.before[steps[0]]
    }
    sent = dict[str, Tensor]()
    for slot, route in enumerate(seen.plan.routes):
        parts = list[Tensor]()
        for place in steps:
            body = seen.up[SITES[0]][place].body
            assert isinstance(body, Step)
            part = body.payload[slot]
            parts.append((part if isinstance(part, Tensor) else part.gradient()).double())
        sent[route.name] = torch.stack(parts)
    reduced = {route.name: route.bias for route in seen.plan.routes if not route.dense}
    sides = {name: _sides(sent[name], case.rank or 0) for name in reduced}
    model = MODELS[case.model]

    def left(batch: Tensor, labels: Tensor) -> Tensor:
        made = dict(model(weights, batch, labels))
        rest = list[Tensor]()
        for name, bias in reduced.items():
            whole = made.pop(name)
            if bias is not None:
                whole = torch.cat([whole, made.pop(bias).transpose(1, 2)], 2)
            # What a reduction leaves out comes in a later step: sums of all steps agree where it has sent all.
            away = (whole - sent[name]).cumsum(0)
            ends, others = sides[name]
            rest += [(ends.transpose(1, 2) @ away).flatten(), (away @ others).flatten()]
        rest += [(own - sent[name]).flatten() for name, own in made.items()]
        return torch.cat(rest)

    enough = (FIT if case.rank is None else REDUCED_FIT) * float(
        torch.cat([own.flatten() for own in sent.values()]).norm()
    )
    last = list(sent)[-1]  # a bias, or a matrix with one: its gradient is how far outputs are from the labels
    positive = case.batch * (0.5 - float(sent[last][0].flatten()[-1]))
    return solutions(left, (case.batch, COLUMNS), positive, restarts, enough)


def _sides(sent: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the directions on both sides of each step's matrix in which the reduction is exact."""
    left, _, right = torch.linalg.svd(sent, full_matrices=False)
    return left[:, :, :rank], right[:, :rank].transpose(1, 2)


def specified(case: Case) -> dict[str, Any]:
    """Return the spec of a case's run."""
    one = case.model == "logistic"
    batches = -(-case.patients // case.batch)
    return {
        "name": "inversion",
        "task": {"name": "multi-label", "labels": 1} if one else {"name": "classification", "classes": 2},
        "model": {"name": "linear"} if one else {"name": "mlp", "hidden": [HIDDEN], "activation": "tanh"},
        "data": {"reader": "npz", "file": "data.npz", "shape": [COLUMNS]},
        "training": {
            "epochs": -(-case.steps // batches),
            "batch_size": case.batch,
            "validation": 0.0,
            "test": 0.0,
            "dtype": "float64",
            "optimizer": OPTIMIZERS[case.model],
        },
        "method": {"name": "dsgd", "wire": "float64"} if case.rank is None else {"name": "rank-dad", "rank": case.rank},
        "federation": {"sites": list(SITES)},
    }


def cases(models: Sequence[str], batches: Sequence[int], steps: Sequence[int]) -> list[Case]:
    """Return fixed batches without rules, and under the rules hospitals of several batches, and of a single one."""
    found = [
        Case(model, rank, batch, count, patients, policy)
        for model in models
        for rank in (None, 2)
        for batch in batches
        for count in steps
        for patients, policy in ((batch, NO_RULES), (5 * batch, RULES), (batch, RULES))
    ]
    return [case for case in found if case.model == "mlp" or case.rank is None]  # of one output the gradient has rank 1


def bench_inversion(chosen: Sequence[Case], console: Console) -> list[Recovered]:
    """Print and return how many cells of a batch are recovered in each case."""
    table = Table("model", "method", "batch", "steps", "patients", "rules", "cells")
    found = list[Recovered]()
    for case in chosen:
        one = invert(case)
        method = "dsgd" if case.rank is None else f"rank-dad {case.rank}"
        rules = "on" if case.policy == RULES else "off"
        table.add_row(case.model, method, *map(str, (case.batch, case.steps, case.patients)), rules, one.outcome)
        found.append(one)
    console.print(table)
    return found
