"""The verdict: what a run found, in words that need no statistics, the most important first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankdad.common.spec.evaluation import Holdout, LeaveOneSiteOut
from rankdad.common.spec.tasks import Classification, Regression
from rankdad.remote.report.narrative import NAMES, baseline_name, count, listed, number, percent, rows_tested
from rankdad.remote.report.references import worth
from rankdad.remote.report.run_results import BASELINE, RunResults, finite

CLOSE = 0.1  # of a slope from 1, or an intercept from 0: as good as right


def verdict(run: RunResults) -> list[str]:
    """Return the verdict, a paragraph each; none before the first test."""
    if not run.test.get("samples"):
        return []
    regression = isinstance(run.spec.task, Regression)
    found = [" ".join([*_studied(run), *_quality(run)]), " ".join(_number(run) if regression else _risk(run))]
    return [text for text in [*found, " ".join(worth(run)), *_sites(run)] if text]


def _studied(run: RunResults) -> Iterator[str]:
    spec = run.spec
    rows, hospitals = rows_tested(run, "row"), count(len(spec.federation.sites), "hospital")
    what = _what(run)
    if isinstance(spec.evaluation, Holdout):
        tested = f"tested on {rows} that were set aside at {hospitals}"
    elif isinstance(spec.evaluation, LeaveOneSiteOut):
        tested = f"tested on {rows} of {hospitals}, each hospital by a model that has seen none of its rows"
    else:
        tested = f"tested on {rows} of {hospitals}, each row by a model that has not seen it"
    yield f"The model predicts {what}. It was {tested}."
    one = _only_outcome(run)
    if one:
        share = one["events"] / one["samples"]
        yield f"{one['events']:,} of these rows ({percent(share)}) have the outcome."
    label = run.summary.table1.get("pooled", {}).get("label", {})
    if label.get("mean") is not None and label.get("sd") is not None:
        yield f"In all tables it is {_short(label['mean'])} ± {_short(label['sd'])} (mean ± SD)."


def _what(run: RunResults) -> str:
    names, data = list(run.outcomes), run.spec.data
    label = getattr(data, "label", None)
    if _only_outcome(run):
        return f"the risk of {names[0]}"
    if isinstance(run.spec.task, Regression):
        return f"the number {label}" if isinstance(label, str) else "a number"
    kind = "classes" if isinstance(run.spec.task, Classification) else "labels"
    return f"which of {run.spec.task.outputs} {kind} a row has"


def _quality(run: RunResults) -> Iterator[str]:
    test, intervals = run.test, run.summary.metrics.intervals
    name = "mae" if isinstance(run.spec.task, Regression) else "auc"
    if name not in test:
        return
    interval, said = intervals.get(name), _short if name == "mae" else number
    within = f" (95 % interval {said(interval.low)} to {said(interval.high)})" if interval else ""
    if name == "mae":
        yield f"On average its predictions are {_short(test['mae'])} off{within}."
    else:
        which = "with the outcome above one without it" if _only_outcome(run) else "of a class above one of another"
        pairs = percent(test["auc"], int(test["auc"] > 0.985))
        yield f"It ranks a row {which} in {pairs} of pairs: AUC {number(test['auc'])}{within}."


def _risk(run: RunResults) -> Iterator[str]:
    """Yield what the model adds over today's base rate, and whether its risks can be taken at their word."""
    one = _only_outcome(run)
    if one is None:
        guess, test = finite(run.summary.metrics.baseline), run.test
        if {"accuracy"} <= guess.keys() & test.keys():
            right, guessed = percent(test["accuracy"]), percent(guess["accuracy"])
            yield f"It is right in {right} of cases; {baseline_name(run)} is in {guessed}."
        return
    if one["brier_skill"] is not None:
        skill, rate = one["brier_skill"], one["events"] / one["samples"]
        better = f"{percent(skill)} smaller" if skill > 0 else "no smaller"
        yield (
            f"The squared error of its risks (Brier score {number(one['brier'])}) is {better} than if every row were "
            f"given the base rate of {percent(rate)} ({number(one['brier_of_prevalence'])})."
        )
    yield from calibrated(one)


def calibrated(one: dict[str, Any]) -> Iterator[str]:
    """Yield whether an outcome's predicted risks can be taken at their word."""
    slope, large = (one["recalibration"].get(name) for name in ("slope", "in_the_large"))
    if slope is None or large is None:
        return
    if slope["high"] < 1 - CLOSE / 2:
        yield f"High risks are too high and low ones too low (calibration slope {number(slope['value'], 2)})."
    elif slope["low"] > 1 + CLOSE / 2:
        yield f"Its risks are too close to the average (calibration slope {number(slope['value'], 2)})."
    elif abs(slope["value"] - 1) <= CLOSE:
        yield f"The spread of its risks is about right (calibration slope {number(slope['value'], 2)})."
    else:
        ends = f"{number(slope['low'], 2)} to {number(slope['high'], 2)}"
        found = f"calibration slope {number(slope['value'], 2)}, 95 % interval {ends}"
        yield f"These rows are too few to tell whether the spread of its risks is right ({found})."
    if large["high"] < 0:
        yield "On the whole its risks are too high."
    elif large["low"] > 0:
        yield "On the whole its risks are too low."


def _number(run: RunResults) -> Iterator[str]:
    """Yield what the model adds over predicting the mean, and between which limits it errs."""
    if "r2" in run.test:
        reached = run.test["r2"]
        less = f"{percent(reached)} smaller" if reached > 0 else "no smaller"
        yield f"Its squared error is {less} than if every row were given the mean (R² {number(reached)})."
    if found := run.summary.metrics.agreement:
        low, high = found["limits"]
        yield f"19 of 20 predictions lie between {_short(low)} and {_short(high)} of the true value."


def _sites(run: RunResults) -> Iterator[str]:
    """Yield where the model fails, by name."""
    name = "mae" if isinstance(run.spec.task, Regression) else "loss"
    rows = {site: row for site, row in run.by_site.items() if name in row and BASELINE + name in row}
    worse = [site for site, row in rows.items() if row[name] >= row[BASELINE + name]]
    members = "hospitals and regions" if run.spec.federation.regions else "hospitals"  # of which one row is added up
    if worse:
        where = f"At {len(worse)} of {len(rows)} {members}, {listed(worse)},"
        yield f"{where} it is by its {NAMES[name]} no better than {baseline_name(run)}."
    elif len(rows) > 1:
        yield f"At each of the {len(rows)} {members} it is by its {NAMES[name]} better than {baseline_name(run)}."
    unsure = [site for site, row in run.by_site.items() if "auc_low" in row and row["auc_low"] <= 0.5]
    if unsure:
        yield f"It may rank no better than chance (the interval of the AUC includes 0.5) at {listed(unsure)}."
    if tested := [site for site, row in run.by_site.items() if not row.get("samples")]:
        yield f"Nothing was tested at {listed(tested)}."


def _only_outcome(run: RunResults) -> dict[str, Any] | None:
    """Return the figures of the outcome, if there is but one."""
    found = list(run.outcomes.values())
    return found[0] if len(found) == 1 else None


def _short(value: float) -> str:
    return number(value, 3 if abs(value) < 1 else 2 if abs(value) < 100 else 1)
