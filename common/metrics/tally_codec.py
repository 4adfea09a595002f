"""Tallies as bytes: counts as uint32, then sums as float64, little-endian. Received bytes are checked."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rankdad.common.metrics.clusters import KNOTS, Clusters, hats
from rankdad.common.metrics.monitoring import check_monitoring, monitoring_shape
from rankdad.common.metrics.sums import CALIBRATION_BINS, Parts, Tally, parts, shape
from rankdad.common.spec.tasks import Classification, LanguageModel, MultiLabel, Regression, TaskSpec
from rankdad.common.tensors import raw_bytes

MAX_COUNT = 2**31 - 1
MAX_SUM = 1e300  # of one site, so that a thousand sites' total is finite
SLACK = 1e-6  # tolerance for rounding errors
TINY = 1e-140  # squares of smaller numbers underflow


def tally_bytes(task: TaskSpec, clustered: bool = False) -> int:
    """Return the size of a packed tally, with groups if it is `clustered`."""
    sizes = shape(task, clustered)
    return 4 * sum(sizes.counts) + 8 * sum(sizes.sums)


def monitoring_bytes(task: TaskSpec) -> int:
    """Return the packed size of the sums between epochs."""
    counts, sums = monitoring_shape(task)
    return 4 * sum(counts) + 8 * sum(sums)


def pack_tally(total: Tally) -> bytes:
    """Return a tally's bytes.

    Raises:
        ValueError: a count is larger than 2³¹ − 1.
    """
    if bool((total.counts > MAX_COUNT).any()):
        raise ValueError(f"a count is larger than {MAX_COUNT}")
    return raw_bytes(total.counts.to(torch.int32)) + raw_bytes(total.sums)


def unpack_tally(task: TaskSpec, data: bytes, clustered: bool = False) -> Tally:
    """Unpack a tally from the network, and check that some samples can have it.

    Args:
        task: what was predicted.
        data: the bytes.
        clustered: whether samples are of groups.

    Raises:
        ValueError: the size is wrong, a number is out of range, or numbers are contradictory.
    """
    sizes = shape(task, clustered)
    total = _received(data, sum(sizes.counts), sum(sizes.sums))
    part = parts(task, total)
    if isinstance(task, LanguageModel):
        _check_texts(part.samples, part.moments)
        if bool(part.order.any() or part.across.any()):
            raise ValueError("an order of texts has no pairs")
    elif isinstance(task, Regression):
        if int(part.grid.sum()) != part.samples:
            raise ValueError(f"the grid does not add up to the {part.samples} samples")
        _check_moments(part.samples, part.moments)
        if bool(part.order[0, :2].any() or part.across.any()) or not 0 <= float(part.order[0, 2]) <= part.samples:
            raise ValueError("an order of numbers has no pairs")
    else:
        _check_counts(task, part)
    if part.clusters is not None:
        _check_clusters(part, part.clusters)
    return total


def unpack_monitoring(task: TaskSpec, data: bytes) -> Tally:
    """Unpack the sums between epochs from the network, and check that some samples can have them.

    Raises:
        ValueError: as for `unpack_tally`.
    """
    counts, sums = monitoring_shape(task)
    total = _received(data, sum(counts), sum(sums))
    if isinstance(task, LanguageModel):
        _check_texts(total.samples, total.sums[1:].tolist())
    elif isinstance(task, Regression):
        _check_moments(total.samples, total.sums[1:].tolist())
    check_monitoring(task, total)
    return total


def _received(data: bytes, counts: int, sums: int) -> Tally:
    end = 4 * counts
    if len(data) != end + 8 * sums:
        raise ValueError(f"got {len(data)} bytes, expected {end + 8 * sums}")
    total = Tally(
        torch.frombuffer(bytearray(data[:end]), dtype=torch.int32).long(),
        torch.frombuffer(bytearray(data[end:]), dtype=torch.float64),
    )
    if bool((total.counts < 0).any()):
        raise ValueError(f"a count is larger than {MAX_COUNT}")
    if not bool((total.sums.abs() <= MAX_SUM).all()):
        raise ValueError(f"a sum is NaN or larger than {MAX_SUM:g}")
    if total.loss < 0:
        raise ValueError("the loss is negative")
    if total.samples == 0 and bool(total.sums.any()):
        raise ValueError("sums of no samples are not 0")
    return total


def _check_counts(task: Classification | MultiLabel, part: Parts) -> None:
    """Check that matrices, histograms and curves have the same samples, positives and hits."""
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
    number = part.scores.sum(dim=2).double().prod(dim=1)
    for order, most in ((part.order, number), (part.across, MAX_SUM)):
        off, square, known = order.unbind(dim=1)
        if bool(((torch.maximum(off.abs(), square.sqrt()) > known) | (known > most) | (square < 0)).any()):
            raise ValueError("pairs are out of order that the samples do not have")
    inside, edges = calibration.sum(dim=2), torch.linspace(0, 1, CALIBRATION_BINS + 1, dtype=torch.float64)
    low, high = (edges[:-1] - SLACK) * inside, (edges[1:] + SLACK) * inside
    if bool(((part.confidence < low) | (part.confidence > high)).any()):
        raise ValueError("a bin's confidences lie outside of it")
    if bool(((part.brier < 0) | (part.brier > part.samples * (1 + SLACK))).any()):
        raise ValueError("a squared error of probabilities is not between 0 and 1")


def _check_texts(samples: int, moments: Sequence[float]) -> None:
    """Check numbers of tokens and bytes."""
    if any(count < 0 or not count.is_integer() for count in moments):
        raise ValueError(f"tokens and bytes of {samples} texts are no counts")


def _check_moments(samples: int, moments: Sequence[float]) -> None:
    """Check the Cauchy-Schwarz inequality, and the squared error against the other sums."""
    label, output, label_square, output_square, product, absolute, square = moments
    tiny = samples * TINY
    if min(label_square, output_square, absolute, square) < 0:
        raise ValueError("a sum of squares or of absolute errors is negative")
    spans = [math.sqrt(samples) * math.sqrt(one) for one in (label_square, output_square, square)]
    mixed = math.sqrt(label_square) * math.sqrt(output_square)
    for total, most in zip((label, output, absolute, product), (*spans, mixed), strict=True):
        if abs(total) > most * (1 + SLACK) + tiny:
            raise ValueError("a sum is larger than its squares allow")
    if abs(square - (label_square - 2 * product + output_square)) > SLACK * (label_square + output_square) + tiny:
        raise ValueError("the squared errors are not those of labels and outputs")


def _check_clusters(part: Parts, clusters: Clusters) -> None:
    """Check that groups with these products can have the known totals."""
    groups, samples = clusters.count, part.samples
    if not min(samples, 1) <= groups <= samples:
        raise ValueError(f"{groups:g} groups of {samples} samples")
    if not samples:
        return
    matrices, first = part.confusion, len(part.scores) - len(clusters.scores)
    if part.moments:
        totals = torch.tensor([[samples, *part.moments]], dtype=torch.float64)
        label, output = totals[0, 3], totals[0, 4]
        most = totals.square()
        most[0, [1, 2, 5]] = torch.stack([samples * label, samples * output, label * output])
        alone = torch.full((1, 8, 8), -math.inf, dtype=torch.float64)
        squares = clusters.values[:, 0, 0]
    else:
        rows, hits = matrices.sum(dim=2).double(), matrices.diagonal(dim1=1, dim2=2).double()
        if clusters.values.shape[1] < 2 * rows.shape[1]:
            rows, hits = rows.sum(dim=1, keepdim=True), hits.sum(dim=1, keepdim=True)
        totals, half = torch.cat([rows, hits], dim=1), rows.shape[1]
        most, squares = totals.square(), clusters.values[:, :half, :half].sum(dim=(1, 2))
        both = torch.diag_embed(hits)
        alone = torch.cat([torch.cat([torch.diag_embed(rows), both], 2), torch.cat([both, both], 2)], 1)
    _check_products("values", clusters.values, totals, most, alone, groups)
    if len(clusters.scores):
        weights, counts = hats(), part.scores[first:].double()
        knots = (counts @ weights).flatten(1)
        each = weights.T @ (counts.unsqueeze(3) * weights)  # [outputs, 2, KNOTS, KNOTS]
        alone = torch.zeros_like(clusters.scores)
        alone[:, :KNOTS, :KNOTS], alone[:, KNOTS:, KNOTS:] = each[:, 0], each[:, 1]
        _check_products("scores", clusters.scores, knots, knots.square(), alone, groups)
        squares = torch.cat([squares, clusters.scores.sum(dim=(1, 2))])
    # Extremes for non-empty groups: equal sizes, or all but one group of one sample.
    least, largest = samples**2 / groups, samples - groups + 1
    if bool((squares < least * (1 - SLACK)).any() or (squares > (largest**2 + groups - 1) * (1 + SLACK)).any()):
        raise ValueError(f"groups' squared sizes are not those of {groups:g} groups of {samples} samples")
    if float(squares.max() - squares.min()) > SLACK * float(squares.max()):
        raise ValueError("products over groups differ in the groups' sizes")


def _check_products(name: str, matrices: Tensor, totals: Tensor, most: Tensor, alone: Tensor, groups: float) -> None:
    """Check matrices [n, f, f] of products over groups.

    Args:
        name: of the sums.
        matrices: to check.
        totals: sums over all groups, [n, f].
        most: largest sum of squares, [n, f].
        alone: contributions of single samples, [n, f, f].
        groups: number of groups.
    """
    diagonal = matrices.diagonal(dim1=1, dim2=2)
    if bool((diagonal < 0).any() or (diagonal > most * (1 + SLACK) + TINY).any()):
        raise ValueError(f"a product of {name} is larger than its group's sums allow")
    if bool((matrices < alone * (1 - SLACK) - SLACK).any()):
        raise ValueError(f"a product of {name} is smaller than the contribution of single samples")
    unit = diagonal.clamp_min(TINY**2).sqrt()
    left = (matrices - totals.unsqueeze(2) * (totals / groups).unsqueeze(1)) / unit.unsqueeze(2) / unit.unsqueeze(1)
    if not bool(left.isfinite().all()) or bool((torch.linalg.eigvalsh(left) < -SLACK * left.shape[1]).any()):
        raise ValueError(f"products of {name} are contradictory")
