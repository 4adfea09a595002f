"""Few samples are behind no sum, and behind no difference of two folds' sums."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rankdad.common.data import Samples, SiteData, site_data
from rankdad.common.data.folds import Split, fewest_behind
from rankdad.common.errors import FewSamplesError
from rankdad.common.models import build_model
from rankdad.common.policy import MinLevel, Policy
from rankdad.common.preparation import in_memory
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from tests.conftest import run_spec

ALL, NONE = torch.arange(12), torch.arange(0)
TESTS = ALL.chunk(3)  # 0–3, 4–7, 8–11
SPLITS = (*(Split(ALL[~torch.isin(ALL, test)], NONE, test) for test in TESTS), Split(ALL, NONE, NONE))
SCHEMA: dict[str, Any] = {
    **{"reader": "csv", "file": "a.csv", "label": "age", "features": ["x"], "missing": "impute"},
    "categorical": {"sex": ["F", "M"]},
}
WOMEN = (0, 1, 4, 5, 8, 9)


def kept(*columns: str, **changes: Any) -> RunSpec:
    changes = {"data": SCHEMA, "preparation": {"harmonise": {"keep": list(columns)}}} | changes
    return run_spec(task={"name": "regression"}, evaluation={"name": "k-fold", "folds": 3}, **changes)


KEPT = kept("sex")


def refused(policy: Policy, spec: RunSpec, data: SiteData) -> FewSamplesError:
    with pytest.raises(FewSamplesError) as error:
        admitted(policy, spec, make_plan(spec, build_model(spec)), data)
    assert error.value.code == "sums-of-too-few"
    return error.value


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


@pytest.mark.parametrize(("rows", "fewest"), [((0, 1), 1), ((0, 2), 1), ((0, 1, 2, 3), 2), (tuple(range(12)), 2)])
def test_what_only_the_model_is_trained_on_counts_and_not_its_candidates(rows: tuple[int, ...], fewest: float) -> None:
    """The sums of candidates and of the model that follows them differ by the rows held out, 0 and 3."""
    inner = Split(ALL[[1, 2, *range(4, 8)]], NONE, NONE)  # a validation set that the policy leaves out
    splits = (inner, inner, Split(torch.arange(8), NONE, TESTS[2]))
    assert fewest_behind(splits, members(*rows), 0).tolist() == [fewest]


def tuned_data(held_out: int) -> tuple[RunSpec, SiteData]:
    """Eight training rows, of which candidates lack some, and four to test."""
    spec = run_spec(tuning={"weight_decay": [0.0, 1.0]}, preparation={"standardise": "federated"})
    inner = Split(torch.arange(held_out, 8), torch.arange(held_out), NONE)
    splits = (inner, inner, Split(torch.arange(8), NONE, TESTS[2]))
    return spec, SiteData(Samples(torch.rand(12, 6), torch.arange(12) % 3), splits)


def test_candidates_that_lack_few_samples_and_sums_of_too_few_for_all_of_them_are_refused() -> None:
    """Sums of candidates and of the model that follows them are two, for twelve samples."""
    spec, data = tuned_data(3)
    admitted(Policy(min_rows=3, rows_per_rank=None), spec, make_plan(spec, build_model(spec)), data)
    assert refused(Policy(min_rows=3, rows_per_rank=None), *tuned_data(2)).field == "evaluation"
    spec, data = tuned_data(4)
    plain = run_spec(training={"batch_size": 100})
    spec = spec.model_copy(update={"preparation": plain.preparation, "training": plain.training})
    whole = replace(data, splits=(Split(ALL, NONE, NONE),) * 3)
    assert refused(Policy(min_rows=7, rows_per_rank=None), spec, whole).field == "tuning"


def data_of(inputs: torch.Tensor, women: tuple[int, ...]) -> SiteData:
    covariates = 1 - members(*women).double()
    return SiteData(Samples(inputs, torch.arange(12.0).double()), SPLITS, covariates, fewest=2)


def test_covariates_are_not_summed_over_all_but_a_few() -> None:
    """The sums of a column that one sample lacks, and of one that none lacks, differ by that sample's covariates."""
    inputs = torch.arange(24.0).reshape(12, 2)
    inputs[1, 0] = math.nan
    summed = in_memory(data_of(inputs, WOMEN).summed(3).inputs)
    assert summed[:, 0].isnan().all()
    assert not summed[:, 1].isnan().any()


def test_a_column_that_few_held_out_samples_have_is_missing_in_every_fold() -> None:
    """A fold without sample 0 and the last one with it would differ by its value."""
    inputs = torch.arange(24.0).reshape(12, 2)
    inputs[[1, 2, 3], 0] = math.nan
    data = data_of(inputs, WOMEN)
    for fold in range(4):
        assert in_memory(data.summed(fold).inputs).isnan().all(0).tolist() == [True, False]
    assert in_memory(data.rows(3).inputs).isnan().sum() == 3, "the site itself prepares by what it has"


def test_a_kept_level_that_few_samples_have_is_refused() -> None:
    """Sums of products with a level's column are sums over its samples alone."""
    policy, plan = Policy(min_rows=2, rows_per_rank=None), make_plan(KEPT, build_model(KEPT))
    for women in (WOMEN, ()):
        admitted(policy, KEPT, plan, data_of(torch.ones(12, 1), women))
    for few in ((0,), (0, 1, 4, 5, 8), (0, 1, 2, 4, 5, 6, 8, 9)):
        assert refused(policy, KEPT, data_of(torch.ones(12, 1), few)).field == "preparation.harmonise.keep"


def test_kept_columns_that_differ_by_few_samples_are_refused() -> None:
    """The sums of women less those of a ward would be these few."""
    spec = kept("sex", "ward", data=SCHEMA | {"categorical": {"sex": ["F", "M"], "ward": ["a", "b"]}})
    plan = make_plan(spec, build_model(spec))
    for ward, few in ((WOMEN, False), ((2, 3, 6, 7, 10, 11), False), ((0, 1, 4, 5, 8, 10), True)):
        covariates = 1 - torch.cat([members(*WOMEN), members(*ward)], 1).double()
        data = replace(data_of(torch.ones(12, 1), WOMEN), covariates=covariates)
        policy = Policy(min_rows=2, min_level=MinLevel(count=3 if few else 2), rows_per_rank=None)
        if few:
            error = refused(policy, spec, data)
            assert error.field == "preparation.harmonise.keep"
            policy = policy.mended(error.change)
        admitted(policy, spec, plan, data)


def test_products_with_kept_columns_are_counted_for_what_a_fold_holds_out() -> None:
    """One kept column: of the four samples of a fold they say as much as one row would, and two numbers of eight."""
    spec, data = kept("sex", model={"name": "linear"}), data_of(torch.ones(12, 1), WOMEN)
    policy = Policy(min_rows=2, min_level=MinLevel(count=1))
    admitted(policy.mended({"rows_per_rank": 4}), spec, make_plan(spec, build_model(spec)), data)
    error = refused(policy.mended({"rows_per_rank": 5}), spec, data)
    assert (error.field, error.change) == ("preparation.harmonise.keep", {"rows_per_rank": 4})


def test_a_gap_of_few_beside_kept_columns_is_refused() -> None:
    """Covariates of those who have a column, and of all, tell those who lack it; held back it would be a constant."""
    policy, inputs = Policy(min_rows=2, rows_per_rank=None), torch.arange(12.0)[:, None]
    inputs[[0, 4, 8]] = math.nan
    assert refused(policy, KEPT, data_of(inputs, WOMEN)).field == "preparation.harmonise.keep"
    inputs[[1, 5, 9]] = math.nan
    admitted(policy, KEPT, make_plan(KEPT, build_model(KEPT)), data_of(inputs, WOMEN))


def test_what_too_few_samples_have_is_counted_once_for_all_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(12, 3, dtype=torch.float64)
    inputs[::5, 1] = math.nan
    site, counted = SiteData(Samples(inputs, torch.zeros(12)), SPLITS), list[int]()

    def counting(*values: Any) -> torch.Tensor:
        counted.append(1)
        return fewest_behind(*values)

    monkeypatch.setattr(site_data, "fewest_behind", counting)
    site.summed(0)
    of_one = len(counted)
    for fold in range(1, 4):
        site.summed(fold)
    assert len(counted) == of_one > 0
