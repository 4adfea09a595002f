"""Disclosure by one step through ratios of two units' gradients.

What flows back through a unit of a network with one output is the output's, times the unit's weight in the next layer,
of those for whom the unit is active. So the gradients of two units, each divided by that weight, differ by those for
whom one of them is active; if that is one patient, the difference is the patient's row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rankdad.common.policy import Policy
from rankdad.common.privacy.shares import scales, shared_units

COLUMNS = 9
NEAR = 0.01  # standard deviations, of columns that have one each
UNITS, SAMPLES = (4, 8, 8, 16, 16, 32, 32, 32, 64), (16, 16, 32, 32, 64, 64, 128, 32, 32)  # of each row; a step's


@dataclass(frozen=True)
class Told:
    """Rows that a step tells on average.

    Args:
        alone: by single units, of whole gradients without rules.
        limited: likewise, under the default policy.
        pairs: by differences of two units, of whole gradients under the default policy.
        reduced: likewise, of gradients reduced to as many rows as the policy lets rank-dad send.
    """

    alone: float
    limited: float
    pairs: float
    reduced: float


def told(units: int, samples: int, draws: int) -> Told:
    """Return the number of revealed rows of random patients by networks with random weights."""
    generator, policy = torch.Generator().manual_seed(0), Policy()
    found = torch.zeros(4)
    for _ in range(draws):
        rows, weights = (torch.randn(n, COLUMNS, generator=generator, dtype=torch.float64) for n in (samples, units))
        biases, after = torch.randn(2, units, generator=generator, dtype=torch.float64)
        labels = torch.randint(2, (samples,), generator=generator)
        inner = rows @ weights.T / COLUMNS**0.5 + biases
        output = (torch.relu(inner) @ after / units**0.5).sigmoid() - labels
        free = (output / samples)[:, None] * after * (inner > 0)
        scale, people = scales(output[:, None], torch.arange(samples), policy.sharing), torch.arange(samples)
        shared = free if scale is None else free * scale
        units_left = shared_units(shared, people, lambda own: (own, 0), policy.sharing)
        shared = shared if units_left is None else units_left
        wide = torch.cat([rows, torch.ones(samples, 1, dtype=torch.float64)], 1)
        whole, before = shared.T @ wide, free.T @ wide
        left, sizes, right = torch.linalg.svd(whole, full_matrices=False)
        kept = policy.rank(samples) or len(sizes)
        reduced = (left * sizes)[:, :kept] @ right[:kept]
        pairs = (_pairs(matrix, after, rows) for matrix in (whole, reduced))
        found += torch.tensor([_right(before, rows), _right(whole, rows), *pairs])
    return Told(*(found / draws).tolist())


def _pairs(gradients: Tensor, after: Tensor, rows: Tensor) -> int:
    first, second = torch.triu_indices(len(after), len(after), 1)
    each = gradients / after[:, None]
    return _right(each[first] - each[second], rows)


def _right(gradients: Tensor, rows: Tensor) -> int:
    """Return how many of some rows are gradients divided by those of their bias."""
    bias = gradients[:, -1:]
    guesses = (gradients[:, :-1] / bias)[bias[:, 0].abs() > 1e-9 * bias.abs().max()]
    return int((torch.cdist(guesses, rows, p=torch.inf) < NEAR).any(0).sum())


def bench_units(draws: int, console: Console) -> list[Told]:
    """Print and return the disclosure by a step, by units and samples."""
    table = Table("units", "samples", "one unit, no rules", "one unit", "two units, whole", "two units, rank-dad")
    found = list[Told]()
    for units, samples in zip(UNITS, SAMPLES, strict=True):
        one = told(units, samples, draws)
        figures = (one.alone, one.limited, one.pairs, one.reduced)
        table.add_row(*map(str, (units, samples)), *(f"{rows:.3g}" for rows in figures))
        found.append(one)
    console.print(f"patients whose {COLUMNS} cells one step tells by ratios, of {draws} steps each:")
    console.print(table)
    return found
