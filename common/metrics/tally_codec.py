"""Tallies as bytes: counts as uint32, then sums as float64, little-endian. Received bytes are checked."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankdad.common.metrics.sums import CALIBRATION_BINS, Parts, Tally, parts, shape
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec

MAX_COUNT = 2**31 - 1
MAX_SUM = 1e300  # a thousand sites' sums add up to a finite number
SLACK = 1e-6  # of what only rounding may break
TINY = 1e-140  # squares of smaller numbers are lost


def tally_bytes(task: TaskSpec) -> int:
    """Return the size of a packed tally."""
    return 4 * sum(shape(task).counts) + 8 * sum(shape(task).sums)


def pack_tally(total: Tally) -> bytes:
    """Return a tally's bytes.

    Raises:
        ValueError: a count is larger than 2³¹ − 1.
    """
    if bool((total.counts > MAX_COUNT).any()):
        raise ValueError(f"a count is larger than {MAX_COUNT}")
    return _bytes(total.counts.to(torch.int32)) + _bytes(total.sums)


def unpack_tally(task: TaskSpec, data: bytes) -> Tally:
    """Return the tally in bytes from the network, if some samples can have it.

    Raises:
        ValueError: the size is wrong, a number is out of range, or numbers contradict one another.
    """
    if len(data) != tally_bytes(task):
        raise ValueError(f"got {len(data)} bytes, expected {tally_bytes(task)}")
    end = 4 * sum(shape(task).counts)
    counts = torch.frombuffer(bytearray(data[:end]), dtype=torch.int32).long()
    sums = torch.frombuffer(bytearray(data[end:]), dtype=torch.float64)
    if bool((counts < 0).any()):
        raise ValueError(f"a count is larger than {MAX_COUNT}")
    if not bool((sums.abs() <= MAX_SUM).all()):
        raise ValueError(f"a sum is NaN or larger than {MAX_SUM:g}")
    total = Tally(counts, sums)
    part = parts(task, total)
    if part.loss < 0:
        raise ValueError("the loss is negative")
    if part.samples == 0 and bool(sums.any()):
        raise ValueError("sums of no samples are not 0")
    if isinstance(task, Regression):
        _check_moments(part)
    else:
        _check_counts(task, part)
    return total


def _check_counts(task: Classification | MultiLabel, part: Parts) -> None:
    """Every matrix, histogram and curve is of the same samples, and so are the positives and the hits in them."""
    confusion, calibration = part.confusion, part.calibration
    for name, counts in (("histogram", part.scores), ("confusion matrix", confusion), ("calibration", calibration)):
        if bool((counts.sum(dim=(1, 2)) != part.samples).any()):
            raise ValueError(f"a {name} does not add up to the {part.samples} samples")
    if isinstance(task, Classification):
        positives = confusion[0].sum(dim=1)
        hits = positives[1:] if task.classes == 2 else confusion[0].trace().reshape(1)
    else:
        positives = hits = confusion[:, 1].sum(dim=1)
    if bool((part.scores[:, 1].sum(dim=1) != positives).any()):
        raise ValueError("a histogram and the confusion matrix differ in a class's samples")
    if bool((calibration[:, :, 1].sum(dim=1) != hits).any()):
        raise ValueError("the calibration and the confusion matrix differ in hits")
    inside, edges = calibration.sum(dim=2), torch.linspace(0, 1, CALIBRATION_BINS + 1, dtype=torch.float64)
    low, high = (edges[:-1] - SLACK) * inside, (edges[1:] + SLACK) * inside
    if bool(((part.confidence < low) | (part.confidence > high)).any()):
        raise ValueError("a bin's confidences lie outside of it")
    if bool(((part.brier < 0) | (part.brier > part.samples * (1 + SLACK))).any()):
        raise ValueError("a squared error of probabilities is not between 0 and 1")


def _check_moments(part: Parts) -> None:
    """Sums and sums of squares keep the Cauchy-Schwarz inequality, and the squared error is that of the others."""
    label, output, label_square, output_square, product, absolute, square = part.moments
    samples, tiny = part.samples, part.samples * TINY
    if int(part.grid.sum()) != samples:
        raise ValueError(f"the grid does not add up to the {samples} samples")
    if min(label_square, output_square, absolute, square) < 0:
        raise ValueError("a sum of squares or of absolute errors is negative")
    spans = [math.sqrt(samples) * math.sqrt(one) for one in (label_square, output_square, square)]
    mixed = math.sqrt(label_square) * math.sqrt(output_square)
    for total, most in zip((label, output, absolute, product), (*spans, mixed), strict=True):
        if abs(total) > most * (1 + SLACK) + tiny:
            raise ValueError("a sum is larger than its squares allow")
    if abs(square - (label_square - 2 * product + output_square)) > SLACK * (label_square + output_square) + tiny:
        raise ValueError("the squared errors are not those of labels and outputs")


def _bytes(numbers: Tensor) -> bytes:
    return numbers.contiguous().view(torch.uint8).numpy().tobytes()
