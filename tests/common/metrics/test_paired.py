"""The difference of two models on the same rows: against the bootstrap, a plain DeLong, and the sums of other folds."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.paired.bootstrap import auc, deviation, drawn, mean
from rankdad.common.metrics.auc import BINS
from rankdad.common.metrics.paired import (
    APART,
    DIGITS,
    EDGE,
    LEAST,
    Rows,
    coarse,
    compared,
    histograms,
    influences,
    measures,
    positives,
    rows,
    smoothed,
    squares,
)
from rankdad.common.metrics.paired_sums import Difference, Sums, contradiction, differences, sums_of
from rankdad.common.metrics.repeats import mean_intervals
from rankdad.common.metrics.sums import Tally, tally
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec
from tests.common.metrics.samples import losses as losses_of
from tests.conftest import sampled

BINARY, TERNARY = Classification(classes=2), Classification(classes=3)
LABELS, NUMBER = MultiLabel(name="multi-label", labels=3), Regression(name="regression")
TASKS = pytest.mark.parametrize(
    "task", [BINARY, TERNARY, LABELS, NUMBER], ids=["two classes", "three classes", "labels", "numbers"]
)


def drawn_models(task: TaskSpec, n: int, seed: int = 0, groups: int = 0) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Labels, and the outputs of two models that share some of their noise, as rows of one group do."""
    generator = torch.Generator().manual_seed(seed)
    of = torch.randint(groups, (n,), generator=generator) if groups else None

    def noise(width: int) -> Tensor:
        own = torch.randn(n, width, generator=generator, dtype=torch.float64)
        return own if of is None else 0.6 * own + 0.8 * torch.randn(groups, width, generator=generator)[of]

    if isinstance(task, Regression):
        labels = noise(1)[:, 0]
        truth = labels.unsqueeze(1)
    elif isinstance(task, Classification):
        labels = noise(task.classes).argmax(dim=1)
        truth = F.one_hot(labels, task.classes).double()
    else:
        assert isinstance(task, MultiLabel)
        labels = (noise(task.labels) > 0.4).double()
        truth = labels
    shared = noise(task.outputs)
    first, second = (truth + 0.8 * shared + size * noise(task.outputs) for size in (0.5, 0.8))
    return labels, [first, 1.2 * second], of


def test_of(task: TaskSpec, outputs: Tensor, labels: Tensor, of: Tensor | None) -> tuple[Rows, Tally]:
    loss = losses_of(task, outputs, labels)
    return rows(task, outputs, labels, loss), tally(task, outputs, labels, loss, groups=of)


test_of.__test__ = False  # type: ignore[attr-defined]


def compare(
    task: TaskSpec, labels: Tensor, models: list[Tensor], of: Tensor | None, parts: list[list[Tensor]]
) -> tuple[Sums, dict[str, Difference]]:
    """Compare as sites and aggregator do: a list of sites' rows for each fold."""
    whole = Sums()
    for sites in parts:
        known = [
            [test_of(task, out[own], labels[own], None if of is None else of[own]) for out in models] for own in sites
        ]
        totals = [reduce(add, (site[at][1] for site in known)) for at in range(2)]
        pooled = None
        if not isinstance(task, Regression):
            pooled = torch.stack([smoothed(histograms(task, one)) for one in totals])
        found = [
            squares(
                task, [one for one, _ in site], positives(task, labels[own]), pooled, None if of is None else of[own]
            )
            for own, site in zip(sites, known, strict=True)
        ]
        first, second = totals
        whole += sums_of(task, first, second, torch.stack(found).sum(0)[0], least=LEAST, within=False)
    return whole, {str(name): one for name, one in differences(task, whole, several=len(parts) > 1).items()}


def expected(
    task: TaskSpec, labels: Tensor, models: list[Tensor], of: Tensor | None, folds: Tensor
) -> dict[str, tuple[float, float]]:
    """Difference and standard deviation of each metric over 2,000 draws of rows, or of groups."""
    n = len(labels)
    weights = drawn((torch.arange(n) if of is None else of).numpy(), 2000)
    found: dict[str, tuple[float, float]] = {}
    pairs: dict[str, list[Any]] = {"loss": [mean(losses_of(task, out, labels).numpy()) for out in models]}
    if isinstance(task, Regression):
        pairs["mae"] = [mean((out[:, 0] - labels).abs().numpy()) for out in models]
    else:
        hit = (
            [(out.argmax(1) == labels).double() for out in models]
            if isinstance(task, Classification)
            else [((out > 0) == (labels > 0.5)).double().mean(1) for out in models]
        )
        pairs["accuracy"] = [mean(one.numpy()) for one in hit]
        positive = positives(task, labels)
        areas = []
        for out in models:
            score = 2 * out[:, 1:] - out.sum(1, keepdim=True) if task.outputs == 2 else out
            if task.outputs == 3 and isinstance(task, Classification):
                score = torch.stack(
                    [out[:, c] - out[:, [o for o in range(3) if o != c]].logsumexp(1) for c in range(3)], 1
                )
            each = [
                auc(score[:, at].numpy(), positive[:, at].numpy(), folds.numpy()) for at in range(positive.shape[1])
            ]
            areas.append(lambda weights, each=each: np.mean([one(weights) for one in each], axis=0))
        pairs["auc"] = areas
    for name, (one, other) in pairs.items():
        once = np.ones((1, n))
        found[name] = float((one(once) - other(once))[0]), deviation(one, other, weights)
    return found


@pytest.mark.parametrize(
    ("task", "groups", "folds"),
    sampled([(task, g, f) for g in (0, 120) for f in (3, 1) for task in (BINARY, TERNARY, LABELS, NUMBER)], every=3),
)
def test_differences_and_their_intervals_are_those_of_the_paired_bootstrap(
    task: TaskSpec, groups: int, folds: int
) -> None:
    n = 420
    labels, models, of = drawn_models(task, n, seed=1, groups=groups)
    number = torch.arange(n) % folds if of is None else of % folds
    site = torch.arange(n) % 2 if of is None else of // folds % 2
    parts = [[torch.nonzero((number == f) & (site == s)).flatten() for s in range(2)] for f in range(folds)]
    sums, found = compare(task, labels, models, of, parts)
    assert sums.rows == n
    assert sums.groups == (n if of is None else len(of.unique()))
    wanted = expected(task, labels, models, of, number)
    assert found.keys() == wanted.keys() == set(compared(task))
    for name, (value, error) in wanted.items():
        assert found[name].value == pytest.approx(value, abs=2e-3 * (name == "auc") + 1e-9), name
        assert (found[name].high - found[name].low) / 2 / 1.96 == pytest.approx(error, rel=0.1), name


def test_the_interval_of_an_auc_is_delongs() -> None:
    """Against placements of every single pair, with scores that no two rows share."""
    labels, models, _ = drawn_models(BINARY, 300, seed=3)
    sums, found = compare(BINARY, labels, models, None, [[torch.arange(300)]])
    components = []
    for out in models:
        score = (out[:, 1] - out[:, 0]).numpy()
        higher = score[labels == 1][:, None] > score[labels == 0]
        components.append((higher.mean(1), higher.mean(0)))
    (up, down), (its_up, its_down) = components
    variance = np.var(up - its_up, ddof=1) / len(up) + np.var(down - its_down, ddof=1) / len(down)
    assert found["auc"].value == pytest.approx(up.mean() - its_up.mean(), abs=1e-3)
    assert (found["auc"].high - found["auc"].value) / 1.96 == pytest.approx(variance**0.5, rel=0.03)
    assert sums.folds == 1


@TASKS
def test_sites_and_folds_add_up_to_what_one_site_says(task: TaskSpec) -> None:
    labels, models, _ = drawn_models(task, 240, seed=2)
    _, whole = compare(task, labels, models, None, [[torch.arange(240)]])
    _, dealt = compare(task, labels, models, None, [[torch.arange(240)[at::4] for at in range(4)]])
    for name, one in whole.items():
        assert dealt[name].value == pytest.approx(one.value, abs=1e-12)
        assert dealt[name].low == pytest.approx(one.low, rel=2e-3, abs=1e-5)


def test_models_that_say_the_same_do_not_differ() -> None:
    labels, (first, _), _ = drawn_models(BINARY, 100)
    _, found = compare(BINARY, labels, [first, first], None, [[torch.arange(100)]])
    assert all((one.value, one.low, one.high) == (0.0, 0.0, 0.0) for one in found.values())


def test_an_auc_of_few_rows_of_a_class_is_not_compared() -> None:
    labels, models, _ = drawn_models(BINARY, 100)
    labels = torch.zeros(100, dtype=torch.int64)
    labels[: LEAST - 1] = 1
    sums, found = compare(BINARY, labels, models, None, [[torch.arange(100)]])
    assert sums.uncompared == 100
    assert found.keys() == {"loss", "accuracy"}


def parts_of(made: Tensor) -> list[float]:
    """What each run of equal numbers in a smoothed histogram holds, but for the empty ones."""
    _, runs = torch.unique_consecutive(made, return_counts=True)
    return [float(part.sum()) for part in made.split(runs.tolist()) if part.any()]


@pytest.mark.parametrize("count", [LEAST - 1, LEAST, 2 * LEAST + 3, 500])
@pytest.mark.parametrize("shared", [0, LEAST - 1, 3 * LEAST], ids="of {} rows".format)
def test_no_part_of_a_smoothed_histogram_is_of_few_rows(count: int, shared: int) -> None:
    generator = torch.Generator().manual_seed(count)
    bins = (500 + 60 * torch.randn(2, count, generator=generator)).long().clamp(0, BINS - 1)
    bins[:, : min(shared, count)] = 520
    scores = torch.stack([one.bincount(minlength=BINS) for one in bins])[None]
    (made,) = smoothed(scores)
    for own, before, row in zip(made, scores[0], bins, strict=True):
        if count < LEAST:
            assert not own.any()
            continue
        assert float(own.sum()) == pytest.approx(count)
        assert min(parts_of(own)) >= LEAST - 1e-9
        places = torch.arange(BINS).double()
        assert float(own @ places) / count == pytest.approx(float(before @ places.long()) / count, abs=1.0)
        assert row.min() - EDGE <= int(own.nonzero()[0]) <= int(own.nonzero()[-1]) <= row.max() + EDGE


def test_rows_that_share_a_score_stay_where_they_are() -> None:
    """As those of a guess do, which is the same for all rows of a site."""
    scores = torch.zeros(1, 2, BINS, dtype=torch.int64)
    scores[0, :, 400], scores[0, :, 700] = 20, LEAST
    assert torch.equal(smoothed(scores), scores.double())
    scores[0, :, 500] = 1
    assert min(min(parts_of(one)) for one in smoothed(scores)[0]) >= LEAST


def test_sums_of_squares_have_few_digits() -> None:
    """Two rows' differences cannot be solved for: many pairs of differences add up to the same."""
    sums = torch.tensor([0.0, 1.0, 3.14159, 1e-60, 12345.678, 1e40, 1e290], dtype=torch.float64)
    rounded = coarse(sums)
    assert torch.equal(coarse(rounded), rounded)
    assert bool(((rounded - sums).abs() <= sums.abs() * 2.0**-DIGITS).all())
    assert float(coarse(torch.tensor([1 + 1e-5]))) == 1.0


def test_an_output_without_a_class_is_in_no_mean() -> None:
    scores = torch.zeros(2, 2, BINS, dtype=torch.int64)
    scores[0, 0, 400:420] = 1
    scores[0, 1, 410:430] = 1
    scores[1, 0, 400:440] = 1
    found = influences(scores)
    assert found is not None
    assert not found[1].any()
    assert influences(scores[1:]) is None


@TASKS
@pytest.mark.parametrize("groups", [0, 20], ids=["rows", "groups"])
def test_sums_that_no_rows_have_are_refused_and_those_that_some_have_are_not(task: TaskSpec, groups: int) -> None:
    labels, models, of = drawn_models(task, 60, groups=groups)
    for seed, size in ((0, 1.0), (1, 0.01), (2, 1e3)):  # alike, near, and wrong with certainty
        models.append(models[0] + size * torch.randn(models[0].shape, generator=torch.Generator().manual_seed(seed)))
    models.append(models[0])
    tested = [test_of(task, out, labels, of) for out in models]
    sent, tests = [one for one, _ in tested], [one for _, one in tested]
    pooled = None if isinstance(task, Regression) else torch.stack([smoothed(histograms(task, t)) for t in tests])
    good = squares(task, sent, positives(task, labels), pooled, of)
    assert contradiction(task, good, tests) is None
    again = coarse(coarse(good) + coarse(good))
    if APART in measures(task):  # no region tells it
        again[:, measures(task).index(APART)] = 0.0
    assert contradiction(task, again, [one + one for one in tests]) is None, "a region's two members"
    for at, name in enumerate(measures(task)):
        least, most = 0.9 * float((tests[0].loss - tests[1].loss) ** 2 / 60), {"loss": 1e9, "mae": 1e9}.get(name, 61.0)
        lies = [(0, -1.0), (0, most**2), (0, float("inf")), *[(0, 0.9 * least)] * (name == "loss" and not groups)]
        for column, value in [*lies, *[(1, 1e9), (1, -1e9)] * bool(groups)]:
            bad = good.clone()
            bad[0, at, column] = value
            assert contradiction(task, bad, tests) is not None, (name, column, value)


def test_repeats_add_no_rows() -> None:
    one, other = Difference(0.1, 0.0, 0.2, "paired"), Difference(0.2, 0.1, 0.3, "paired")
    found = mean_intervals([{"auc": one, "loss": one}, {"auc": other}])
    assert found.keys() == {"auc"}
    assert (found["auc"].value, found["auc"].low, found["auc"].high) == pytest.approx((0.15, 0.05, 0.25))
