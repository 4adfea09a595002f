"""FLamby's Fed-Heart-Disease: a small part of the benchmark, and the table that it stands beside."""

from __future__ import annotations

from statistics import mean

import pytest
from rich.console import Console

from benchmarks.fed_heart import LEAST, PUBLISHED, SPLIT, Found, bench_fed_heart, centres, holds
from tests.conftest import SHARED


@pytest.mark.shared_data
@pytest.mark.exhaustive
@pytest.mark.skipif(not (SHARED / "heart").is_dir(), reason="the shared data are not here")
def test_four_centres_are_as_accurate_as_said_and_by_their_own_standardisation_no_better_than_flamby() -> None:
    data = centres(SHARED / "heart", SPLIT)
    sizes = [((own["split"] == 0).sum(), (own["split"] == 2).sum(), own["x"].shape[1]) for own in data.values()]
    assert sizes == [(199, 104, 13), (172, 89, 13), (30, 16, 13), (85, 45, 13)]
    found = bench_fed_heart(SHARED / "heart", [0], [SPLIT + 1], Console())
    assert holds(found)
    for split in (SPLIT, SPLIT + 1):
        exact, own, sklearn = (one for one in found if one.split == split and one.seed is None)
        assert exact.centres == sklearn.centres
        assert exact.auc == pytest.approx(sklearn.auc, abs=1e-3)
        assert own.accuracy < PUBLISHED["FedYogi"][1] < LEAST < exact.accuracy


def test_a_mean_below_what_is_said_does_not_hold_whatever_other_runs_have() -> None:
    other = Found(SPLIT, "exact, federated", None, (0.9,) * 4, 0.9)
    assert holds([Found(SPLIT, "steps, federated", 0, (0.7, 0.9, 0.7, 0.91), 0.9)])
    assert not holds([other, *(Found(SPLIT, "steps, federated", seed, (0.79,) * 4, 0.9) for seed in (0, 1))])


def test_published_means_are_those_of_the_centres() -> None:
    assert all(mean(sites) == pytest.approx(all_, abs=1e-3) for sites, all_, *_ in PUBLISHED.values())
