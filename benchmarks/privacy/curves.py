"""`python -m benchmarks curves`: how far smooth scores put figures of several hospitals off, beside scikit-learn's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.metrics.intervals import intervals
from rankdad.common.metrics.risk import RISKS, THRESHOLDS, Risks, average_precision
from rankdad.common.metrics.smoothing import Scored, smooth
from rankdad.common.metrics.summary import summarise
from rankdad.common.metrics.sums import Tally, default_log_odds, parts, tally
from rankdad.common.spec.tasks import Classification

TASK = Classification(classes=2)
HOSPITALS = (1, 2, 6)
PATIENTS = (30, 100, 200)
FOLD = 20  # patients that are tested at a time, about
SCORES = ("normal", "saturated", "few values")
EVENTS = 0.4
QUANTILE = 1.96


class Error(NamedTuple):
    """How far the figures of one draw are from those of exact scores.

    Args:
        auc: absolute error.
        bound: the error that is printed with the AUC.
        standard_error: of the AUC.
        precision: absolute error of the average precision.
        counted: largest error of the rows counted above a named risk; 0 for tests too small for such thresholds.
    """

    auc: float
    bound: float
    standard_error: float
    precision: float
    counted: int


def bench_curves(draws: int, console: Console) -> list[tuple[float, float]]:
    """Print the errors of each kind of test, and return the mean error of the AUC and the mean printed bound."""
    torch.set_num_threads(1)
    heads = ("AUC: mean", "largest", "bound", "within", "SE", "AP: mean", "largest", "rows above a risk")
    table = Table("scores", "hospitals", "patients each", *heads)
    found = list[tuple[float, float]]()
    for shape in SCORES:
        for hospitals in HOSPITALS:
            for patients in PATIENTS:
                draw = np.random.default_rng([hospitals, patients])
                errors = [_one(draw, shape, hospitals, patients) for _ in range(draws)]
                auc, bound, deviation, precision, counted = (np.array(one) for one in zip(*errors, strict=True))
                within = float(np.mean(auc <= bound + 1e-9))
                numbers = [auc.mean(), auc.max(), bound.mean(), within, deviation.mean(), precision.mean()]
                cells = [*(f"{one:.4f}" for one in [*numbers, precision.max()]), f"{counted.max() or '–'}"]
                table.add_row(shape, str(hospitals), str(patients), *cells)
                found.append((fmean(auc), fmean(bound)))
    console.print(table)
    return found


def _one(draw: np.random.Generator, shape: str, hospitals: int, patients: int) -> Error:
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
    total, exact, truth = reduce(add, tests), torch.cat(scores), torch.cat(labels)
    known, interval = summarise(TASK, total), intervals(TASK, total).get("auc")
    value, bound = known.values["auc"], known.auc_error
    risks = Risks.plain(parts(TASK, total).scores[1], float(default_log_odds(TASK)[1]))
    precise = average_precision(risks)
    assert value is not None
    assert bound is not None
    assert precise is not None
    return Error(
        abs(value - roc_auc_score(truth.numpy(), exact.numpy())),
        bound,
        0.0 if interval is None else (interval.high - interval.low) / (2 * QUANTILE),
        abs(precise[0] - average_precision_score(truth.numpy(), exact.numpy())),
        _miscounted(risks, exact, truth) if len(exact) >= THRESHOLDS else 0,
    )


def _miscounted(risks: Risks, scores: Tensor, labels: Tensor) -> int:
    """Return the largest error of a class's rows above a named risk but 1/2, where they are exact."""
    errors = []
    for risk in RISKS:
        if risk != 0.5:
            edge = int((risks.edges - math.log(risk / (1 - risk))).abs().argmin())
            above = scores >= risks.edges[edge]
            pairs = zip(risks.above, (above & (labels == 0), above & (labels == 1)), strict=True)
            errors += [abs(int(smooth[edge]) - int(rows.sum())) for smooth, rows in pairs]
    return max(errors)


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
