"""All data at one site: the same samples in the same folds, and a run that trains as the federation does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.data import SiteData
from rankdad.common.preparation import in_memory
from rankdad.local.alone import own_splits
from rankdad.simulations.lockstep import run
from rankdad.simulations.pooling import SITE, first_rows, pooled_data, pooled_spec
from tests.conftest import SITES, part_of, run_spec
from tests.runs import rows_of

Data = Callable[..., dict[str, SiteData]]
FOLDS: dict[str, Any] = {"name": "k-fold", "folds": 2}
WHOLE: dict[str, Any] = {"dtype": "float64", "batch_size": 100, "optimizer": {"name": "sgd", "lr": 0.5}}


@pytest.mark.parametrize("evaluation", [{"name": "holdout"}, FOLDS, {"name": "leave-one-site-out"}])
def test_every_sample_is_where_it_was_at_its_site(site_data: Data, evaluation: dict[str, Any]) -> None:
    spec = run_spec(evaluation=evaluation)
    data = site_data(spec)
    together = pooled_data(data)
    assert len(together.samples) == sum(len(site.samples) for site in data.values())
    assert len(together.splits) == pooled_spec(spec, data).folds == spec.folds
    for fold in range(spec.folds):
        for name in ("train", "validation", "test"):
            parts = [part_of(site, name, fold) for site in data.values()]
            found = part_of(together, name, fold)
            assert torch.equal(in_memory(found.inputs), torch.cat([in_memory(part.inputs) for part in parts]))
            assert torch.equal(found.labels, torch.cat([part.labels for part in parts]))


@pytest.mark.parametrize(("tuning", "each"), [({"rank": [1, 2]}, 1), ({"rank": [1, 2], "weight_decay": [0, 1]}, 3)])
def test_what_is_tuned_is_tuned_together_but_for_ranks(
    tmp_path: Path, site_data: Data, tuning: dict[str, Any], each: int
) -> None:
    spec = run_spec(evaluation=FOLDS, method={"name": "rank-dad", "rank": 2}, tuning=tuning)
    data = site_data(spec)
    together = pooled_spec(spec, data)
    everything = own_splits(spec, together, pooled_data(data).splits)
    assert len(everything) == together.folds == 3 * each
    tested = [split.test for fold, split in enumerate(everything) if together.tests(fold)]
    assert torch.cat(tested).sort().values.tolist() == list(range(97))


def test_it_takes_as_many_steps(site_data: Data) -> None:
    spec = run_spec(training={"batch_size": 4, "accumulate": 2}, federation={"sites": list(SITES), "quorum": 2})
    data = site_data(spec)
    sizes = [len(site.splits[0].train) for site in data.values()]
    together = pooled_spec(spec, data)
    assert (together.federation.sites, together.federation.quorum) == ((SITE,), "all")
    assert -(-sum(sizes) // together.training.step_size) == -(-max(sizes) // 8)


@pytest.mark.slow
def test_one_step_an_epoch_trains_as_the_federation_does(tmp_path: Path, site_data: Data) -> None:
    """Standardised by all sites' moments, in every fold and after."""
    method = {"name": "dsgd", "wire": "float64"}
    spec = run_spec(preparation={"standardise": "federated"}, evaluation=FOLDS, method=method, training=WHOLE)
    data = site_data(spec)
    apart = run(spec, data, tmp_path / "apart")["alpha"]
    alone = pooled_spec(spec, data)
    alone = alone.model_copy(update={"method": spec.method})  # in float64, which pooled gradients need not be
    (together,) = run(alone, {SITE: pooled_data(data)}, tmp_path / "together").values()
    for name, value in apart.final.items():
        torch.testing.assert_close(together.final[name], value, rtol=0, atol=1e-9)
    tables = [rows_of(tmp_path / name / "metrics.csv") for name in ("apart", "together")]
    pooled = [[row for row in table if row["site"] == "pooled" and row["split"] == "test"] for table in tables]
    assert len(pooled[0]) == 3
    for one, other in zip(*pooled, strict=True):
        assert one["accuracy"] == other["accuracy"]
        assert one["samples"] == other["samples"]


def test_what_methods_are_compared_on_is_prepared_as_for_training(site_data: Data) -> None:
    spec = run_spec(preparation={"standardise": "federated"}, evaluation=FOLDS, training={"dtype": "float64"})
    data = site_data(spec)
    prepared = first_rows(spec, data)
    assert [len(own) for own in prepared.values()] == [len(site.splits[0].train) for site in data.values()]
    inputs = torch.cat([in_memory(own.inputs) for own in prepared.values()])
    torch.testing.assert_close(inputs.mean(dim=0), torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(inputs.std(dim=0, correction=0), torch.ones(6, dtype=torch.float64))
