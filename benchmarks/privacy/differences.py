"""`python -m benchmarks memberships`, second table: two sums of a unit that differ by one patient's gradient.

At weights that hardly move, what two batches or two epochs send of a unit differs by the patients who are in one of
them and not in the other. Of a unit that says nothing of most patients these are few. In a first layer such a
difference of one patient is the row times a number, and the bias's is that number.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.privacy.hospitals import NO_RULES, RULES, SITES, Refused, Seen, run_sites
from benchmarks.privacy.memberships import COLUMNS, NEAR, PATIENTS, specification
from rankdad.common.documents import validate
from rankdad.common.lowrank.factors import Factor
from rankdad.common.policy import Policy
from rankdad.common.rounds.step import Step
from rankdad.common.spec import RunSpec

BATCH, EPOCHS = 23, 11  # as many steps as the default policy lets out at weights that hardly move
NETWORKS = (([8], "relu", 475), ([10], "relu", 28608), ([10], "relu", 0), ([10], "tanh", 1))  # units, seed of weights
RATES = (1e-12, 1e-3, 1e-2, 5e-2)


@dataclass(frozen=True)
class Told:
    """Whose rows differences tell.

    Args:
        rows: patients all of whose columns are told to 1 % of a standard deviation.
        refused: code with which the run is refused.
    """

    rows: int = 0
    refused: str = ""


def attack(
    units: list[int], activation: str, seed: int, rate: float, policy: Policy, runs: int = 1, batch: int = BATCH
) -> Told:
    """Train between two honest hospitals, and analyse differences between the first one's messages.

    Args:
        units: of the network's layers.
        activation: of the network.
        seed: of the initial weights.
        rate: of SGD.
        policy: of both hospitals.
        runs: in which the epochs are taken, each at a rate of its own.
        batch: samples of a step.
    """
    drawn = np.random.default_rng(0)
    inputs = {site: drawn.normal(size=(PATIENTS, COLUMNS)) for site in SITES}
    sums = list[Tensor]()
    with tempfile.TemporaryDirectory() as folder:
        for site, own in inputs.items():
            labels = (own[:, 0] + drawn.normal(size=PATIENTS) > 0).astype(np.int64)
            (Path(folder) / site / "data").mkdir(parents=True)
            np.savez(Path(folder) / site / "data" / "data.npz", x=own, y=labels)
        for run in range(runs):
            document = specification("one layer of 16", rate * (1 + run / 100), EPOCHS // runs, None, seed)
            document["model"] |= {"hidden": units, "activation": activation}
            document["training"]["batch_size"] = batch
            seen = run_sites(validate(RunSpec, document), Path(folder), policy, f"run-{run}")
            if isinstance(seen, Refused):
                return Told(refused=seen.code)
            sums.append(_sums(seen))
    truth, rows = torch.from_numpy(inputs[SITES[0]]), _rows(torch.cat(sums))
    return Told(int((torch.cdist(rows, truth, p=torch.inf) < NEAR).any(0).sum()))


def _sums(seen: Seen) -> Tensor:
    """Return the sums of each step in the first layer, float64 [steps, units, columns + 1]: the bias is the last."""
    steps = [message.body for message in seen.up[SITES[0]] if isinstance(message.body, Step)]
    found = []
    for step in steps:
        weight, bias = (one.gradient() if isinstance(one, Factor) else one for one in step.payload[:2])
        whole = weight if weight.shape[1] > COLUMNS else torch.cat([weight, bias.reshape(-1, 1)], 1)
        found.append(whole.double() * step.weight)
    return torch.stack(found)


def _rows(sums: Tensor) -> Tensor:
    """Return the row that each difference of a unit's sums would be of, if it were one patient's, [rows, columns]."""
    found = []
    for unit in sums.unbind(1):
        pool = torch.cat([unit, unit[0::2] + unit[1::2], torch.zeros_like(unit[:1])])
        first, second = torch.triu_indices(len(pool), len(pool), 1)
        apart = pool[first] - pool[second]
        apart = apart[apart[:, -1].abs() > 1e-9 * unit.norm(dim=1).max()]
        found.append(apart[:, :-1] / apart[:, -1:])
    return torch.cat(found)


def bench_differences(console: Console) -> dict[tuple[int, float], tuple[Told, Told]]:
    """Print and return the revealed rows, without rules and with them, by network and learning rate."""
    table = Table("hidden", "activation", "seed", "learning rate", "rows without rules", "by default")
    found = dict[tuple[int, float], tuple[Told, Told]]()
    for (number, (units, activation, seed)), rate in product(enumerate(NETWORKS), RATES):
        both = attack(units, activation, seed, rate, NO_RULES), attack(units, activation, seed, rate, RULES)
        table.add_row(f"{units}", activation, f"{seed}", f"{rate:g}", *(one.refused or f"{one.rows}" for one in both))
        found[number, rate] = both
    console.print(f"of {PATIENTS} patients, in {EPOCHS} epochs of batches of {BATCH}, told by differences alone:")
    console.print(table)
    return found
