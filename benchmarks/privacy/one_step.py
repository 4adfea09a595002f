"""Disclosure by one step of a wide network: non-linear least squares recover the whole batch.

The last layer's gradient and that of the biases are sums over the batch of known functions of a row, one for each unit,
times what flows back from the patient's output; the rows that rank-dad sends are such sums times a part of the row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.privacy.least_squares import solve
from rankdad.common.data import Samples, SiteData
from rankdad.common.data.folds import Split
from rankdad.common.documents import validate
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.privacy.repeated import numbers_of_step
from rankdad.common.privacy.shares import scales, shared_units
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.local.privacy.cells import StepNumbers

NEAR = 0.01  # standard deviations, of columns that have one each
FIT = 1e-9  # relative residual of a correct solution
SHAPES = (  # samples of the step, columns, units
    *((8, 2, 12), (8, 4, 8), (8, 4, 16), (8, 5, 20), (8, 9, 16)),
    *((16, 4, 40), (16, 4, 300), (16, 6, 16), (16, 6, 40), (16, 6, 90), (16, 8, 20), (16, 8, 50), (16, 8, 70)),
    *((16, 12, 128), (16, 12, 200), (16, 13, 32), (16, 13, 64)),
)


@dataclass(frozen=True)
class Solved:
    """What comes of one step.

    Args:
        samples: of the step, each of a patient.
        columns: of its patients.
        units: of the only hidden layer.
        feedback: of rank-dad: with "both" biases travel in its rows, else whole.
        rank: how many rows of a layer are sent.
        numbers: that are sent for each cell, the outcome among these.
        rows: that the program claims, and are right.
    """

    samples: int
    columns: int
    units: int
    feedback: str
    rank: int
    numbers: float
    rows: int


def attack(
    samples: int, columns: int, units: int, feedback: str, starts: int, *, limited: bool = False, seed: int = 0
) -> Solved:
    """Send one step of random patients by rank-dad, and solve it.

    Args:
        samples: of the step, each of a patient.
        columns: of the patients.
        units: of the only hidden layer.
        feedback: of rank-dad.
        starts: of the search, at random patients.
        limited: whether no more leaves than the default policy lets out; a rank of 0 is a refused run.
        seed: of patients, weights and starts.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(samples, columns, generator=generator, dtype=torch.float64)
    step = _numbers(rows, units, feedback)
    cells = samples * step.cells
    step = step if limited else replace(step, cells=0)
    rank = step.rows(samples) or 0
    numbers = numbers_of_step(step.routes, max(1, rank), projections=False) / cells
    found = _solved(rows, units, rank, starts, generator, whole_bias=feedback == "none") if rank else 0
    return Solved(samples, columns, units, feedback, rank, numbers, found)


def _numbers(rows: Tensor, units: int, feedback: str) -> StepNumbers:
    """Return the message of a step of these rows and network under the default policy."""
    samples, columns = rows.shape
    rank = max(1, min(columns - 1, samples // 4))
    spec = validate(
        RunSpec,
        {
            "name": "one-step",
            "seed": 0,
            "task": {"name": "classification", "classes": 2},
            "model": {"name": "mlp", "hidden": [units]},
            "data": {"shape": [columns]},
            "training": {"epochs": 1, "batch_size": samples, "optimizer": {"name": "sgd", "lr": 0.1}},
            "method": {"name": "rank-dad", "rank": rank, "feedback": feedback},
            "federation": {"sites": ["hospital-a", "hospital-b"]},
        },
    )
    all_, none = torch.arange(samples), torch.arange(0)
    data = SiteData(Samples(rows, all_ % 2), (Split(all_, none, none),))
    return StepNumbers.of(Policy(), spec, make_plan(spec, build_model(spec)), data)


def _solved(rows: Tensor, units: int, rank: int, starts: int, generator: torch.Generator, *, whole_bias: bool) -> int:
    """Return how many rows are found, and right."""
    (samples, columns), policy, people = rows.shape, Policy(), torch.arange(len(rows))
    wide = 2 * torch.rand(units, columns + 2, generator=generator, dtype=torch.float64) - 1  # as torch begins a layer
    first, bias, after = wide[:, :columns] / columns**0.5, wide[:, -2] / columns**0.5, 2 * wide[:, -1] / units**0.5
    hidden = torch.tanh(rows @ first.T + bias)
    away = (hidden @ after).sigmoid() - torch.randint(2, (samples,), generator=generator)
    scale = scales(away[:, None], people, policy.sharing)
    away = away if scale is None else away * scale[:, 0]
    delta = away[:, None] * after * (1 - hidden.square())
    shared = shared_units(delta, people, lambda own: (own, 0), policy.sharing)
    delta = delta if shared is None else shared
    one = torch.ones(samples, 1, dtype=torch.float64)
    if whole_bias:
        reduced = torch.linalg.svd(delta.T @ rows, full_matrices=False)[2][:rank].T
        sides = torch.block_diag(reduced, torch.ones(1, 1, dtype=torch.float64))
    else:
        sides = torch.linalg.svd(delta.T @ torch.cat([rows, one], 1), full_matrices=False)[2][:rank].T
    sent = torch.cat([(away @ hidden)[:, None], delta.T @ torch.cat([rows, one], 1) @ sides], 1)
    weight = torch.cat([torch.ones(units, 1), 1 / after[:, None].expand(-1, sides.shape[1])], 1)  # alike for all units

    def each(some: Tensor) -> Tensor:
        """Return the effect of a patient's output of 1 on the message, [units · sent, patients]."""
        inner = torch.tanh(some @ first.T + bias)
        back = (1 - inner.square())[:, :, None]
        ends = (torch.cat([some, one], 1) @ sides)[:, None]
        return torch.cat([inner[:, :, None], back * ends], 2).flatten(1).T

    wanted = (sent * weight).flatten()

    def left(unknown: Tensor) -> Tensor:
        some, flows = unknown[:-samples].reshape(samples, columns), unknown[-samples:]
        away: Tensor = (each(some) @ flows - wanted) / wanted.norm()
        return away

    for _ in range(starts):
        start = torch.randn(samples, columns, generator=generator, dtype=torch.float64)
        flows = torch.linalg.lstsq(each(start), wanted[:, None]).solution[:, 0]
        found, rest = solve(left, torch.cat([start.flatten(), flows]))
        if rest < FIT:
            apart = torch.cdist(found[:-samples].reshape(samples, columns), rows, p=torch.inf)
            return int((apart < NEAR).any(0).sum())
    return 0


def bench_one_step(starts: int, console: Console) -> list[tuple[Solved, Solved]]:
    """Print and return the disclosure by one step, by columns, units and feedback, with rules and without."""
    table = Table("samples", "columns", "units", "feedback", "numbers a cell", "rows", "by default", "rows")
    found = []
    for samples, columns, units in SHAPES:
        for feedback in ("none", "both"):
            free, held = (
                attack(samples, columns, units, feedback, starts, limited=limited) for limited in (False, True)
            )
            found.append((free, held))
            let = f"rank {held.rank}, {held.numbers:.3g}" if held.rank else "refused"
            numbers = f"{free.numbers:.3g} (rank {free.rank})"
            shape = map(str, (samples, columns, units))
            table.add_row(*shape, feedback, numbers, str(free.rows), let, str(held.rows) if held.rank else "")
    console.print(f"patients whose cells one step by rank-dad tells, in double precision, from {starts} starts:")
    console.print(table)
    return found
