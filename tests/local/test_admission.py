"""What a policy makes of a site's data: steps, splits and patients that are too few."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankdad.common.data import Samples, SiteData, split_samples
from rankdad.common.data.folds import Split
from rankdad.common.data.reading import Reading
from rankdad.common.documents import validate
from rankdad.common.errors import PolicyError
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.common.refusals import refuse_together
from rankdad.common.run.batches import drawn_sizes
from rankdad.local.admission import admitted
from tests.conftest import run_spec
from tests.local.policies import RANK_DAD, check


def data_of(*sizes: int) -> SiteData:
    """So many samples to train on, to validate and to test."""
    samples = Samples(torch.ones(sum(sizes), 6), torch.zeros(sum(sizes)).long())
    return SiteData(samples, (Split(*torch.arange(sum(sizes)).split(list(sizes))),))


def admit(policy: dict[str, Any], data: SiteData) -> SiteData:
    spec = run_spec(method=RANK_DAD)
    return admitted(validate(Policy, policy), spec, make_plan(spec, build_model(spec)), data)


def admission(policy: dict[str, Any], data: SiteData) -> tuple[str, str, dict[str, Any]]:
    with pytest.raises(PolicyError) as caught:
        admit(policy, data)
    return caught.value.code, caught.value.field, caught.value.change


def test_an_epochs_smallest_step_decides() -> None:
    """33 samples in steps of at most 8 are 7, 7, 7, 6 and 6."""
    data = data_of(33, 0, 0)
    admit({"min_rows": 6}, data)
    few = ("steps-of-too-few", "training.batch_size", {"min_rows": 6})
    assert admission({"min_rows": 7}, data) == few
    assert admission({"min_rows": 1, "rows_per_rank": 7}, data)[1:] == ("method.rank", {"rows_per_rank": 6})
    check({"min_rows": 16}, run_spec(method=RANK_DAD, training={"accumulate": 2}))  # two batches are one step
    rows = [Policy(rows_per_rank=each).rank(samples) for each, samples in ((None, 1), (4, 33), (4, 3), (1, 0))]
    assert rows == [None, 8, 0, 0]


def test_a_split_that_is_too_small_is_not_evaluated() -> None:
    data = admit({"min_rows": 5}, data_of(30, 5, 4))
    (split,) = data.splits
    assert [len(rows) for rows in (split.train, split.validation, split.test)] == [30, 5, 0]
    assert data.fewest == 5


def grouped(data: SiteData, rows: int) -> SiteData:
    """Of so many rows each patient."""
    return replace(data, groups=torch.arange(len(data.samples)) // rows)


def test_a_policy_counts_patients_where_rows_have_one() -> None:
    """32 rows in 4 steps of 8 are of 8 patients with 4 rows each; with 8 rows each a patient is in every step twice."""
    admit({"min_rows": 8}, grouped(data_of(32, 0, 0), 4))
    assert admission({"min_rows": 5}, grouped(data_of(32, 0, 0), 8))[2] == {"min_rows": 4}
    data = admit({"min_rows": 3, "rows_per_rank": None}, grouped(data_of(64, 12, 8), 4))
    (split,) = data.splits
    assert [len(split.validation), len(split.test)] == [12, 0], "three patients, and two"


@pytest.mark.parametrize("groups", [1, 8, 30, 64])
@pytest.mark.parametrize(("batches", "largest"), [(4, 16), (7, 12), (1, 64), (9, 8), (11, 20), (40, 16), (40, 50)])
def test_batches_have_as_many_patients_as_the_policy_was_told(groups: int, batches: int, largest: int) -> None:
    generator = torch.Generator().manual_seed(0)
    data = data_of(64, 0, 0)
    data = replace(data, groups=torch.randint(0, groups, (64,), generator=generator))
    sites = {"sites": ["alpha", "beta"]}
    spec = run_spec(federation=sites, training={"batch_size": largest, "batches": "even"})
    sizes = drawn_sizes(spec, (64, batches * largest))[0]
    drawn = list(data.drawn(0, sizes, generator))
    assert [len(rows) for rows in drawn] == sizes
    assert len(drawn) == batches
    if sum(sizes) == 64:
        assert torch.cat(drawn).sort().values.tolist() == list(range(64)), "once each"
    else:
        assert set(sizes) == {min(largest, 32)}
        assert len({tuple(rows.sort().values.tolist()) for rows in drawn}) == batches, "no set twice"
    assert all(len(rows.unique()) == len(rows) for rows in drawn)
    assert data.groups is not None
    assert min(len(data.groups[rows].unique()) for rows in drawn) >= data.fewest_people(0, sizes)


def test_sums_of_many_repeats_are_refused_where_they_would_tell_samples() -> None:
    """10 repeats of 3 folds are 21 equations: for 90 samples, 4 each."""
    spec = run_spec(method=RANK_DAD, evaluation={"name": "k-fold", "folds": 3, "repeats": 10})
    data = split_samples(spec, Reading("x", np.ones((90, 6), np.float32), np.arange(90) % 3), 0)
    admitted(validate(Policy, {"min_rows": 4}), spec, make_plan(spec, build_model(spec)), data)
    with pytest.raises(PolicyError) as caught:
        admitted(validate(Policy, {"min_rows": 5}), spec, make_plan(spec, build_model(spec)), data)
    assert (caught.value.field, caught.value.change) == ("evaluation.repeats", {"min_rows": 4})


@pytest.mark.parametrize(
    ("columns", "told"),
    [([0.0, 1.0, float("nan"), 1.0], True), ([2.0, 2.0, 2.0, 2.0], False), ([0.0, 1.0, 2.0, float("nan")], False)],
)
def test_a_site_is_told_what_small_steps_tell_of_columns_of_two_values(columns: list[float], told: bool) -> None:
    spec = run_spec(method=RANK_DAD | {"rank": 4}, data={"shape": [40]})
    inputs = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    inputs[:, :2] = torch.tensor(columns).repeat(10)[:, None]
    rows = torch.arange(40)
    data = SiteData(Samples(inputs, rows % 3), (Split(rows[:16], rows[16:28], rows[28:]),))
    rank, *binary = admitted(Policy(), spec, make_plan(spec, build_model(spec)), data).notes
    assert [rank.partition(":")[0], len(binary)] == ["method", told]


def test_the_first_remedy_is_enough_where_a_later_check_needs_more_of_the_same_line(tmp_path: Path) -> None:
    """`rows_per_rank` 2 was to be 1, which the next check refused, and so on."""
    model = {"name": "mlp", "hidden": [64, 64]}
    spec = run_spec(model=model, method={"name": "dsgd"}, data={"shape": [12]}, training={"batch_size": 50})
    generator = np.random.default_rng(0)
    reading = Reading("x", generator.normal(size=(150, 12)).astype(np.float32), generator.integers(0, 3, 150))
    data, plan, policy = split_samples(spec, reading, 0), make_plan(spec, build_model(spec)), Policy(rows_per_rank=2)

    def admits(own: Policy) -> None:
        admitted(own, spec, plan, data)

    with pytest.raises(PolicyError) as caught:
        admits(policy)
    with pytest.raises(PolicyError, match="model"):
        admits(policy.mended(caught.value.change))
    with pytest.raises(PolicyError) as caught:
        refuse_together({"alpha": admits}, {"alpha": policy})
    admits(policy.mended(caught.value.change))
    assert json.dumps(caught.value.change["rows_per_rank"]) in str(caught.value)
