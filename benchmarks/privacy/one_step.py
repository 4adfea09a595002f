"""What one step of a wide network tells: its numbers are solved for the whole batch, by non-linear least squares.

The last layer's gradient and that of the biases are sums over the batch of known functions of a row, one for each unit,
times what flows back from the patient's output; the rows that rank-dad sends are such sums times a part of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.privacy.least_squares import solve
from rankdad.common.policy import Policy
from rankdad.common.privacy.repeated import MEASURES
from rankdad.common.privacy.shares import scales, shared_units

SAMPLES = 16
NEAR = 0.01  # standard deviations, of columns that have one each
FIT = 1e-9  # of what is sent: what a right solution may leave of it
SHAPES = ((4, 100), (4, 300), (6, 40), (6, 90), (6, 300), (8, 50), (8, 70), (13, 64), (12, 128), (12, 200))


@dataclass(frozen=True)
class Solved:
    """What comes of one step.

    Args:
        columns: of its patients.
        units: of the only hidden layer.
        numbers: that are sent for each cell, the outcome among these.
        rows: that the program claims, and are right.
    """

    columns: int
    units: int
    numbers: float
    rows: int


def solved(columns: int, units: int, starts: int, seed: int = 0) -> Solved:
    """Send one step of random patients by rank-dad, one row less than there are columns, and solve it."""
    generator, policy = torch.Generator().manual_seed(seed), Policy()
    rows, people = torch.randn(SAMPLES, columns, generator=generator, dtype=torch.float64), torch.arange(SAMPLES)
    wide = 2 * torch.rand(units, columns + 2, generator=generator, dtype=torch.float64) - 1  # as torch begins a layer
    first, bias, after = wide[:, :columns] / columns**0.5, wide[:, -2] / columns**0.5, 2 * wide[:, -1] / units**0.5
    hidden = torch.tanh(rows @ first.T + bias)
    away = (hidden @ after).sigmoid() - torch.randint(2, (SAMPLES,), generator=generator)
    scale = scales(away[:, None], people, policy.sharing)
    away = away if scale is None else away * scale[:, 0]
    delta = away[:, None] * after * (1 - hidden.square())
    shared = shared_units(delta, people, lambda own: (own, 0))
    delta = delta if shared is None else shared
    rank = min(policy.rank(SAMPLES) or columns, columns - 1)
    sides = torch.linalg.svd(delta.T @ rows, full_matrices=False)[2][:rank].T
    sent = torch.cat([(away @ hidden)[:, None], delta.sum(0)[:, None], delta.T @ rows @ sides], 1)

    weight = torch.cat([torch.ones(units, 1), 1 / after[:, None].expand(-1, 1 + rank)], 1)  # alike for all units

    def each(some: Tensor) -> Tensor:
        """Return what a patient's output of 1 puts into what is sent, [units · sent, patients]."""
        inner = torch.tanh(some @ first.T + bias)
        back = (1 - inner.square())[:, :, None]
        ends = torch.cat([torch.ones(SAMPLES, 1, dtype=some.dtype), some @ sides], 1)[:, None]
        return torch.cat([inner[:, :, None], back * ends], 2).flatten(1).T

    wanted = (sent * weight).flatten()

    def left(unknown: Tensor) -> Tensor:
        some, flows = unknown[:-SAMPLES].reshape(SAMPLES, columns), unknown[-SAMPLES:]
        away: Tensor = (each(some) @ flows - wanted) / wanted.norm()
        return away

    numbers = 3 * units + 2 + rank * (units + columns) + MEASURES
    a_cell, right = numbers / (SAMPLES * (columns + 1)), 0
    for _ in range(starts):
        start = torch.randn(SAMPLES, columns, generator=generator, dtype=torch.float64)
        flows = torch.linalg.lstsq(each(start), wanted[:, None]).solution[:, 0]
        found, rest = solve(left, torch.cat([start.flatten(), flows]))
        if rest < FIT:
            apart = torch.cdist(found[:-SAMPLES].reshape(SAMPLES, columns), rows, p=torch.inf)
            right = int((apart < NEAR).any(0).sum())
            break
    return Solved(columns, units, a_cell, right)


def bench_one_step(starts: int, console: Console) -> list[Solved]:
    """Print and return what one step tells, by columns and units."""
    table = Table("columns", "units", "numbers a cell", f"rows, of {SAMPLES}")
    found = [solved(columns, units, starts) for columns, units in SHAPES]
    for one in found:
        table.add_row(*map(str, (one.columns, one.units)), f"{one.numbers:.3g}", str(one.rows))
    console.print(f"patients whose cells one step by rank-dad tells, in double precision, from {starts} starts:")
    console.print(table)
    return found
