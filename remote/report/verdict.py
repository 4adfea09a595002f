"""The verdict: what a run found, in words that need no statistics, the most important first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rankdad.common.spec.evaluation import Holdout, LeaveOneSiteOut
from rankdad.common.spec.tasks import Classification, Regression
from rankdad.remote.report.coefficient_tables import opposite_effects
from rankdad.remote.report.narrative import baseline_name, rows_tested
from rankdad.remote.report.references import worth
from rankdad.remote.report.site_calibration import told_apart
from rankdad.remote.report.words import NAMES, Sentence, between, count, listed, number, percent, span
from rankdad.remote.results.comparison import within_hospitals
from rankdad.remote.results.run_results import BASELINE, RunResults, finite

FINAL = "final model"  # among trainings
RARE = 0.1  # recall of a class below which it is named
SHARES = {0.95: "19 of 20", 0.9: "9 of 10", 0.5: "half of the"}  # of rows, between two quantiles
CLOSE = 0.1  # of a slope from 1: as good as right
FAR = 0.5  # of an end of its interval from 1: too wide to say so


def verdict(run: RunResults) -> list[str]:
    """Return the verdict, a paragraph each; none before the first test."""
    return [" ".join(sentence.text for sentence in paragraph) for paragraph in paragraphs(run)]


def paragraphs(run: RunResults) -> list[list[Sentence]]:
    """Return the verdict's paragraphs, each its sentences."""
    if not run.test.get("samples"):
        return []
    measured = _number(run) if isinstance(run.spec.task, Regression) else _risk(run)
    compared = list(_unsolved(run)) or worth(run)
    found = [
        [*_kept(run), *_studied(run), *_quality(run), *_of_hospitals(run), *_missed(run)],
        [*measured],
        [*compared],
    ]
    found += [[sentence] for sentence in (*opposite_effects(run), *_sites(run))]
    return [paragraph for paragraph in found if paragraph]


def _kept(run: RunResults) -> Iterator[Sentence]:
    """Yield that the model that is kept is not solved."""
    if FINAL in run.summary.solver.get("unsolved", ()):
        yield Sentence("kept-unsolved", "The model that is kept has not come to its exact solution: do not use it.")


def _unsolved(run: RunResults) -> Iterator[Sentence]:
    """Yield why nothing is concluded where models that are not solved are compared with others."""
    tested = [name for name in run.summary.solver.get("unsolved", ()) if name != FINAL]
    if tested:
        which = "A model that was tested is" if len(tested) == 1 else f"{len(tested)} of the models tested are"
        yield Sentence(
            "unsolved",
            f"{which} no exact solution ({listed(tested)}): differences from other models are those of what was "
            "tested, and tell nothing of the solution.",
        )


def _studied(run: RunResults) -> Iterator[Sentence]:
    spec = run.spec
    there = spec.federation.sites if spec.federation.regions or not run.by_site else run.tested_at
    rows, hospitals = rows_tested(run, "row"), count(len(there), "hospital")
    what = _what(run)
    if isinstance(spec.evaluation, Holdout):
        tested = f"tested on {rows} that were set aside at {hospitals}"
    elif isinstance(spec.evaluation, LeaveOneSiteOut):
        tested = f"tested on {rows} of {hospitals}, each hospital by a model that has seen none of its rows"
    else:
        tested = f"tested on {rows} of {hospitals}, each row by a model that has not seen it"
    yield Sentence("studied", f"The model predicts {what}. It was {tested}.")
    one = run.only_outcome
    if one:
        share = one["events"] / one["samples"]
        yield Sentence("events", f"{one['events']:,} of these rows ({percent(share)}) have the outcome.")
    label = run.summary.table1.get("pooled", {}).get("label", {})
    if label.get("mean") is not None and label.get("sd") is not None:
        yield Sentence("label", f"In all tables it is {_short(label['mean'])} ± {_short(label['sd'])} (mean ± SD).")


def _what(run: RunResults) -> str:
    names, data = list(run.outcomes), run.spec.data
    label = getattr(data, "label", None)
    if run.only_outcome:
        return f"the risk of {names[0]}"
    if isinstance(run.spec.task, Regression):
        return f"the number {label}" if isinstance(label, str) else "a number"
    kind = "classes" if isinstance(run.spec.task, Classification) else "labels"
    return f"which of {run.spec.task.outputs} {kind} a row has"


def _quality(run: RunResults) -> Iterator[Sentence]:
    test, intervals = run.test, run.summary.metrics.intervals
    name = "mae" if isinstance(run.spec.task, Regression) else "auc"
    if name not in test:
        return
    interval, said = intervals.get(name), _short if name == "mae" else number
    within = f" (95 % interval {span(interval.low, interval.high, said)})" if interval else ""
    if name == "mae":
        yield Sentence("mae", f"On average its predictions are {_short(test['mae'])} off{within}.")
    else:
        pairs = percent(test["auc"], int(test["auc"] > 0.985))
        area = f"AUC {number(test['auc'])}{within}"
        if run.only_outcome:
            yield Sentence("auc", f"It ranks a row with the outcome above one without it in {pairs} of pairs: {area}.")
        else:
            classes = isinstance(run.spec.task, Classification)
            which = "a class above one of the others" if classes else "with a label above one without it"
            mean = f"on average over {run.spec.task.outputs} {'classes' if classes else 'labels'}"
            yield Sentence("auc", f"It ranks a row {'of ' * classes}{which} in {pairs} of pairs, {mean}: {area}.")


def _of_hospitals(run: RunResults) -> Iterator[Sentence]:
    """Yield what is left of the AUC within hospitals, and what the hospital alone tells."""
    within, alone = within_hospitals(run, run.summary.metrics.within_sites), run.summary.metrics.site_alone.get("auc")
    if within is None or alone is None:
        return
    weights = "with the outcome and one without it" if run.only_outcome else "of a class, or with a label, and another"
    yield Sentence(
        "auc-within",
        f"Within hospitals its AUC is {number(within)}: the mean of the hospitals' own, each weighted by its pairs of "
        f"a row {weights}. A guess by the hospital alone, its share of the outcome for each of its rows, reaches "
        f"{number(alone)}.",
    )


def _missed(run: RunResults) -> Iterator[Sentence]:
    """Yield every class, or label, of which the model finds hardly a row."""
    found = run.recalls
    hardly = [
        f"{name} (recall {percent(share)})" for name, share in found.items() if share is not None and share < RARE
    ]
    if hardly:
        yield Sentence("hardly-found", f"It finds hardly a row of {', '.join(hardly)}.")
    if untested := [name for name, share in found.items() if share is None]:
        yield Sentence("class-untested", f"No row of {', '.join(untested)} was tested.")


def _risk(run: RunResults) -> Iterator[Sentence]:
    """Yield what the model adds over today's base rate, and whether its risks can be taken at their word."""
    one = run.only_outcome
    if one is None:
        guess, test = finite(run.summary.metrics.baseline), run.test
        if {"accuracy"} <= guess.keys() & test.keys():
            right, guessed = percent(test["accuracy"]), percent(guess["accuracy"])
            yield Sentence("accuracy", f"It is right in {right} of cases; {baseline_name(run)} is in {guessed}.")
        for name, several in run.outcomes.items():
            yield from told_apart(run, several["outcome"], f"the risks of {name}")
        return
    if one["brier_skill"] is not None:
        skill, rate = one["brier_skill"], one["events"] / one["samples"]
        better = f"{percent(skill)} smaller" if skill > 0 else "no smaller"
        yield Sentence(
            "brier" if skill > 0 else "brier-no-smaller",
            f"The squared error of its risks (Brier score {number(one['brier'])}) is {better} than if every row were "
            f"given the base rate of {percent(rate)} ({number(one['brier_of_prevalence'])}).",
        )
    yield from list(told_apart(run, one["outcome"])) or calibrated(one)
    if list(run.miscalibrated(one["outcome"])) == ["slope"]:
        yield from on_the_whole(one)


def calibrated(one: dict[str, Any]) -> Iterator[Sentence]:
    """Yield whether an outcome's predicted risks can be taken at their word, where hospitals do not differ in that."""
    slope, large = (one["recalibration"].get(name) for name in ("slope", "in_the_large"))
    if slope is None or large is None:
        return
    value, low, high = (slope[name] for name in ("value", "low", "high"))
    close, found = abs(value - 1) <= CLOSE, f"calibration slope {number(value, 2)}"
    if high < 0:
        rarer = "the higher they are, the rarer the outcome"
        yield Sentence("upside-down", f"Its risks are upside down: {rarer} ({found}).")
    elif high < 1 - CLOSE / 2 or (high < 1 and not close):
        yield Sentence("too-far-apart", f"High risks are too high and low ones too low ({found}).")
    elif low > 1 + CLOSE / 2 or (low > 1 and not close):
        yield Sentence("too-close", f"Its risks are too close to the average ({found}).")
    elif close and max(1 - low, high - 1) <= FAR:
        yield Sentence("spread-right", f"The spread of its risks is about right ({found}).")
    else:
        found += f", 95 % interval {between(low, high, 2)}"
        text = f"These rows are too few to tell whether the spread of its risks is right ({found})."
        yield Sentence("spread-unknown", text)
    yield from on_the_whole(one)


def on_the_whole(one: dict[str, Any]) -> Iterator[Sentence]:
    """Yield whether an outcome's risks are too high, or too low, over all rows."""
    large = one["recalibration"].get("in_the_large")
    if large is None:
        return
    if large["high"] < 0:
        yield Sentence("too-high", "On the whole its risks are too high.")
    elif large["low"] > 0:
        yield Sentence("too-low", "On the whole its risks are too low.")


def _number(run: RunResults) -> Iterator[Sentence]:
    """Yield what the model adds over predicting the mean, and between which limits it errs."""
    if "r2" in run.test:
        reached = run.test["r2"]
        less = f"{percent(reached)} smaller" if reached > 0 else "no smaller"
        text = f"Its squared error is {less} than if every row were given the mean (R² {number(reached)})."
        yield Sentence("r2" if reached > 0 else "r2-no-smaller", text)
    yield from predictions_between(run)


def predictions_between(run: RunResults) -> Iterator[Sentence]:
    """Yield how far off most of the tested predictions are, as counted; nothing of too few rows."""
    if middle := run.summary.metrics.agreement.get("middle"):
        ends = f"{_short(middle['low'])} and {_short(middle['high'])}"
        text = f"On the rows tested, {SHARES[middle['share']]} predictions lie between {ends} of the true value."
        yield Sentence("between", text)


def _sites(run: RunResults) -> Iterator[Sentence]:
    """Yield where the model fails, by name."""
    name = "mae" if isinstance(run.spec.task, Regression) else "loss"
    rows = {site: row for site, row in run.by_site.items() if row.get("samples") and BASELINE + name in row}
    worse = [site for site, row in rows.items() if row.get(name, math.inf) >= row[BASELINE + name]]
    members = "hospitals and regions" if run.spec.federation.regions else "hospitals"  # of which one row is added up
    of = f"{len(rows)} {members}" + " that are compared with it" * (len(rows) < len(run.by_site))
    guess = f"{baseline_name(run)} on the rows tested"
    if worse:
        text = f"At {len(worse)} of {of}, {listed(worse)}, it is by its {NAMES[name]} no better than {guess}."
        yield Sentence("no-better-than-guess", text)
    elif len(rows) > 1:
        text = f"At each of the {of} it is by its {NAMES[name]} better than {guess}."
        yield Sentence("better-than-guess", text)
    low, high = (f"{BASELINE}{name}_difference_{end}" for end in ("low", "high"))
    known = {site: row for site, row in rows.items() if low in row and high in row}
    if better := [site for site, row in known.items() if site not in worse and row[low] <= 0 <= row[high]]:
        said = "That it is better than that guess may be chance (the interval of the difference includes 0)"
        text = f"{said} at {listed(better)}."
        yield Sentence("better-than-guess-by-chance", text)
    ranks = {site: (row["auc_low"], row["auc_high"]) for site, row in run.by_site.items() if "auc_low" in row}
    if unsure := [site for site, (low, high) in ranks.items() if low <= 0.5 <= high]:
        text = f"It may rank no better than chance (the interval of the AUC includes 0.5) at {listed(unsure)}."
        yield Sentence("chance", text)
    if below := [site for site, (_, high) in ranks.items() if high < 0.5]:
        text = f"It ranks worse than chance (the interval of the AUC lies below 0.5) at {listed(below)}."
        yield Sentence("below-chance", text)
    if none := [site for site in run.by_site if site not in run.tested_at]:
        yield Sentence("site-untested", f"No row of {listed(none)} is in these figures.")


def _short(value: float) -> str:
    return number(value, 3 if abs(value) < 1 else 2 if abs(value) < 100 else 1)
