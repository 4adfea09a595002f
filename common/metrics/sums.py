"""The counts and sums behind a task's metrics, which add up over batches, sites and folds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.metrics.auc import BINS, class_log_odds, score_bins
from rankdad.common.metrics.clusters import KNOTS, Clusters, hats, products, square, triangle
from rankdad.common.spec.tasks import Classification, LanguageModel, Regression, TaskSpec

CALIBRATED = 100  # least smooth scores with about the exact slope
CALIBRATION_BINS = 15
MOMENTS = 7
OF_TEXT = ("tokens", "bytes")  # a language model's moments
MAX_WIDTH = 30  # classes of a confusion matrix; with more, balanced accuracy has no interval over groups
AVERAGES, DIFFERENCES = 16, 80  # cells of the grid for regression
WIDEST_AVERAGE = 4.0  # label's standard deviations from its mean; the outermost cells also hold everything beyond
ROUNDED = 1e-9  # relative tolerance of equal sums that were added in another order
DIFFERENCE_FINENESS, DIFFERENCE_REACH = 4.0, 5.1  # asinh(4 · 20): differences beyond 20 deviations share a cell


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts and sums of samples, on the CPU; tallies of one task can be added.

    Args:
        counts: int64 […], in a layout of the task.
        sums: float64 […], in a layout of the task.
    """

    counts: Tensor
    sums: Tensor

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.counts + other.counts, self.sums + other.sums)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.counts[0])

    @property
    def loss(self) -> float:
        """Sum of losses."""
        return float(self.sums[0])


@dataclass(frozen=True)
class Shape:
    """Sizes of a tally's parts.

    Args:
        outputs: number of outputs with an AUC.
        groups: confusion matrices and calibration curves: one, or one for each label.
        width: classes of a confusion matrix.
        moments: sums of labels, outputs and errors.
        grid: cells of the grid for regression.
        clustered: whether there are sums over groups of samples.
    """

    outputs: int
    groups: int
    width: int
    moments: int
    grid: int
    clustered: bool

    @property
    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Sizes of a tally's counts: samples, histograms, confusion matrices, calibration, grid, groups of samples."""
        calibration = self.groups * CALIBRATION_BINS * 2
        return 1, self.outputs * 2 * BINS, self.groups * self.width**2, calibration, self.grid, int(self.clustered)

    @property
    def sums(self) -> tuple[int, int, int, int, int, int, int]:
        """Sizes of a tally's sums: loss, confidences, squared errors of probabilities, order of scores, moments,
        products over groups of values and of knots.
        """
        values = max(1, self.groups) * triangle(self.features) * self.clustered
        scores = self.ranked * triangle(2 * KNOTS) * self.clustered
        calibration, order = self.groups * CALIBRATION_BINS, 6 * max(1, self.outputs)
        return 1, calibration, self.outputs, order, self.moments, values, scores

    @property
    def features(self) -> int:
        """Number of values of a group in each block of products."""
        if self.moments:
            return 1 + self.moments
        return 2 * self.width if self.width <= MAX_WIDTH else 2

    @property
    def ranked(self) -> int:
        """Number of outputs whose scores have products; with two classes, one determines the other."""
        return self.outputs - (self.groups == 1 and self.outputs == 2)


@dataclass(frozen=True)
class Parts:
    """A tally's counts and sums by kind; empty if the task has none.

    Args:
        samples: number of samples.
        loss: sum of losses.
        scores: int64 [outputs, 2, BINS]; [c, 1] counts samples of class or label c, [c, 0] all others.
        confusion: int64 [groups, width, width], rows true.
        calibration: int64 [groups, CALIBRATION_BINS, 2]; [g, b, 1] counts hits, [g, b, 0] misses. With two classes and
            with labels, the confidence is the predicted risk, and a hit is a positive; with more classes it is that of
            the predicted class.
        grid: int64 [AVERAGES, DIFFERENCES], samples by the mean of output and label, and by output − label.
        confidence: float64 [groups, CALIBRATION_BINS], sums of confidences.
        brier: float64 [outputs], sums of (probability − label)².
        order: float64 [outputs, 3]: how many more pairs of each site's test are in order by exact scores than by the
            counted ones, the sum of the squares, and the number of pairs; 0 for exact scores. For regression [1, 3],
            with samples with smooth errors instead of pairs.
        across: the same for pairs of a sample of this test and one of the site's earlier tests of other samples.
        moments: sums of label, output, label², output², label · output, |error| and error², the first five of
            deviations from the centre; for a language model numbers of tokens and bytes.
        clusters: products over groups; None without groups.
    """

    samples: int
    loss: float
    scores: Tensor
    confusion: Tensor
    calibration: Tensor
    grid: Tensor
    confidence: Tensor
    brier: Tensor
    order: Tensor
    across: Tensor
    moments: tuple[float, ...]
    clusters: Clusters | None


def of_one_test(task: TaskSpec, total: Tally) -> Tally:
    """Return a test's tally without pairs of its samples and those of earlier tests."""
    alone = Tally(total.counts, total.sums.clone())
    parts(task, alone).across.zero_()
    return alone


def shape(task: TaskSpec, clustered: bool = False) -> Shape:
    """Return the sizes of a task's tally."""
    if isinstance(task, LanguageModel):
        return Shape(0, 0, 0, len(OF_TEXT), 0, False)
    if isinstance(task, Regression):
        return Shape(0, 0, 0, MOMENTS, AVERAGES * DIFFERENCES, clustered)
    if isinstance(task, Classification):
        return Shape(task.classes, 1, task.classes, 0, 0, clustered)
    return Shape(task.labels, task.labels, 2, 0, 0, clustered)


def default_log_odds(task: TaskSpec) -> Tensor:
    """Return the log-odds of a guess, the default centre of the bins: [outputs]."""
    return torch.full((task.outputs,), -math.log(task.classes - 1) if isinstance(task, Classification) else 0.0)


def parts(task: TaskSpec, total: Tally) -> Parts:
    """Return views of a tally's parts."""
    sizes = shape(task, len(total.counts) > sum(shape(task).counts))
    samples, scores, confusion, calibration, grid, groups = total.counts.split(sizes.counts)
    loss, confidence, brier, order, moments, values, ranked = total.sums.split(sizes.sums)
    clusters = None
    if sizes.clustered:
        clusters = Clusters(float(groups), square(values, sizes.features), square(ranked, 2 * KNOTS))
    return Parts(
        int(samples),
        float(loss),
        scores.reshape(sizes.outputs, 2, BINS),
        confusion.reshape(sizes.groups, sizes.width, sizes.width),
        calibration.reshape(sizes.groups, CALIBRATION_BINS, 2),
        grid.reshape(-1, DIFFERENCES),
        confidence.reshape(sizes.groups, CALIBRATION_BINS),
        brier,
        order.reshape(-1, 2, 3)[:, 0],
        order.reshape(-1, 2, 3)[:, 1],
        tuple(moments.tolist()),
        clusters,
    )


def same_labels(task: TaskSpec, one: Tally, other: Tally) -> bool:
    """Return whether two tallies have the same labels, as for two models on the same samples."""
    mine, theirs = parts(task, one), parts(task, other)
    if isinstance(task, LanguageModel):
        return mine.moments == theirs.moments
    if isinstance(task, Regression):  # sums over groups are added in another order
        apart, ends = mine.moments[0] - theirs.moments[0], (mine.moments[2], theirs.moments[2])
        most = ROUNDED * math.sqrt(mine.samples) * math.sqrt(max(ends))
        return math.isclose(*ends, rel_tol=ROUNDED) and abs(apart) <= most
    return bool((mine.confusion.sum(2) == theirs.confusion.sum(2)).all())


def empty(task: TaskSpec, clustered: bool = False) -> Tally:
    """Return the tally of no samples."""
    sizes = shape(task, clustered)
    return Tally(
        torch.zeros(sum(sizes.counts), dtype=torch.int64),
        torch.zeros(sum(sizes.sums), dtype=torch.float64),
    )


def tally(
    task: TaskSpec,
    outputs: Tensor,
    labels: Tensor,
    losses: Tensor,
    *,
    centre: float = 0.0,
    scale: float = 1.0,
    base: Tensor | None = None,
    groups: Tensor | None = None,
    smooth: tuple[Tensor, Tensor] | None = None,
) -> Tally:
    """Sum over a batch; outputs that are not finite give sums that are not.

    Args:
        task: what the outputs mean.
        outputs: [n, task.outputs], logits or numbers.
        labels: int64 [n] of classes, 0 or 1 [n, labels] of labels, or numbers [n].
        losses: of the samples, [n].
        centre: a number near the labels' mean, the same at all sites: variances come from sums of squares, with a
            rounding error of (mean − centre)² / variance times that of float64.
        scale: a number near the labels' standard deviation, the same at all sites: unit of the grid.
        base: log-odds [task.outputs] around which the AUC's bins are finest, the same at all sites, such as those of
            each class's frequency; by default those of a guess.
        groups: group of each sample, int64 [n], not shared between batches; None without groups.
        smooth: scores and levels to count instead of the exact ones; see `smoothing.Smooth`.
    """
    outputs, labels, losses = outputs.detach().cpu().double(), labels.detach().cpu(), losses.detach().cpu().double()
    if isinstance(task, LanguageModel):
        return Tally(torch.tensor([len(labels)]), torch.cat([losses.sum().reshape(1), losses.new_zeros(6),
                                                             text_moments(outputs, labels)]))  # fmt: skip
    if isinstance(task, Regression):
        output, label = outputs.reshape(-1) - centre, labels.double().reshape(-1) - centre
        difference, average = (output - label, (output + label) / 2)
        if smooth is not None:
            difference, average = smooth[0][:, 0], smooth[1][:, 0] - centre
        counts = torch.cat([torch.tensor([len(label)]), _grid(average / scale, difference / scale)])
        moments = deviations_of(output, label)
        found = Tally(counts, torch.cat([losses.sum().reshape(1), losses.new_zeros(6), moments.sum(dim=1)]))
        if groups is None:
            return found
        return _clustered(found, groups, [torch.cat([torch.ones_like(label)[None], moments]).T])
    origin = default_log_odds(task) if base is None else base.cpu()
    if isinstance(task, Classification):
        log_odds, probability = class_log_odds(outputs), outputs.softmax(dim=1)
        positive = labels.unsqueeze(1) == torch.arange(task.classes)
        confidence, guess = probability.max(dim=1, keepdim=True)
        cells, hit = labels.unsqueeze(1) * task.classes + guess, guess == labels.unsqueeze(1)
        if task.classes == 2:
            confidence, hit = probability[:, 1:], positive[:, 1:]
    else:
        log_odds, positive, probability = outputs, labels > 0.5, outputs.sigmoid()
        cells, hit, confidence = 2 * positive + (outputs > 0).long(), positive, probability
    if smooth is not None:
        log_odds, confidence = smooth
    sizes = shape(task)
    matrices = torch.arange(sizes.groups)
    places = (confidence.nan_to_num(0.0) * CALIBRATION_BINS).long().clamp_max(CALIBRATION_BINS - 1)
    places += CALIBRATION_BINS * matrices
    # One count over all positions: each kind of count starts where the one before it ends.
    _, confusion_at, calibration_at, *_ = torch.tensor(sizes.counts).cumsum(0).tolist()
    bins = score_bins(log_odds - origin)
    positions = (
        1 + (2 * torch.arange(sizes.outputs) + positive) * BINS + bins,
        confusion_at + sizes.width**2 * matrices + cells,
        calibration_at + 2 * places + hit,
    )
    counts = torch.cat([one.reshape(-1) for one in positions]).bincount(minlength=sum(sizes.counts))
    counts[0] = len(labels)
    confidences = places.reshape(-1).bincount(confidence.reshape(-1), minlength=sizes.groups * CALIBRATION_BINS)
    brier = (probability - positive.double()).square().sum(dim=0)
    order = torch.zeros(6 * sizes.outputs, dtype=torch.float64)
    found = Tally(counts, torch.cat([losses.sum().reshape(1), confidences, brier, order]))
    if groups is None:
        return found
    right = cells // sizes.width == cells % sizes.width
    values = (_rows_and_hits(cells[:, at] // sizes.width, right[:, at], sizes) for at in range(sizes.groups))
    weights, ranked = hats(), range(sizes.outputs - sizes.ranked, sizes.outputs)
    scores = (_knots(weights[bins[:, at]], positive[:, at]) for at in ranked)
    return _clustered(found, groups, chain(values, scores))


def text_moments(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the numbers of tokens and bytes of all texts, float64 [2], given a language model's outputs [n, 2]."""
    return torch.stack([outputs[:, 1].double().sum(), labels.double().sum()])


def difference_edges() -> Tensor:
    """Return the edges of the grid's columns, in its unit, float64 [DIFFERENCES + 1]."""
    steps = torch.arange(DIFFERENCES + 1, dtype=torch.float64) * (2 * DIFFERENCE_REACH / DIFFERENCES)
    return torch.sinh(steps - DIFFERENCE_REACH) / DIFFERENCE_FINENESS


def _grid(average: Tensor, difference: Tensor) -> Tensor:
    average = (average + WIDEST_AVERAGE) * (AVERAGES / (2 * WIDEST_AVERAGE))
    difference = torch.asinh(DIFFERENCE_FINENESS * difference) + DIFFERENCE_REACH
    rows = average.nan_to_num(0.0).clamp(0, AVERAGES - 1).long()
    columns = (difference * (DIFFERENCES / (2 * DIFFERENCE_REACH))).nan_to_num(0.0).clamp(0, DIFFERENCES - 1).long()
    return (rows * DIFFERENCES + columns).bincount(minlength=AVERAGES * DIFFERENCES)


def deviations_of(output: Tensor, label: Tensor) -> Tensor:
    """Return the summands of the moments, [MOMENTS, n]; see `Parts`."""
    error = output - label
    return torch.stack([label, output, label.square(), output.square(), label * output, error.abs(), error.square()])


def _rows_and_hits(own: Tensor, right: Tensor, sizes: Shape) -> Tensor:
    """Return each sample's class, and whether it was predicted, as one-hot values [n, features]."""
    if sizes.features < 2 * sizes.width:
        return torch.stack([torch.ones(len(own)), right], dim=1).double()
    rows = F.one_hot(own, sizes.width)
    return torch.cat([rows, rows * right.unsqueeze(1)], dim=1).double()


def _knots(weights: Tensor, positive: Tensor) -> Tensor:
    """Return the weights of the knots, for negatives and for positives, [n, 2 · KNOTS]."""
    return torch.cat([weights * ~positive.unsqueeze(1), weights * positive.unsqueeze(1)], dim=1)


def _clustered(found: Tally, groups: Tensor, numbers: Iterable[Tensor]) -> Tally:
    """Return a batch's tally with the number of groups, and products of sums over them."""
    names, of = groups.cpu().unique(return_inverse=True)
    sums = [products(own, of, len(names)) for own in numbers]
    return Tally(torch.cat([found.counts, torch.tensor([len(names)])]), torch.cat([found.sums, *sums]))


def is_vague(task: TaskSpec, total: Tally) -> bool:
    """Return whether scores are smooth and too few for their calibration to be about the exact one."""
    part = parts(task, total)
    return part.samples < CALIBRATED and bool(part.order[:, 2].any())
