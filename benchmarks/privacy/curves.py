"""`python -m benchmarks curves`: how far smooth scores put the AUC of several hospitals off, beside scikit-learn's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from statistics import fmean

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.metrics.intervals import intervals
from rankdad.common.metrics.smoothing import Scored, smooth
from rankdad.common.metrics.summary import summarise
from rankdad.common.metrics.sums import Tally, tally
from rankdad.common.spec.tasks import Classification

TASK = Classification(classes=2)
HOSPITALS = (1, 2, 6)
PATIENTS = (30, 100, 200)
FOLD = 20  # patients that are tested at a time, about
SCORES = ("normal", "saturated", "few values")
EVENTS = 0.4
QUANTILE = 1.96


def bench_curves(draws: int, console: Console) -> list[tuple[float, float]]:
    """Print and return the mean error of the AUC, and that which is said of it, for each of the tables' rows."""
    torch.set_num_threads(1)
    table = Table("scores", "hospitals", "patients each", "mean error", "largest", "said", "within", "standard error")
    found = list[tuple[float, float]]()
    for shape in SCORES:
        for hospitals in HOSPITALS:
            for patients in PATIENTS:
                draw = np.random.default_rng([hospitals, patients])
                rows = np.array([_one(draw, shape, hospitals, patients) for _ in range(draws)])
                within = float(np.mean(rows[:, 0] <= rows[:, 1] + 1e-9))
                numbers = [fmean(rows[:, 0]), rows[:, 0].max(), rows[:, 1].mean(), within, rows[:, 2].mean()]
                table.add_row(shape, str(hospitals), str(patients), *(f"{one:.4f}" for one in numbers))
                found.append((numbers[0], numbers[2]))
    console.print(table)
    return found


def _one(draw: np.random.Generator, shape: str, hospitals: int, patients: int) -> tuple[float, float, float]:
    """Return by how much an AUC is off, by how much it says that it may be, and its standard error."""
    apart, tests, scores, labels = draw.choice([0.5, 1.5, 3.0]), [], [], []
    for _ in range(hospitals):
        own = torch.from_numpy(draw.permutation(np.arange(patients) < EVENTS * patients)).long()
        raw = torch.from_numpy(draw.normal(size=patients)) + apart * (own - 0.5) + 0.3 * draw.normal()
        given = 8 * torch.tanh(1.5 * raw) if shape == "saturated" else raw.round() if shape == "few values" else raw
        order = own.argsort(stable=True)
        folds = [order[start :: max(1, patients // FOLD)] for start in range(max(1, patients // FOLD))]
        tests += _left(given, own, folds)
        scores.append(given)
        labels.append(own)
    total = reduce(add, tests)
    known, error = summarise(TASK, total), intervals(TASK, total).get("auc")
    value, said = known.values["auc"], known.auc_error
    assert value is not None
    assert said is not None
    exact = roc_auc_score(torch.cat(labels).numpy(), torch.cat(scores).numpy())
    return abs(value - exact), said, 0.0 if error is None else (error.high - error.low) / (2 * QUANTILE)


def _left(scores: Tensor, labels: Tensor, folds: Sequence[Tensor]) -> list[Tally]:
    """Return the tallies that leave of a hospital's tests."""
    outputs, found, earlier = torch.stack([torch.zeros_like(scores), scores], dim=1), list[Tally](), list[Scored]()
    for rows in folds:
        bent = smooth(TASK, outputs[rows], labels[rows], earlier=earlier)
        assert bent.scored is not None
        earlier.append(bent.scored)
        losses = F.cross_entropy(outputs[rows], labels[rows], reduction="none")
        found.append(bent.order + tally(TASK, outputs[rows], labels[rows], losses, smooth=bent[:2]))
    return found
