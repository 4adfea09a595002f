"""Sites that standardise together do as one would with all rows in a table."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from rankdad.common.errors import SpecError
from rankdad.common.preparation import Fit, OwnFit, Preparing, Rows
from tests.common.preparation.federated import Array, applied, prepared, rows, table_spec
from tests.conftest import examples, run_spec

RNG = np.random.default_rng


def table(count: int, seed: int = 0) -> Array:
    """Columns: ordinary, a mean far beyond the deviation, tiny, constant, constant where nothing is exact."""
    z = RNG(seed).standard_normal((count, 3))
    constant, third = np.full((count, 1), -7.0), np.full((count, 1), 0.1)
    return np.hstack([z * [3, 1, 1e-9] + [5, 1e9, 1e-9], constant, third])


def test_standardisation_is_that_of_pandas_on_all_rows() -> None:
    pooled = table(60)
    sites = [rows(pooled[:7]), rows(pooled[7:30]), rows(pooled[:0]), rows(pooled[30:])]
    fit, _, applied = prepared(Preparing(table_spec(5, standardise="federated")), sites)
    frame = pd.DataFrame(pooled)
    deviation = frame.std(ddof=0)
    deviation[[3, 4]] = 1.0
    expected = (frame - frame.mean()) / deviation
    assert np.abs(np.concatenate(applied) - expected.to_numpy()).max() < 1e-6
    assert fit.scale is not None
    assert fit.scale[3:].tolist() == [math.inf, math.inf]


def test_a_mean_of_a_billion_deviations_costs_no_digits() -> None:
    pooled = 1e9 + RNG(1).integers(-1, 2, (5000, 1)).astype(np.float64)
    fit = Preparing(table_spec(1, standardise="federated")).fitted([rows(part) for part in np.split(pooled, 5)])
    assert fit.mean is not None
    assert fit.scale is not None
    assert abs(fit.mean.item() - pooled.mean()) < 2e-7
    assert abs(fit.scale.item() - (pooled - 1e9).std()) < 1e-12


@settings(max_examples=examples(25))
@given(st.lists(st.integers(0, 3), min_size=24, max_size=24), st.integers(0, 2**32 - 1))
def test_it_does_not_matter_which_site_has_which_row(owner: list[int], seed: int) -> None:
    pooled, labels = table(24, seed), RNG(seed).normal(50, 2, 24)
    pooled[RNG(seed).random(pooled.shape) < 0.2] = np.nan
    of = np.array(owner)
    preparing = Preparing(table_spec(5, data={"missing": "impute"}, standardise="federated"))
    one = preparing.fitted([rows(pooled, labels)])
    four = preparing.fitted([rows(pooled[of == site], labels[of == site]) for site in range(4)])
    for name, value in one.tensors().items():
        torch.testing.assert_close(four.tensors()[name], value, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("shape", "axes", "channels"),
    [((4,), (0,), 4), ((5, 3), (0, 1), 3), ((3, 4, 5), (0, 2, 3), 3), ((2, 3, 4, 2), (0, 2, 3, 4), 2)],
)
def test_a_channel_is_a_column_a_series_feature_or_the_first_axis(
    shape: tuple[int, ...], axes: tuple[int, ...], channels: int
) -> None:
    x = RNG(2).normal(3, 2, (12, *shape)).astype(np.float32)
    spec = run_spec(data={"shape": list(shape)}, preparation={"standardise": "federated"})
    sites = [Rows(torch.from_numpy(part), torch.zeros(len(part), dtype=torch.int64)) for part in (x[:5], x[5:])]
    fit, _, applied = prepared(Preparing(spec), sites)
    assert fit.mean is not None
    assert fit.mean.shape == (channels,)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(axes, keepdims=True)) / wide.std(axes, keepdims=True)
    np.testing.assert_allclose(np.concatenate(applied), expected, atol=1e-12)


def test_padding_of_a_series_counts_for_nothing_and_stays() -> None:
    x = RNG(3).normal(3, 2, (6, 5, 2))
    x[2:, 3:] = np.nan
    spec = run_spec(data={"shape": [5, 2]}, preparation={"standardise": "federated"})
    site = Rows(torch.from_numpy(x), torch.zeros(6, dtype=torch.int64))
    _, _, (applied,) = prepared(Preparing(spec), [site])
    np.testing.assert_allclose(applied, (x - np.nanmean(x, (0, 1))) / np.nanstd(x, (0, 1)), atol=1e-12)


def test_what_is_missing_becomes_the_mean_of_all_sites_and_levels_stay_levels() -> None:
    first = np.array([[1.0, 1, 0, np.nan], [3, 0, 1, np.nan], [np.nan, np.nan, np.nan, np.nan]])
    second = np.array([[8.0, 1, 0, np.nan]])
    data = {"features": ["c0", "sex", "c1"], "categorical": {"sex": ["f", "m"]}, "missing": "impute"}
    for standardise, mean, scale in (("none", 0, 1), ("federated", 4, np.std([1, 3, 8]))):
        spec = table_spec(0, data=data, standardise=standardise)
        _, _, applied = prepared(Preparing(spec), [rows(first), rows(second)])
        assert applied[0][2].tolist() == pytest.approx([(4 - mean) / scale, 2 / 3, 1 / 3, 0])
        assert applied[1][0].tolist() == pytest.approx([(8 - mean) / scale, 1, 0, 0])


def test_a_site_by_itself() -> None:
    sites = [rows(table(20, 1)), rows(10 * table(30, 2)), rows(table(0))]
    preparing = Preparing(table_spec(5, standardise="site"))
    assert preparing.stages == ("labels", "label-squares")
    fit, owns, found = prepared(preparing, sites)
    for part in found[:2]:
        np.testing.assert_allclose(part[:, :3].std(0), 1, atol=1e-9)
    assert owns[2].tensors() == {}
    unseen = torch.from_numpy(table(4, 3))
    assert applied(preparing, fit, owns[2], unseen).equal(unseen)


def test_stages_are_those_that_are_needed() -> None:
    image = {"shape": [1, 4, 4]}
    weighted = {"name": "classification", "classes": 2, "class_weights": "balanced"}
    assert Preparing(run_spec(data=image)).stages == ()
    assert Preparing(run_spec(data=image, task=weighted)).stages == ("labels",)
    assert Preparing(run_spec(data=image, preparation={"standardise": "federated"})).stages == ("sums", "squares")
    assert Preparing(table_spec(2, data={"missing": "impute"})).stages == ("labels", "label-squares", "sums")
    with pytest.raises(SpecError, match="tokens"):
        Preparing(run_spec(data={"shape": [4], "tokens": 9}, preparation={"standardise": "site"}))


def test_fewer_rows_than_may_leave_a_site_do_not() -> None:
    preparing = Preparing(table_spec(2, data={"missing": "impute"}, standardise="federated"))
    inputs = np.array([[1.0, 5.0], [2.0, np.nan], [3.0, np.nan]])
    left = preparing.contribution("sums", {}, rows(inputs).of_at_least(2))
    assert left.tolist() == [3, 0, 6, 0]
    for stage in ("labels", "sums"):
        assert not preparing.contribution(stage, {}, rows(inputs, np.ones(3)).of_at_least(4)).any()


@pytest.mark.parametrize(
    ("stage", "place", "value", "said"),
    [
        ("labels", 0, -1.0, "rows: expected no number below 0"),
        ("labels", 0, 1.5, "rows: expected whole numbers"),
        ("labels", 0, 1e18, "rows: expected whole numbers"),
        ("labels", 1, float("nan"), "sum: expected numbers up to"),
        ("sums", 1, 0.5, "counts: expected whole numbers"),
        ("sums", 2, float("inf"), "sums: expected numbers up to"),
        ("squares", 3, -1e-9, "squares: expected no number below 0"),
    ],
)
def test_what_no_site_can_have_counted_is_refused(stage: str, place: int, value: float, said: str) -> None:
    preparing = Preparing(table_spec(2, standardise="federated"))
    vector = torch.zeros(preparing.size(stage), dtype=torch.float64)
    assert preparing.check(stage, vector) is None
    vector[place] = value
    assert (preparing.check(stage, vector) or "").startswith(said)


def test_numbers_too_large_to_be_squared_are_refused_where_they_are() -> None:
    preparing = Preparing(table_spec(1, standardise="federated"))
    sums = preparing.contribution("sums", {}, rows(np.array([[1e200], [-1e200]])))
    with pytest.raises(ValueError, match="squares: expected numbers up to"):
        preparing.contribution("squares", {"sums": sums}, rows(np.array([[1e200], [-1e200]])))


def test_a_fit_is_saved_and_read_again() -> None:
    spec = table_spec(5, data={"missing": "impute"}, standardise="federated")
    fit = Preparing(spec).fitted([rows(table(9), np.arange(9.0))])
    again = Fit.of(spec, load(save(fit.tensors())))
    assert (
        again.tensors().keys()
        == fit.tensors().keys()
        == {"rows", "target_mean", "target_scale", "fill", "mean", "scale"}
    )
    assert all(value.equal(fit.tensors()[name]) for name, value in again.tensors().items())
    assert (again.rows, again.target_mean) == (9, 4.0)
    with pytest.raises(ValueError, match="mean"):
        Fit.of(spec, fit.tensors() | {"mean": torch.zeros(4, dtype=torch.float64)})
    with pytest.raises(ValueError, match="other"):
        OwnFit.of(spec, {"other": torch.zeros(5)})
