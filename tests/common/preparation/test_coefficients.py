"""Coefficients from sums over rows against statsmodels on the rows themselves."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from scipy import stats
from statsmodels.stats.multitest import multipletests
from torch import Tensor

from rankdad.common.documents import validate
from rankdad.common.preparation import Preparing, Rows
from rankdad.common.preparation.coefficients import OWN, Coefficients
from rankdad.common.preparation.solving import Solving
from rankdad.common.spec import RunSpec
from rankdad.remote.results.coefficients import (
    _critical,
    _two_sided_t,
    as_json,
    as_table,
    opposite_coefficients,
    uncompared_sites,
)
from tests.conftest import sampled

SIZES = {"alpha": 640, "beta": 210, "gamma": 24}
DATA = {
    **{"reader": "csv", "file": "t.csv", "label": "y", "missing": "refuse"},
    **{"features": ["age", "bp", "sex", "stage"], "categorical": {"sex": ["f", "m"], "stage": ["1", "2", "3"]}},
}
TASKS: dict[str, dict[str, Any]] = {
    "numbers": {"name": "regression"},
    "two classes": {"name": "classification", "classes": 2},
    "three classes": {"name": "classification", "classes": 3},
}


def spec_of(task: str, **changes: Any) -> RunSpec:
    data = DATA | ({} if task == "numbers" else {"values": ["a", "b", "c"][: TASKS[task]["classes"]]})
    return validate(
        RunSpec,
        {
            **{"name": "fit", "task": TASKS[task], "data": data, "preparation": {"standardise": "federated"}},
            **{"federation": {"sites": list(SIZES)}},
            **changes,
        },
    )


def tables(task: str) -> dict[str, pd.DataFrame]:
    """Three sites of unequal size; the last has one class alone."""
    drawn = np.random.default_rng(3)
    found = {}
    for site, count in SIZES.items():
        age, bp = drawn.normal(60, 10, count).round(), drawn.normal(130, 20, count).round()
        sex, stage = drawn.integers(0, 2, count), drawn.integers(0, 3, count)
        score = 0.06 * (age - 60) + 0.01 * (bp - 130) + 0.5 * sex - 0.4 * (stage == 2)
        if task == "numbers":
            y = 30 + 2 * score + drawn.normal(0, 2, count)
        elif task == "two classes":
            y = (drawn.random(count) < 1 / (1 + np.exp(-score))).astype(float)
        else:
            y = np.argmax(np.stack([0 * score, score, -0.5 * score + 0.3]) + drawn.gumbel(size=(3, count)), 0)
        if site == "gamma" and task != "numbers":
            y[:] = 0
        found[site] = pd.DataFrame({"age": age, "bp": bp, "sex": sex, "stage": stage, "y": y})
    return found


def rows_of(task: str, table: pd.DataFrame) -> Rows:
    """What a site reads of its table: levels have a column each."""
    levels = [table["sex"] == 0, table["sex"] == 1, *(table["stage"] == stage for stage in range(3))]
    columns = np.stack([table["age"], table["bp"], *levels], 1).astype(float)
    labels = torch.tensor(table["y"].to_numpy())
    return Rows(torch.tensor(columns), labels if task == "numbers" else labels.long())


def solved(spec: RunSpec, rows: dict[str, Rows], fewest: int = 1) -> tuple[Coefficients, dict[str, Coefficients]]:
    """The pooled coefficients, and those of each site: what an aggregator makes of all sites' sums."""
    preparing, totals = Preparing(spec), dict[str, Tensor]()
    for stage in preparing.stages:
        sent = {
            site: preparing.contribution(stage, totals, own, None, fewest, tells=True) for site, own in rows.items()
        }
        totals[stage] = reduce(add, sent.values())
        if stage == OWN:
            own = preparing.solving.of_sites(sent)
    found = preparing.coefficients(totals)
    assert found is not None
    return found, own


def design(table: pd.DataFrame) -> Any:
    dummies = pd.get_dummies(table.astype({"sex": "category", "stage": "category"}).drop(columns="y"), drop_first=True)
    return sm.add_constant(dummies.astype(float))


def told(spec: RunSpec, found: Coefficients) -> dict[str, list[float]]:
    rows = as_json(spec, found)["coefficients"]
    return {name: [row[name] for row in rows] for name in rows[0] if name not in ("line", "name")}


def by_statsmodels(task: str, labels: Any, columns: Any) -> Any:
    model = {"numbers": sm.OLS, "two classes": sm.Logit, "three classes": sm.MNLogit}[task](labels, columns)
    return model.fit() if task == "numbers" else model.fit(disp=0, tol=1e-12, maxiter=100)


@pytest.mark.parametrize("task", sampled(TASKS, every=3))
def test_coefficients_are_those_of_statsmodels_on_all_rows_to_six_digits(task: str) -> None:
    """Of more classes each is compared with the first."""
    spec, found = spec_of(task), tables(task)
    pooled, own = solved(spec, {site: rows_of(task, table) for site, table in found.items()})
    everything = pd.concat(found.values())
    for fit, table in [(pooled, everything), (own["alpha"], found["alpha"]), (own["beta"], found["beta"])]:
        expected, figures = by_statsmodels(task, table["y"], design(table)), told(spec, fit)
        ends = expected.conf_int().to_numpy().T
        known = {"estimate": expected.params, "se": expected.bse, "statistic": expected.tvalues, "p": expected.pvalues}
        for name, values in {**known, "low": ends[0], "high": ends[1]}.items():
            assert figures[name] == pytest.approx(list(np.asarray(values).T.reshape(-1)), rel=1e-6), name
        assert fit.freedom == expected.df_resid
        r2 = expected.rsquared if task == "numbers" else expected.prsquared
        assert fit.determination == pytest.approx(r2, rel=1e-6)
        if task == "two classes":
            assert figures["odds_ratio"] == pytest.approx(list(np.exp(expected.params)), rel=1e-6)
    assert not pooled.problem
    assert own.get("gamma", pooled).problem == ("" if task == "numbers" else "separated")


def changed(rows: Rows, **columns: Any) -> Rows:
    assert isinstance(rows.inputs, Tensor)
    inputs = rows.inputs.clone()
    for place, values in columns.items():
        inputs[:, int(place.removeprefix("at"))] = values(inputs, rows.labels)
    return Rows(inputs, rows.labels)


@pytest.mark.parametrize(
    ("task", "problem", "change"),
    [
        ("numbers", "collinear", {"at1": lambda inputs, labels: 3 * inputs[:, 0] + 1}),
        ("two classes", "separated", {"at1": lambda inputs, labels: labels + 0.01 * inputs[:, 0]}),
        pytest.param(
            *("two classes", "separated", {"at1": lambda inputs, labels: (labels > 0).double() * (inputs[:, 0] > 60)}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_where_there_is_no_such_fit_the_ridge_stands_without_errors(task: str, problem: str, change: Any) -> None:
    spec = spec_of(task)
    pooled, _ = solved(spec, {"alpha": changed(rows_of(task, tables(task)["alpha"]), **change)})
    assert pooled.problem == problem
    figures = as_json(spec, pooled)
    assert figures["problem"] == problem
    assert figures["why"]
    assert all(row["estimate"] is not None for row in figures["coefficients"])
    assert {row[name] for row in figures["coefficients"] for name in ("se", "p", "low")} == {None}
    if problem == "collinear":
        assert {1, 2} <= set(pooled.collinear)


@pytest.mark.parametrize(
    ("task", "problem", "own"), [("three classes", "no-class", "separated"), ("two classes", "no-level", "")]
)
def test_rows_without_a_class_or_a_first_level_are_called_so_and_a_site_does_not_count_its_own(
    task: str, problem: str, own: str
) -> None:
    """They were "told apart without a mistake", or had columns that follow from others."""
    spec, table = spec_of(task), tables(task)["alpha"]
    table["y" if problem == "no-class" else "stage"] = 0 if problem == "no-class" else table["stage"].clip(1)
    pooled, sites = solved(spec, {"alpha": rows_of(task, table)})
    assert (pooled.problem, sites["alpha"].problem) == (problem, own)
    assert ("stage" in as_json(spec, pooled)["why"]) == (problem == "no-level")


def test_a_loss_that_no_rows_have_leads_to_no_coefficients() -> None:
    """Of a lie R² was −4.5e216, and its coefficients stood in the report."""
    spec, found = spec_of("two classes"), tables("two classes")
    honest = Solving.sums

    def lying(self: Solving, stage: str, *given: Any) -> dict[str, Tensor]:
        told = honest(self, stage, *given)
        return told | ({"loss": torch.tensor(1e219, dtype=torch.float64)} if stage.startswith("unpenalised") else {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Solving, "sums", lying)
        pooled, _ = solved(spec, {"alpha": rows_of("two classes", found["alpha"])})
    figures = as_json(spec, pooled)
    assert (figures["problem"], figures["r2"], figures["coefficients"]) == ("impossible-sums", None, [])


@pytest.mark.slow
def test_opposite_effects_are_those_that_bonferroni_leaves_of_statsmodels_p_values() -> None:
    drawn, found = np.random.default_rng(0), tables("two classes")
    del found["gamma"]
    for site, of_age, of_bp in [("alpha", 0.08, 0.05), ("beta", -0.08, -0.02)]:
        score = of_age * (found[site]["age"] - 60) + of_bp * (found[site]["bp"] - 130)
        found[site]["y"] = (drawn.random(len(score)) < 1 / (1 + np.exp(-score))).astype(float)
    spec = spec_of("two classes")
    _, own = solved(spec, {site: rows_of("two classes", table) for site, table in found.items()})
    fits = {site: sm.Logit(table["y"], design(table)).fit(disp=0) for site, table in found.items()}
    signs = np.stack([np.sign(fit.params[1:]) for fit in fits.values()])
    p_values = np.stack([fit.pvalues[1:] for fit in fits.values()])
    sure = multipletests(p_values.ravel(), 0.05, "bonferroni")[0].reshape(p_values.shape)
    for certain, expected in [(p_values < 0.05, [True, True]), (sure, [True, False])]:
        assert ((signs * certain).min(axis=0) * (signs * certain).max(axis=0) < 0)[:2].tolist() == expected
    named, looked_at = opposite_coefficients(
        {"sites": {site: as_json(spec, fit, own=True) for site, fit in own.items()}}
    )
    assert (list(named), looked_at) == (["age"], p_values.size)


LEVELS = {"intercept", "stage=2", "stage=3"}
SPOILT: dict[str, Any] = {
    # what a site's table becomes, statsmodels' columns that are left out, and those of which none has a coefficient
    "separated": (lambda table: table.assign(stage=separating(table)), ["stage_2"], {"stage=3"}),
    "collinear": (lambda table: table.assign(bp=3 * table["age"] + 1), ["bp"], {"intercept", "age", "bp"}),
    "no first level": (lambda table: table.assign(stage=table["stage"].clip(1)), [], LEVELS),
}  # fmt: skip


def separating(table: pd.DataFrame) -> Any:
    """Of the last stage there is the last row of the last class alone."""
    stage = table["stage"].clip(upper=1)
    stage.iloc[int(np.flatnonzero(table["y"] == table["y"].max())[-1])] = 2
    return stage


@pytest.mark.parametrize("task", sampled(TASKS, every=3))
def test_a_site_leaves_out_a_column_that_spoils_its_fit_and_the_others_are_those_of_statsmodels(task: str) -> None:
    """One row of a level that only the ill have took all coefficients of a hospital with an opposite effect."""
    spec, found = spec_of(task), tables(task)
    spoilt = {name: SPOILT[name][0](found["beta"]) for name in SPOILT if (task, name) != ("numbers", "separated")}
    _, own = solved(spec, {site: rows_of(task, one) for site, one in ({"alpha": found["alpha"]} | spoilt).items()})
    for spoiling, table in spoilt.items():
        _, without, lacking = SPOILT[spoiling]
        figures = as_json(spec, own[spoiling], own=True)
        assert (figures["problem"], figures["why"]) == ("", "")
        columns = sm.add_constant(
            pd.get_dummies(table.drop(columns="y"), columns=["sex", "stage"], drop_first=True).astype(float)
        ).drop(columns=without)
        expected = by_statsmodels(task, table["y"], columns)
        known = [np.array(one).reshape(len(columns.columns), -1).T for one in (expected.params, expected.bse)]
        names = ["intercept" if name == "const" else name for name in columns.columns]
        names = [{"sex_1": "sex=m", "stage_1": "stage=2", "stage_2": "stage=3"}.get(name, name) for name in names]
        lines = list(dict.fromkeys(row["line"] for row in figures["coefficients"]))
        for row in figures["coefficients"]:
            if row["name"] in lacking:
                assert row["estimate"] is row["p"] is None
                continue
            at = lines.index(row["line"]), names.index(row["name"])
            assert (row["estimate"], row["se"]) == pytest.approx([one[at] for one in known], rel=1e-5, abs=1e-7)
        alpha = as_json(spec, own["alpha"])
        none, some = uncompared_sites({"pooled": alpha, "sites": {"alpha": alpha, "beta": figures}}, list(SIZES))
        assert none == ["gamma"]
        assert {name.split(": ")[-1] for name in some["beta"]} == lacking - {"intercept"}


@pytest.mark.parametrize("standardise", ["federated", "site"])
def test_coefficients_say_whose_units_they_are_in(standardise: str) -> None:
    spec, found = spec_of("numbers", preparation={"standardise": standardise}), tables("numbers")
    pooled, _ = solved(spec, {site: rows_of("numbers", table) for site, table in found.items()})
    figures = as_json(spec, pooled)
    assert figures["units"] == ("site SD" if standardise == "site" else "own")
    assert {row["units"] for row in as_table({"pooled": figures})} == {figures["units"]}


def test_more_columns_than_a_third_of_the_patients_have_no_errors() -> None:
    spec = spec_of("numbers")
    rows = {site: rows_of("numbers", table.head(4)) for site, table in tables("numbers").items()}
    pooled, own = solved(spec, rows)
    assert pooled.problem == "few-patients"
    assert not own


@pytest.mark.slow
def test_a_column_that_never_changes_has_no_coefficient_and_spoils_no_other() -> None:
    spec, table = spec_of("two classes"), tables("two classes")["alpha"]
    rows = changed(rows_of("two classes", table), at1=lambda inputs, labels: torch.full((len(inputs),), 7.0))
    pooled, _ = solved(spec, {"alpha": rows})
    expected, figures = by_statsmodels("two classes", table["y"], design(table).drop(columns="bp")), told(spec, pooled)
    kept = [place for place, estimate in enumerate(figures["estimate"]) if estimate is not None]
    assert len(kept) == len(figures["estimate"]) - 1
    assert [figures["se"][place] for place in kept] == pytest.approx(list(expected.bse), rel=1e-6)


def test_a_site_tells_nothing_of_its_own_rows_where_its_policy_does_not_let_it() -> None:
    spec = spec_of("numbers")
    preparing, totals = Preparing(spec), dict[str, Tensor]()
    rows = rows_of("numbers", tables("numbers")["alpha"])
    for stage in preparing.stages:
        totals[stage] = preparing.contribution(stage, totals, rows, None, 1, tells=False)
    assert preparing.solving.of_sites({"alpha": totals[OWN]}) == {}
    assert totals[OWN][0] == 640
    joined = preparing.joined(OWN, [preparing.contribution(OWN, totals, rows, None, 1, tells=True)[None]] * 2)
    assert joined[0, 0] == 1280
    assert not joined[0, 1:].any()  # a region passes on no site's


def test_p_values_are_those_of_scipy_and_no_size_ends_them() -> None:
    for freedom in (1, 7, 873):
        assert _critical(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
        for size in (0.0, 0.5, -3.0, 40.0):
            assert _two_sided_t(size, freedom) == pytest.approx(2 * stats.t.sf(abs(size), freedom), rel=1e-8)
        assert _two_sided_t(1e200, freedom) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("fewest", range(4, 40, 3))
def test_standard_errors_are_of_all_rows_or_missing_with_the_reason(fewest: int) -> None:
    """A site keeps back a curvature that few of its patients are behind: without its rows errors were larger."""
    spec, found = spec_of("two classes"), tables("two classes")
    pooled, _ = solved(spec, {site: rows_of("two classes", table) for site, table in found.items()}, fewest)
    if pooled.problem:
        assert pooled.problem == "held-back", "the columns do not tell the classes apart"
        assert told(spec, pooled)["se"] == [None] * len(told(spec, pooled)["se"])
    else:
        everything = pd.concat(found.values())
        expected = by_statsmodels("two classes", everything["y"], design(everything))
        assert told(spec, pooled)["se"] == pytest.approx(list(expected.bse), rel=1e-5)


def few_values(count: int, seed: int, steep: float) -> pd.DataFrame:
    """A site with a skewed column, whose outcome follows its columns the more closely the steeper it is."""
    drawn = np.random.default_rng(seed)
    age, bp = drawn.normal(60, 10, count).round(), np.exp(drawn.normal(2.6, 1, count)).round(2)
    sex, stage = drawn.integers(0, 2, count), drawn.integers(0, 3, count)
    score = steep * (0.04 * (age - 60) + 0.02 * (bp - 13) - 1)
    y = (drawn.random(count) < 1 / (1 + np.exp(-score))).astype(float)
    return pd.DataFrame({"age": age, "bp": bp, "sex": sex, "stage": stage, "y": y})


@pytest.mark.slow
def test_a_converged_fit_is_not_held_back_for_a_difference_of_rounding() -> None:
    """Its curvature was asked for a step of 1e-12 further on, and too few rows seemed to be behind that difference."""
    sizes = {"alpha": 260, "beta": 180, "gamma": 95}
    found = {site: few_values(count, seed, 1.0) for seed, (site, count) in enumerate(sizes.items(), 22)}
    pooled, own = solved(spec_of("two classes"), {site: rows_of("two classes", one) for site, one in found.items()}, 8)
    everything = pd.concat(found.values())
    expected = by_statsmodels("two classes", everything["y"], design(everything))
    assert told(spec_of("two classes"), pooled)["se"] == pytest.approx(list(expected.bse), rel=1e-6)
    assert set(own) == set(found)


@pytest.mark.slow
@pytest.mark.parametrize(("fewest", "tells"), [(1, True), (8, False)])
def test_a_site_keeps_a_fit_of_its_own_that_few_of_its_patients_are_behind(fewest: int, tells: bool) -> None:
    """It told the standard errors of a curvature that it would keep back from the pooled fit."""
    found = {"alpha": few_values(260, 1, 1.0), "beta": few_values(60, 8, 9.0)}
    rows = {site: rows_of("two classes", table) for site, table in found.items()}
    own = solved(spec_of("two classes"), rows, fewest)[1]
    assert own["alpha"].errors[0, 1] > 0
    assert ("beta" in own) == tells
