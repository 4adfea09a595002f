"""`python -m benchmarks memberships`: recover the members of batches at slowly moving weights, and their rows.

At the same weights a batch sends the sum of its patients' gradients. All sums together then have no more dimensions
than there are patients, and of the vectors in that space, one number for each batch, those of zeros and ones with a
single one in each epoch are the patients: projections onto both conditions in turn lead to them from random beginnings.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.privacy.hospitals import NO_RULES, RULES, SITES, Lie, Refused, Seen, honest, run_sites
from rankdad.common.data import SiteData
from rankdad.common.documents import validate
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.policy import Policy
from rankdad.common.protocol.messages import Message
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec

COLUMNS, PATIENTS, BATCH = 9, 45, 9
NEAR, NEARLY = 0.01, 0.1  # standard deviations, of columns that have one each
STARTS, TURNS = 500, 40
LEFT = (
    (0.02,) * 4 + (0.1,) * 4 + (0.2,) * 4 + (0.4,) * 4 + (0.6,) * 4
)  # tolerated share of a claim outside of the space
MODELS = {"five layers of 3": [3] * 5, "one layer of 16": [16], "two layers of 32": [32, 32]}
RATES = (1e-40, 1e-8, 1e-3, 1e-2, 0.05, 0.2)
Feint = Literal["shift", "bias"]
SHIFT, GROWTH = 6.0, 1.004  # of biases that are shifted, and in each step: weights move by more than NEAR each time
ALIKE = 0.9  # of the epochs: a claim that is right in so many is of that patient


@dataclass(frozen=True)
class Found:
    """What is found of the patients of a training.

    Args:
        model: of `MODELS`.
        rate: of learning.
        policy: of the hospitals.
        rank: of rank-dad; None is dsgd, which sends whole gradients.
        moved: by how much of their size the weights move in an epoch, in the median.
        patients: whose batches are claimed, and right in nine epochs of ten.
        rows: patients all of whose cells are found to 1 % of a standard deviation.
        nearly: likewise, to 10 %.
        refused: code with which the run is refused.
    """

    model: str
    rate: float
    policy: Policy
    rank: int | None = None
    moved: float = 0.0
    patients: int = 0
    rows: int = 0
    nearly: int = 0
    refused: str = ""


def attack(
    model: str,
    rate: float,
    epochs: int,
    policy: Policy,
    rank: int | None = None,
    seed: int = 0,
    *,
    feint: Feint | None = None,
) -> Found:
    """Train between two hospitals, and recover the members of the first one's batches from its messages.

    Args:
        model: by its name in the table.
        rate: of SGD.
        epochs: of the training.
        policy: of both hospitals.
        rank: of rank-dad; None sends whole gradients.
        seed: of data and run.
        feint: of the second, by whose gradients weights move, and what the first sends stays; None is honest.
    """
    drawn = np.random.default_rng(seed)
    inputs = {site: drawn.normal(size=(PATIENTS, COLUMNS)) for site in SITES}
    with tempfile.TemporaryDirectory() as folder:
        for site, own in inputs.items():
            labels = (own[:, 0] + drawn.normal(size=PATIENTS) > 0).astype(np.int64)
            (Path(folder) / site / "data").mkdir(parents=True)
            np.savez(Path(folder) / site / "data" / "data.npz", x=own, y=labels)
        spec = validate(RunSpec, specification(model, rate, epochs, rank, seed))
        with _drawn() as batches:
            seen = run_sites(spec, Path(folder), policy, seed=seed, lie=_lie(spec, rate, feint))
    if isinstance(seen, Refused):
        return Found(model, rate, policy, rank, refused=seen.code)
    sums, sizes, moved = _sums(seen, epochs)
    members = memberships(sums, epochs, seed)
    if members.shape[1]:
        members = completed(polished(members, sums, epochs), sizes)
    rows = _rows(seen, sums, members)
    truth = torch.from_numpy(inputs[SITES[0]])
    right, nearly = (int((torch.cdist(rows, truth, p=torch.inf) < near).any(0).sum()) for near in (NEAR, NEARLY))
    known = int(((batches(len(sums)).T @ members).amax(1) >= ALIKE * epochs).sum()) if members.shape[1] else 0
    return Found(model, rate, policy, rank, moved, known, right, nearly)


def _lie(spec: RunSpec, rate: float, feint: Feint | None) -> Lie:
    if feint is None:
        return honest
    if feint == "shift":
        return _shifted(rate)
    weights = [value.double() for value in Replica(spec).weights().values()]
    return _driven(rate, weights, _biased(weights))


def _driven(rate: float, weights: Sequence[Tensor], targets: Iterator[Sequence[Tensor]]) -> Lie:
    """Return what has the weights go where it wants them, step by step: both hospitals weigh the same."""
    here, others = weights, tuple[Matrix, ...]()

    def lie(site: str, message: Message) -> Message:
        nonlocal here, others
        body = message.body
        if not isinstance(body, Step):
            return message
        if site == SITES[0]:
            others = body.payload
            return message
        there, payload = next(targets), list[Matrix]()
        for own, other, now, wanted in zip(body.payload, others, here, there, strict=True):
            assert isinstance(own, Tensor)
            assert isinstance(other, Tensor)
            payload.append((len(SITES) * (now - wanted) / rate).reshape(own.shape).to(own) - other)
        here = there
        return replace(message, body=replace(body, payload=tuple(payload)))

    return lie


def _biased(weights: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Yield weights whose last layer is nearly nothing, and whose last bias alone moves: chances are everybody's."""
    *others, last, bias = weights
    generator = torch.Generator().manual_seed(0)
    while True:
        logit = 4 * torch.rand(1, generator=generator, dtype=bias.dtype) - 2
        yield [*others, last * 1e-7, torch.cat([-logit, logit]) / 2]


def _shifted(rate: float) -> Lie:
    """Return what has both biases of the last layer, whose gradient comes last, grow by a part in every step."""
    sizes = (SHIFT * GROWTH**step * (GROWTH - 1) for step in itertools.count())

    def lie(site: str, message: Message) -> Message:
        body = message.body
        if site == SITES[0] or not isinstance(body, Step):
            return message
        *others, bias = body.payload
        assert isinstance(bias, Tensor)
        moved = bias - next(sizes) * len(SITES) / rate  # sites share alike
        return replace(message, body=replace(body, payload=(*others, moved)))

    return lie


@contextmanager
def _drawn() -> Iterator[Callable[[int], Tensor]]:
    """Yield the true members of the first hospital's batches, for the judge only."""
    drawn, draw = dict[int, list[Tensor]](), SiteData.drawn

    def watched(data: SiteData, *given: Any) -> Iterator[Tensor]:
        for rows in draw(data, *given):
            drawn.setdefault(id(data), []).append(rows)
            yield rows

    def batches(count: int) -> Tensor:
        rows = next(iter(drawn.values()))  # the first hospital draws first
        found = torch.zeros(count, PATIENTS, dtype=torch.float64)
        for batch, own in zip(found, rows, strict=True):
            batch[own] = 1
        return found

    with mock.patch.object(SiteData, "drawn", watched):
        yield batches


def memberships(sums: Tensor, epochs: int, seed: int) -> Tensor:
    """Return the recovered members of batches: zeros and ones, [batches, patients]."""
    generator = torch.Generator().manual_seed(seed)
    space = torch.linalg.svd(sums / sums.abs().amax(0).clamp_min(1e-300), full_matrices=False)[0][:, :PATIENTS]
    per_epoch, found = len(sums) // epochs, list[Tensor]()
    for most in LEFT:
        at = space @ torch.randn(space.shape[1], STARTS, generator=generator, dtype=torch.float64)
        for _ in range(TURNS):
            best = at.reshape(epochs, per_epoch, STARTS).argmax(1, keepdim=True)
            ones = torch.zeros(epochs, per_epoch, STARTS, dtype=torch.float64).scatter_(1, best, 1.0)
            ones = ones.reshape(len(sums), STARTS)
            at = space @ (space.T @ (ones - 1 / per_epoch))
        left = (ones - 1 / per_epoch - at).norm(dim=0) / (ones - 1 / per_epoch).norm(dim=0)
        new = 0
        for place in left.argsort().tolist():
            one = ones[:, place]
            if left[place] < most and all(float((one - known).abs().sum()) > epochs / 2 for known in found):
                found.append(one)
                new += 1
        if len(found) >= PATIENTS:
            break
        if not new:
            continue
        known, _ = torch.linalg.qr(torch.stack(found, 1) - 1 / per_epoch)
        rest = space - known @ (known.T @ space)  # the others are looked for where these are not
        space = torch.linalg.svd(rest, full_matrices=False)[0][:, : PATIENTS - len(found)]
    return torch.stack(found[:PATIENTS], 1) if found else sums.new_zeros(len(sums), 0)


def polished(members: Tensor, sums: Tensor, epochs: int) -> Tensor:
    """Alternate projections of claims onto the messages and onto zeros and ones until convergence; drop duplicates."""
    space = torch.linalg.svd(sums / sums.abs().amax(0).clamp_min(1e-300), full_matrices=False)[0][:, :PATIENTS]
    for _ in range(TURNS):
        at = (space @ (space.T @ members)).reshape(epochs, -1, members.shape[1])
        members = torch.zeros_like(at).scatter_(1, at.argmax(1, keepdim=True), 1.0).reshape(members.shape)
    found = list[Tensor]()
    for one in members.T:
        if all(float((one - known).abs().sum()) > epochs / 2 for known in found):
            found.append(one)
    return torch.stack(found, 1)


def completed(members: Tensor, sizes: Tensor) -> Tensor:
    """Put what is left of every batch in place of the patient, if there is one, whom that shows to be wrong."""
    if members.shape[1] < PATIENTS:
        return members
    last = sizes[:, None] - members.sum(1, keepdim=True) + members  # in place of each
    fits = ((last == 0) | (last == 1)).all(0)
    return torch.where(fits, last, members) if fits.sum() == 1 else members


def _sums(seen: Seen, epochs: int) -> tuple[Tensor, Tensor, float]:
    """Return batches' gradients, added up over patients, the batches' sizes, and how far weights move in an epoch."""
    places = [place for place, message in enumerate(seen.up[SITES[0]]) if isinstance(message.body, Step)]
    sums, sizes = list[Tensor](), list[float]()
    for place in places:
        body = seen.up[SITES[0]][place].body
        assert isinstance(body, Step)
        parts = [one.gradient() if isinstance(one, Factor) else one for one in body.payload]
        numbers = torch.cat([part.double().flatten() for part in parts] + [torch.tensor([body.loss]).double()])
        sums.append(numbers * body.weight)
        sizes.append(body.weight)
    weights = [torch.cat([value.double().flatten() for value in seen.before[place].values()]) for place in places]
    begins = weights[:: len(places) // epochs]
    moved = [float((after - before).norm() / before.norm()) for before, after in itertools.pairwise(begins)]
    return torch.stack(sums), torch.tensor(sizes, dtype=torch.float64), float(np.median(moved))


def _rows(seen: Seen, sums: Tensor, members: Tensor) -> Tensor:
    """Return the rows of the patients whose batches are known: a unit's gradient, divided by its bias's."""
    each = torch.linalg.lstsq(members, sums).solution if members.shape[1] else sums[:0]
    units, columns = seen.plan.routes[0].shape
    weight = each[:, : units * columns].reshape(-1, units, columns)
    bias = each[:, units * columns : units * (columns + 1)]
    largest = bias.abs().argmax(1)
    every = torch.arange(len(each))
    return weight[every, largest] / bias[every, largest][:, None]


def specification(model: str, rate: float, epochs: int, rank: int | None, seed: int) -> dict[str, Any]:
    """Return the spec of a training."""
    return {
        "name": "memberships",
        "task": {"name": "classification", "classes": 2},
        "model": {"name": "mlp", "hidden": MODELS[model], "activation": "tanh"},
        "data": {"reader": "npz", "file": "data.npz", "shape": [COLUMNS]},
        "training": {
            "epochs": epochs,
            "batch_size": BATCH,
            "validation": 0.0,
            "test": 0.0,
            "dtype": "float64",
            "optimizer": {"name": "sgd", "lr": rate},
        },
        "method": {"name": "dsgd", "wire": "float64"} if rank is None else {"name": "rank-dad", "rank": rank},
        "federation": {"sites": list(SITES)},
        "seed": seed,
    }


def bench_memberships(models: Sequence[str], rates: Sequence[float], epochs: int, console: Console) -> list[Found]:
    """Print and return what is found of the patients of a training, without rules and with them."""
    table = Table("model", "learning rate", "method", "rules", "moved an epoch", "batches", "rows to 1 %", "to 10 %")
    found = list[Found]()
    for model, rate in itertools.product(models, rates):
        for policy, rank in ((NO_RULES, None), (RULES, None), (RULES, 2)):
            one = attack(model, rate, epochs, policy, rank)
            outcome = ["", one.refused, "", ""]
            if not one.refused:
                outcome = [f"{one.moved:.1e}", *map(str, (one.patients, one.rows, one.nearly))]
            method, rules = "dsgd" if rank is None else f"rank-dad {rank}", "on" if policy == RULES else "off"
            table.add_row(model, f"{rate:g}", method, rules, *outcome)
            found.append(one)
    console.print(f"of {PATIENTS} patients of a hospital, in {epochs} epochs of batches of {BATCH}:")
    console.print(table)
    return found
