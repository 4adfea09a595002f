"""Levenberg and Marquardt's method, and the gradients of two small models as functions of their batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

Gradients = Mapping[str, Tensor]
LEAST = 1e-12  # relative residual that counts as solved
ROUNDS = 200
TRIED = 2  # numbers of positive labels


def logistic(weights: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Gradients:
    """Return the gradients of the mean loss of a linear model with one output.

    Args:
        weights: of every step, [steps, …] by name.
        inputs: [batch, columns].
        labels: [batch], numbers that need not be 0 or 1.
    """
    outputs = torch.einsum("sc,bc->sb", weights["1.weight"][:, 0], inputs) + weights["1.bias"]
    away = (outputs.sigmoid() - labels) / len(inputs)
    return {"1.weight": (away @ inputs).unsqueeze(1), "1.bias": away.sum(1).reshape(-1, 1, 1)}


def mlp(weights: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Gradients:
    """Return those of a network of one hidden layer, tanh and two outputs: see `logistic`."""
    hidden = torch.tanh(torch.einsum("shc,bc->sbh", weights["1.weight"], inputs) + weights["1.bias"].unsqueeze(1))
    outputs = torch.einsum("soh,sbh->sbo", weights["3.weight"], hidden) + weights["3.bias"].unsqueeze(1)
    away = (F.softmax(outputs, -1) - torch.stack([1 - labels, labels], -1)) / len(inputs)
    deltas = (away @ weights["3.weight"]) * (1 - hidden.square())
    return {
        "1.weight": torch.einsum("sbh,bc->shc", deltas, inputs),
        "1.bias": deltas.sum(1, keepdim=True),
        "3.weight": away.transpose(1, 2) @ hidden,
        "3.bias": away.sum(1, keepdim=True),
    }


def solve(left: Callable[[Tensor], Tensor], start: Tensor, rounds: int = ROUNDS) -> tuple[Tensor, float]:
    """Return where the sum of squares is small, near a start, and its root.

    Args:
        left: what is left to be explained, [equations].
        start: [unknowns].
        rounds: at most.
    """
    at, damping = start, 1.0
    here = left(at)
    slopes = torch.func.jacfwd(left)
    for _ in range(rounds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's of a part of its own that it loads here
            jacobian = slopes(at)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ here
        scale = normal.diagonal().clamp_min(1e-12)
        better = False
        while not better and damping < 1e12:
            step = torch.linalg.solve(normal + torch.diag(damping * scale), slope)
            there = left(at - step)
            better = bool(there.isfinite().all()) and float(there.square().sum()) < float(here.square().sum())
            damping = damping / 5 if better else damping * 4
        if not better:
            break
        gained = 1 - float(there.norm() / here.norm())
        at, here, damping = at - step, there, max(damping, 1e-12)
        if float(here.norm()) < LEAST or gained < 1e-7:
            break
    return at, float(here.norm())


def solutions(
    left: Callable[[Tensor, Tensor], Tensor],
    shape: tuple[int, int],
    positive: float,
    restarts: int,
    enough: float,
    seed: int = 0,
) -> Tensor | None:
    """Return the batch that explains most from several random starts, if that is enough; None if it is not.

    Labels are unknown numbers first. In which order patients are does not matter: so of labels that are known to be 0
    or 1 only is searched how many are 1.

    Args:
        left: what is left to be explained by inputs and labels.
        shape: of the inputs.
        positive: how many labels are 1, about.
        restarts: how many starts for each number of these.
        enough: root of the sum of squares that may be left.
        seed: of the starts.
    """
    generator, size = torch.Generator().manual_seed(seed), shape[0] * shape[1]
    likely = sorted(range(shape[0] + 1), key=lambda count: abs(count - positive))[:TRIED]
    best, least = None, enough
    for _ in range(restarts):
        start, guesses = (torch.randn(count, generator=generator, dtype=torch.float64) for count in (size, shape[0]))
        for count in (None, *likely):
            labels = None if count is None else (torch.arange(shape[0]) < count).double()
            found, rest = solve(
                partial(_left, left, shape, labels), torch.cat([start, guesses]) if labels is None else start
            )
            if rest <= least:
                best, least = found[:size].reshape(shape), rest
            if rest <= enough / 100:
                return best
    return best


def _left(
    left: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, int], labels: Tensor | None, unknowns: Tensor
) -> Tensor:
    size = shape[0] * shape[1]
    return left(unknowns[:size].reshape(shape), unknowns[size:] if labels is None else labels)


def recovered(found: Tensor, truth: Sequence[Tensor] | Tensor, near: float) -> int:
    """Return how many cells of rows are found: each row found is of one patient, the nearest that is left."""
    cells, left = 0, list(truth)
    apart = torch.cdist(found, torch.stack(left))
    for row in apart.amin(1).argsort().tolist():
        if not left:
            break
        distances = [float((found[row] - one).abs().sum()) for one in left]
        nearest = distances.index(min(distances))
        cells += int(((found[row] - left.pop(nearest)).abs() <= near).sum())
    return cells
