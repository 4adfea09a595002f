"""Figures over sites and within them, against pairs and means taken by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score

from rankdad.common.metrics.sites import Spread, mean_over_sites, within_sites
from rankdad.common.metrics.summary import Metrics, summarise
from rankdad.common.metrics.sums import empty
from rankdad.common.spec.tasks import Classification, Regression
from tests.common.metrics.samples import TASKS, draw, pooled, tallied

SIZES = [40, 0, 1, 70]
NUMBER = Regression(name="regression")


def test_numbers_less_their_sites_means() -> None:
    outputs, labels = draw(NUMBER, sum(SIZES), 1)
    outputs[50:] += 100
    labels[50:] += 90
    sites = list(zip(outputs[:, 0].split(SIZES), labels.split(SIZES), strict=True))
    x, y = (torch.cat([site[at] - site[at].mean() for site in sites if len(site[at])]) for at in (0, 1))
    found = within_sites(NUMBER, [tallied(NUMBER, a.unsqueeze(1), b, centre=45.0) for a, b in sites])
    assert found == {"r2": pytest.approx(r2_score(y, x)), "pearson_r": pytest.approx(np.corrcoef(x, y)[0, 1])}


def test_knowing_only_the_site_earns_nothing_within_it() -> None:
    task = Classification(classes=2)
    site = torch.tensor([0, 1]).repeat_interleave(100)
    labels = (torch.arange(200) % 10 < 2 + 6 * site).long()
    outputs = torch.stack([-site, site], dim=1).float()
    assert summarise(task, pooled(task, outputs, labels, [200])).values["auc"] == pytest.approx(0.8)
    tallies = [tallied(task, x, y) for x, y in zip(outputs.split(100), labels.split(100), strict=True)]
    assert within_sites(task, tallies) == {"auc": 0.5}
    numbers = [tallied(NUMBER, x[:, 1:], y.float()) for x, y in zip(outputs.split(100), labels.split(100), strict=True)]
    found = within_sites(NUMBER, numbers)
    assert found["pearson_r"] is None
    assert found["r2"] == pytest.approx(0.0)


def test_sites_without_samples_leave_nothing_to_measure() -> None:
    assert within_sites(NUMBER, [empty(NUMBER)]) == {"r2": None, "pearson_r": None}
    for task in TASKS[:3]:
        assert within_sites(task, []) == within_sites(task, [empty(task)] * 2) == {"auc": None}


def test_mean_over_sites_counts_those_without_a_figure() -> None:
    found = [
        Metrics(9, {"loss": 1.0, "mae": 2.0, "r2": None, "pearson_r": None}),
        Metrics(1, {"loss": 4.0, "mae": 2.0, "r2": 0.5, "pearson_r": None}),
    ]
    assert mean_over_sites(NUMBER, found) == {
        "loss": Spread(2.5, math.sqrt(4.5), 2, 0),
        "mae": Spread(2.0, 0.0, 2, 0),
        "r2": Spread(0.5, None, 1, 1),
        "pearson_r": Spread(None, None, 0, 2),
    }
