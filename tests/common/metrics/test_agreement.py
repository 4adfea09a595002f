"""Agreement of numbers from sums against pandas on the samples themselves."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from rankdad.common.metrics.agreement import agreement, cells
from rankdad.common.metrics.sums import empty, parts
from rankdad.common.spec.tasks import Regression
from tests.common.metrics.samples import draw, tallied

TASK = Regression(name="regression")


@pytest.mark.parametrize(("level", "scale"), [(0.0, 1.0), (170.0, 12.0), (-1e6, 1e-2)])
def test_bland_and_altmans_figures_are_those_of_the_pooled_samples(level: float, scale: float) -> None:
    outputs, labels = (one * scale + level for one in draw(TASK, 700, 1))
    sites = zip(outputs.split([300, 1, 399]), labels.split([300, 1, 399]), strict=True)
    total = sum((tallied(TASK, x, y, centre=level, scale=scale) for x, y in sites), start=empty(TASK))
    part, table = parts(TASK, total), pd.DataFrame({"output": outputs[:, 0].numpy(), "label": labels.numpy()})
    found = agreement(part, scale)
    difference, average = table["output"] - table["label"], table.mean(axis=1)
    assert found["mean"] == pytest.approx(difference.mean(), rel=1e-7)
    assert found["sd"] == pytest.approx(difference.std(), rel=1e-7)
    middle = found["middle"]
    assert middle["share"] == 0.95
    for end, share in ((middle["low"], 0.025), (middle["high"], 0.975)):
        assert end == pytest.approx(difference.quantile(share), rel=0.1, abs=0.04 * scale)
    assert found["slope"] == pytest.approx(difference.cov(average) / average.var(), rel=1e-6)
    for share, (low, high) in found["quantiles"].items():
        exact = difference.quantile(float(share), interpolation="lower")
        assert low - 1e-9 <= exact <= high + 1e-9
        assert high - low < 0.2 * abs(exact) + 0.04 * scale
    shown = cells(part.grid, scale, level)
    assert sum(count for *_, count in shown) == 700
    least, most = average.min(), average.max()
    assert all(least - 0.25 * scale <= middle <= most + 0.25 * scale for middle, *_ in shown)


def test_the_middle_is_where_rows_lie_and_not_where_a_normal_distribution_would_have_them() -> None:
    """Stays of a few days, some of many weeks: errors to one side."""
    labels = torch.distributions.LogNormal(1.0, 1.2).sample((4000,)).double()  # as lengths of stay are
    outputs = torch.full((4000, 1), float(labels.mean()), dtype=torch.float64)
    found = agreement(parts(TASK, tallied(TASK, outputs, labels, scale=float(labels.std()))), float(labels.std()))
    low, high = (outputs[:, 0] - labels).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    assert found["middle"]["low"] == pytest.approx(low, rel=0.1)
    assert found["middle"]["high"] == pytest.approx(high, rel=0.1)
    assert found["mean"] - 1.96 * found["sd"] < 1.5 * low or found["mean"] + 1.96 * found["sd"] > 1.5 * high


@pytest.mark.parametrize("right", [40, 26])
def test_the_middle_has_the_rows_that_are_right(right: int) -> None:
    """Half of the predictions were said to lie between 0.008 and 0.024 of the true value, though all were right."""
    outputs, labels = draw(TASK, 40, 3)
    outputs[:right, 0] = labels[:right]
    middle = agreement(parts(TASK, tallied(TASK, outputs, labels)), 1.0)["middle"]
    inside = ((outputs[:, 0] - labels >= middle["low"]) & (outputs[:, 0] - labels <= middle["high"])).double().mean()
    assert middle["low"] <= 0 <= middle["high"]
    assert float(inside) >= middle["share"] == 0.5


@pytest.mark.parametrize(("count", "share"), [(31, None), (32, 0.5), (159, 0.5), (160, 0.9), (319, 0.9), (320, 0.95)])
def test_eight_rows_lie_beyond_either_end_of_the_middle(count: int, share: float | None) -> None:
    outputs, labels = draw(TASK, count, 2)
    middle = agreement(parts(TASK, tallied(TASK, outputs, labels)), 1.0)["middle"]
    if share is None:
        assert middle is None
        return
    assert middle["share"] == share
    apart = outputs[:, 0] - labels
    inside = ((apart >= middle["low"]) & (apart <= middle["high"])).double().mean()
    assert float(inside) == pytest.approx(share, abs=0.04)


def test_fewer_than_two_samples_have_no_agreement() -> None:
    assert agreement(parts(TASK, empty(TASK)), 1.0) == {}
    assert agreement(parts(TASK, tallied(TASK, torch.zeros(1, 1), torch.ones(1))), 1.0) == {}
