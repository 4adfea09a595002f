"""Few samples are behind no sum, and behind no difference of two folds' sums."""

from __future__ import annotations

import math

import pytest
import torch

from rankdad.common.errors import FewSamplesError
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.local.admission import admitted
from rankdad.local.data import Samples, SiteData
from rankdad.local.data.behind import fewest_behind
from rankdad.local.data.folds import Split
from tests.conftest import run_spec

ALL, NONE = torch.arange(12), torch.arange(0)
TESTS = ALL.chunk(3)  # 0–3, 4–7, 8–11
SPLITS = (*(Split(ALL[~torch.isin(ALL, test)], NONE, test) for test in TESTS), Split(ALL, NONE, NONE))
KEPT = run_spec(
    task={"name": "regression"},
    data={
        "reader": "csv",
        "file": "a.csv",
        "label": "age",
        "features": ["x"],
        "categorical": {"sex": ["F", "M"]},
        "missing": "impute",
    },
    preparation={"harmonise": {"keep": ["sex"]}},
    evaluation={"name": "k-fold", "folds": 3},
)


def members(*rows: int) -> torch.Tensor:
    found = torch.zeros(12, 1, dtype=torch.bool)
    found[list(rows)] = True
    return found


@pytest.mark.parametrize(
    ("rows", "fewest"),
    [((0, 1, 4, 5, 8), 1), ((0, 1, 4, 5, 8, 9), 2), ((0, 1, 2), 3), ((), math.inf), (tuple(range(12)), 4)],
)
def test_what_a_fold_trains_on_and_what_it_holds_out_count(rows: tuple[int, ...], fewest: float) -> None:
    assert fewest_behind(SPLITS, members(*rows), 3).tolist() == [fewest]


def data_of(inputs: torch.Tensor, women: tuple[int, ...]) -> SiteData:
    covariates = 1 - members(*women).double()
    return SiteData(Samples(inputs, torch.arange(12.0).double()), SPLITS, covariates, fewest=2)


def test_covariates_are_not_summed_over_all_but_a_few() -> None:
    """The sums of a column that one sample lacks, and of one that none lacks, differ by that sample's covariates."""
    inputs = torch.arange(24.0).reshape(12, 2)
    inputs[1, 0] = math.nan
    summed = data_of(inputs, (0, 1, 4, 5, 8, 9)).summed(3).inputs
    assert summed[:, 0].isnan().all()
    assert not summed[:, 1].isnan().any()


def test_a_column_that_few_held_out_samples_have_is_missing_in_every_fold() -> None:
    """A fold without sample 0 and the last one with it would differ by its value."""
    inputs = torch.arange(24.0).reshape(12, 2)
    inputs[[1, 2, 3], 0] = math.nan
    data = data_of(inputs, (0, 1, 4, 5, 8, 9))
    for fold in range(4):
        assert data.summed(fold).inputs.isnan().all(0).tolist() == [True, False]
    assert data.rows(3).inputs.isnan().sum() == 3, "the site itself prepares by what it has"


def test_a_kept_level_that_few_samples_have_is_refused() -> None:
    """Sums of products with a level's column are sums over its samples alone."""
    policy = Policy(min_rows=2)
    plan = make_plan(KEPT, build_model(KEPT))
    admitted(policy, KEPT, plan, data_of(torch.ones(12, 1), (0, 1, 4, 5, 8, 9)))
    admitted(policy, KEPT, plan, data_of(torch.ones(12, 1), ()))
    for women in ((0,), (0, 1, 4, 5, 8), (0, 1, 2, 4, 5, 6, 8, 9)):
        with pytest.raises(FewSamplesError, match=r"preparation.harmonise.keep: .* keeps sex, .* level has 1 samples"):
            admitted(policy, KEPT, plan, data_of(torch.ones(12, 1), women))
