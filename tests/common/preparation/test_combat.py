"""Sites that harmonise together do as one would with all rows in a table, and remove what was put there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from rankdad.common.preparation import Fit, OwnFit, Preparing, Rows, in_memory
from rankdad.common.spec import RunSpec
from tests.common.preparation.federated import Array, applied, prepared, rows, table_spec
from tests.conftest import examples, sampled

FEATURES = 12


def combat_spec(keep: int = 2, features: int = FEATURES, data: dict[str, Any] | None = None, **combat: Any) -> RunSpec:
    harmonise = {"name": "combat", "keep": [f"k{i}" for i in range(keep)]} | combat
    return table_spec(features, data=data, harmonise=harmonise)


def cohort(sizes: tuple[int, ...], seed: int = 0, features: int = FEATURES, keep: int = 2) -> list[tuple[Array, Array]]:
    """Each site's features and covariates (age, then 0 or 1), with site effects and effects of the covariates."""
    rng = np.random.default_rng(seed)
    slopes, base = rng.normal(0, 1, (keep, features)) / 20, rng.normal(100, 30, features)
    sites = []
    for size in sizes:
        x = np.column_stack([rng.normal(50 + 10 * rng.normal(), 12, size), rng.integers(0, 2, size)])[:, :keep]
        noise = rng.standard_normal((size, features)) * rng.uniform(0.6, 1.6, features)
        sites.append((base + x @ slopes + rng.normal(1, 1, features) + noise, x))
    return sites


def pooled_combat(sites: list[tuple[Array, Array]], empirical_bayes: bool = True) -> list[Array]:
    """ComBat as published, on one table with a dummy column per site, feature by feature."""
    y, x = np.concatenate([s[0] for s in sites]), np.concatenate([s[1] for s in sites])
    of = np.repeat(np.arange(len(sites)), [len(s[0]) for s in sites])
    design = np.column_stack([of == i for i in range(len(sites))] + [x]).astype(float)
    line, noise = np.empty_like(y), np.empty_like(y)
    deviation = np.empty(y.shape[1])
    for f in range(y.shape[1]):
        ok = ~np.isnan(y[:, f])
        b = np.linalg.lstsq(design[ok], y[ok, f], rcond=None)[0]
        deviation[f] = np.sqrt(np.mean((y[ok, f] - design[ok] @ b) ** 2))
        shares = design[ok, : len(sites)].mean(0)
        line[:, f] = shares @ b[: len(sites)] + x @ b[len(sites) :]
        noise[:, f] = (y[:, f] - line[:, f]) / deviation[f]
    adjusted = []
    for i in range(len(sites)):
        z = noise[of == i]
        gamma, delta = np.nanmean(z, 0), np.nanvar(z, 0, ddof=1)
        if empirical_bayes:
            g_bar, t2, m, s2 = gamma.mean(), gamma.var(ddof=1), delta.mean(), delta.var(ddof=1)
            a, b = (2 * s2 + m**2) / s2, (m * s2 + m**3) / s2
            for f in range(y.shape[1]):
                v = z[~np.isnan(z[:, f]), f]
                n, g, d = len(v), gamma[f], delta[f]
                for _ in range(500):
                    g = (t2 * n * gamma[f] + d * g_bar) / (t2 * n + d)
                    d = (0.5 * ((v - g) ** 2).sum() + b) / (n / 2 + a - 1)
                gamma[f], delta[f] = g, d
        adjusted.append(deviation * (z - gamma) / np.sqrt(delta) + line[of == i])
    return adjusted


def sites_of(known: list[tuple[Array, Array]]) -> list[Rows]:
    return [rows(y, covariates=x) for y, x in known]


@pytest.mark.parametrize("empirical_bayes", [True, False])
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_it_is_combat_on_all_rows(keep: int, empirical_bayes: bool) -> None:
    known = cohort((30, 9, 17), keep=keep)
    _, _, applied = prepared(Preparing(combat_spec(keep, empirical_bayes=empirical_bayes)), sites_of(known))
    for got, expected in zip(applied, pooled_combat(known, empirical_bayes), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_it_is_combat_on_the_rows_that_have_a_feature() -> None:
    known = cohort((30, 12, 17), seed=1)
    for y, _ in known:
        y[np.random.default_rng(2).random(y.shape) < 0.15] = np.nan
    preparing = Preparing(combat_spec(data={"missing": "impute"}))
    fit, _, applied = prepared(preparing, sites_of(known))
    expected = np.concatenate(pooled_combat(known))
    assert fit.fill is not None
    np.testing.assert_allclose(fit.fill, np.nanmean(expected, 0), rtol=1e-9)
    np.testing.assert_allclose(np.concatenate(applied), np.where(np.isnan(expected), fit.fill, expected), rtol=1e-9)


def test_site_effects_go_and_those_of_kept_covariates_stay() -> None:
    rng = np.random.default_rng(3)
    slope = rng.normal(0, 0.1, FEATURES)
    sites = []
    for add, multiply, age in ((0, 1, 40), (3, 2, 60), (-5, 0.5, 70)):
        x = rng.normal(age, 10, (400, 1))
        sites.append((10 + x * slope + add + multiply * rng.standard_normal((400, FEATURES)), x))
    _, _, applied = prepared(Preparing(combat_spec(1)), sites_of(sites))
    left = [y - x * slope for y, (_, x) in zip(applied, sites, strict=True)]
    means, deviations = np.array([part.mean(0) for part in left]), np.array([part.std(0) for part in left])
    assert np.ptp(means, 0).max() < 0.3
    assert (deviations.max(0) / deviations.min(0)).max() < 1.1
    raw = np.concatenate([y for y, _ in sites])
    ages = np.concatenate([x for _, x in sites])
    fits = [np.polyfit(ages[:, 0], table, 1)[0] for table in (raw, np.concatenate(applied))]
    assert np.abs(fits[0] - slope).max() > 0.03  # age differs between sites: their effects look like its own
    assert np.abs(fits[1] - slope).max() < 0.015


@settings(max_examples=examples(15))
@given(st.permutations(range(3)), st.integers(0, 2**32 - 1), st.booleans())
def test_neither_order_nor_a_site_without_rows_matters(order: list[int], seed: int, gaps: bool) -> None:
    sites = sites_of(cohort((8, 1, 5), seed))
    preparing = Preparing(combat_spec(data={"missing": "impute"} if gaps else None))
    none = rows(np.zeros((0, FEATURES)), covariates=np.zeros((0, 2)))
    first = preparing.fitted(sites).tensors()
    again = preparing.fitted([sites[i] for i in order] + [none]).tensors()
    for name, value in first.items():
        torch.testing.assert_close(again[name], value, rtol=1e-9, atol=1e-12)
    totals: dict[str, torch.Tensor] = {}
    for stage in preparing.stages:
        totals[stage] = preparing.contribution(stage, totals, none)
        assert not totals[stage].any()


def test_covariates_that_repeat_each_other_are_one() -> None:
    known = cohort((20, 15), seed=4, keep=2)
    repeated = []
    for site, (y, x) in enumerate(known):
        repeated.append((y, np.column_stack([x, 3 * x[:, 0] - x[:, 1] + 5, np.full(len(x), site)])))
    _, _, applied = prepared(Preparing(combat_spec(4)), sites_of(repeated))
    for got, expected in zip(applied, pooled_combat(known), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_what_does_not_vary_within_sites_stays() -> None:
    known = cohort((20, 15), seed=5)
    for i, (y, x) in enumerate(known):
        y[:, 0], y[:, 1], y[:, 2] = 0.1, 7.3 * i, x[:, 0] / 3
    fit, _, applied = prepared(Preparing(combat_spec()), sites_of(known))
    assert fit.deviation is not None
    assert (fit.deviation == 0).tolist() == [True] * 3 + [False] * (FEATURES - 3)
    for got, (y, _) in zip(applied, known, strict=True):
        assert np.array_equal(got[:, :3], y[:, :3])


def test_a_feature_that_varies_at_other_sites_alone_keeps_its_scale() -> None:
    known = cohort((20, 15), seed=6, keep=0)
    known[0][0][:, 0] = 1e6 / 3
    for empirical_bayes in (True, False):
        spec = combat_spec(0, empirical_bayes=empirical_bayes)
        _, owns, (first, _) = prepared(Preparing(spec), sites_of(known))
        assert owns[0].spread is not None
        assert owns[0].spread[0] == 1
        assert np.ptp(first[:, 0]) < 1e-9


def test_one_row_has_no_scale_and_no_rows_no_effects() -> None:
    preparing = Preparing(combat_spec())
    sites = sites_of(cohort((20, 15, 1), seed=7))
    fit, owns, _ = prepared(preparing, sites)
    assert owns[2].spread is not None
    assert owns[2].spread.eq(1).all()
    unseen = in_memory(sites[0].inputs) + 5
    for own in (None, preparing.own(fit, rows(np.zeros((0, FEATURES)), covariates=np.zeros((0, 2))))):
        assert applied(preparing, fit, own, unseen).equal(unseen)


def test_one_site_alone_has_no_location() -> None:
    _, (own,), _ = prepared(Preparing(combat_spec()), sites_of(cohort((40,), seed=8)))
    assert own.location is not None
    assert own.location.abs().max() < 1e-10


def test_columns_of_levels_and_kept_columns_stay_and_moments_are_of_harmonised_rows() -> None:
    known = cohort((20, 15), seed=9, features=4)
    data = {"features": ["c0", "k0", "sex", "c1"], "categorical": {"sex": ["f", "m"]}}
    harmonise = {"name": "combat", "keep": ["k0", "sex"]}
    spec = table_spec(0, data=data, harmonise=harmonise, standardise="federated")
    sites = []
    for y, x in known:
        age, levels = x[:, 0], np.column_stack([x[:, 1], 1 - x[:, 1]])
        inputs, covariates = np.column_stack([y[:, 0], age, levels, y[:, 1]]), np.column_stack([age, levels[:, 1]])
        sites.append(rows(inputs, covariates=covariates))
    _, _, applied = prepared(Preparing(spec), sites)
    got = np.concatenate(applied)
    expected = np.concatenate(pooled_combat([(y[:, :2], x) for y, x in known]))
    np.testing.assert_allclose(got[:, [0, 4]], (expected - expected.mean(0)) / expected.std(0), atol=1e-8)
    assert np.array_equal(got[:, 2:4], np.concatenate([in_memory(site.inputs)[:, 2:4] for site in sites]))
    ages = np.concatenate([x[:, 0] for _, x in known])
    np.testing.assert_allclose(got[:, 1], (ages - ages.mean()) / ages.std(), atol=1e-10)


def test_covariates_are_all_there() -> None:
    preparing = Preparing(combat_spec())
    (y, x), *_ = cohort((5,))
    for wrong in (None, x[:, :1], np.where(x > 60, np.nan, x) * [np.nan, 1]):
        with pytest.raises(ValueError, match="covariates: got"):
            preparing.contribution("site-effects", {}, rows(y, covariates=wrong))


def test_totals_that_no_rows_have_are_an_error_or_finite() -> None:
    preparing = Preparing(combat_spec())
    site = sites_of(cohort((5,)))[0]
    sane = preparing.contribution("site-effects", {}, site)
    for value in (1e300, 1e-300):
        for place in range(len(sane)):
            wild = sane.clone()
            wild[place] = value
            if preparing.check("site-effects", wild) is None:
                try:
                    squares = preparing.contribution("residuals", {"site-effects": wild}, site)
                except ValueError:
                    continue
                assert squares.isfinite().all()


@pytest.mark.parametrize("keep", [0, 2])
def test_a_fit_is_saved_and_read_again(keep: int) -> None:
    spec = combat_spec(keep)
    preparing, sites = Preparing(spec), sites_of(cohort((9, 8), keep=keep))
    fit, owns, found = prepared(preparing, sites)
    again, own = Fit.of(spec, load(save(fit.tensors()))), OwnFit.of(spec, load(save(owns[0].tensors())))
    site = sites[0]
    assert np.array_equal(applied(preparing, again, own, site.inputs, site.covariates), found[0])
    with pytest.raises(ValueError, match="slopes"):
        Fit.of(combat_spec(1), fit.tensors())


@pytest.mark.slow
@pytest.mark.parametrize(("gaps", "seed"), sampled([(gaps, seed) for seed in range(5) for gaps in (True, False)], 10))
def test_whatever_one_site_may_send_the_others_sums_are_numbers_and_so_is_the_fit(gaps: bool, seed: int) -> None:
    """Sums at their limits, and sums that contradict one another, where that is not refused."""
    data = {"missing": "impute"} if gaps else None
    harmonise = {"name": "combat", "keep": ["k0", "k1"]}
    preparing = Preparing(table_spec(FEATURES, data=data, harmonise=harmonise, standardise="federated"))
    honest, liar = sites_of(cohort((7, 1)))
    totals: dict[str, torch.Tensor] = {}
    generator, lies = np.random.default_rng(seed), 0
    claimed = 4_000_000_000  # rows in its hello
    for stage in preparing.stages:
        true = preparing.contribution(stage, totals, honest)
        told = preparing.contribution(stage, totals, liar)
        for place in generator.permutation(len(told))[:30]:
            for value in generator.permutation([10.0**power for power in (*range(-300, 300, 15), 99, 114, 259, 269)]):
                wild = told.clone()
                wild[place] = float(value * generator.choice([-1, 1]))
                if preparing.check(stage, wild, claimed) is None:
                    told, lies = wild, lies + 1
                    break
        totals[stage] = true + told
    assert lies > 25
    fit = preparing.fit(totals)
    assert applied(preparing, fit, preparing.own(fit, honest), honest.inputs, honest.covariates).isfinite().all()
