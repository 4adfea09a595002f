"""The verdict: a run's findings in plain words, by topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rankdad.common.metrics.paired_sums import Difference
from rankdad.common.spec.evaluation import Holdout, LeaveOneSiteOut
from rankdad.common.spec.tasks import Classification, LanguageModel, Regression, decimals
from rankdad.common.spec.written import Tabular
from rankdad.remote.report.coefficient_tables import opposite_effects
from rankdad.remote.report.differences import signed
from rankdad.remote.report.narrative import baseline_name, noun_of, rows_tested
from rankdad.remote.report.references import worth
from rankdad.remote.report.site_calibration import calibration_differences, of_one_kind, side_by_side
from rankdad.remote.report.words import Sentence, between, count, listed, number, percent, span
from rankdad.remote.results.comparison import (
    differences_from_guess,
    error_metric,
    primary_difference,
    shown_references,
    significant_sign,
    within_hospitals,
)
from rankdad.remote.results.run_results import BASELINE, RunResults, finite

FINAL = "final model"  # name of a training
RARE = 0.1  # recall of a class below which it is named
SHARES = {0.95: "19 of 20", 0.9: "9 of 10", 0.5: "half of the"}  # of rows, between two quantiles
CLOSE = 0.1  # distance of a slope from 1 that counts as right
FAR = 0.5  # distance of an interval's end from 1 that is too wide for a statement
ASIDES = frozenset(  # sentences beside the tables of a page instead of on its first screen
    (
        *("reference-everywhere", "everywhere-misleads", "reference-in-part", "in-folds", "conditions"),
        *("same-model", "no-linear", "no-own-model"),
    )
)


def verdict(run: RunResults) -> list[str]:
    """Return the verdict in paragraphs; none before the first test."""
    found = [*topics(run).values(), asides(run)]
    return [" ".join(sentence.text for sentence in paragraph) for paragraph in found if paragraph]


def topics(run: RunResults) -> dict[str, list[Sentence]]:
    """Return the sentences of a page's first screen by topic."""
    if not run.test.get("samples"):
        return {}
    is_number = isinstance(run.spec.task, Regression)
    compared = [one for one in (*_unsolved(run), *_worth(run)) if one.code not in ASIDES]
    found = {
        "Outcome": [*_kept(run), *_outcome(run)],
        "Tested on": [*_studied(run)],
        _of_quality(run): [*_quality(run), *_of_hospitals(run), *_missed(run)],
        "Against the mean" if is_number else "Are its risks right?": [*(_number(run) if is_number else _risk(run))],
        "Gain over each hospital alone": compared,
        "Hospital by hospital": [*_sites(run), *opposite_effects(run)],
        "What not to conclude": [*cautions(run)],
    }
    return {topic: sentences for topic, sentences in found.items() if sentences}


def _of_quality(run: RunResults) -> str:
    kinds = {"regression": "How far off it is", "language-model": "How well it predicts"}
    return kinds.get(run.spec.task.name, "How well it ranks")


def asides(run: RunResults) -> list[Sentence]:
    """Return the comparison's sentences that belong beside the tables."""
    return [one for one in _worth(run) if one.code in ASIDES] if run.test.get("samples") else []


def _kept(run: RunResults) -> Iterator[Sentence]:
    if FINAL in run.summary.solver.get("unsolved", ()):
        yield Sentence("kept-unsolved", "The exact solution of the final model did not converge: do not use it.")


def _unsolved(run: RunResults) -> Iterator[Sentence]:
    """Yield a warning if comparisons involve models that did not converge."""
    if tested := _tested_unsolved(run):
        which = count(len(tested), "tested model")
        yield Sentence(
            "unsolved",
            f"The exact solution of {which} did not converge ({listed(tested)}): differences from other models say "
            "nothing about it.",
        )


def _worth(run: RunResults) -> list[Sentence]:
    return [] if _tested_unsolved(run) else list(worth(run))


def _tested_unsolved(run: RunResults) -> list[str]:
    return [name for name in run.summary.solver.get("unsolved", ()) if name != FINAL]


def _outcome(run: RunResults) -> Iterator[Sentence]:
    """Yield the predicted outcome and its frequency."""
    yield Sentence("predicts", f"The model predicts {_what(run)}.")
    if one := run.only_outcome:
        rows, share = count(one["samples"], noun_of(run)), percent(one["events"] / one["samples"])
        yield Sentence("events", f"Of {rows} tested, {one['events']:,} ({share}) have it.")
    label = run.summary.table1.get("pooled", {}).get("label", {})
    if label.get("mean") is not None and label.get("sd") is not None:
        yield Sentence("label", f"In all tables it is {_short(label['mean'])} ± {_short(label['sd'])} (mean ± SD).")


def _studied(run: RunResults) -> Iterator[Sentence]:
    spec, noun = run.spec, noun_of(run)
    there = spec.federation.sites if spec.federation.regions or not run.by_site else run.tested_at
    rows, hospitals = rows_tested(run), count(len(there), "hospital")
    if isinstance(spec.evaluation, Holdout):
        tested = f"{rows} that were set aside at {hospitals}"
    elif isinstance(spec.evaluation, LeaveOneSiteOut):
        tested = f"{rows} of {hospitals}, each hospital by a model that has seen none of its {noun}s"
    else:
        tested = f"{rows} of {hospitals}, each {noun} by a model that has not seen it"
    yield Sentence("studied", f"It was tested on {tested}.")


def _what(run: RunResults) -> str:
    names, data = list(run.outcomes), run.spec.data
    if run.only_outcome:
        return f"the risk of {names[0]}"
    if isinstance(run.spec.task, LanguageModel):
        return "each token of a text from those before it"
    if isinstance(run.spec.task, Regression):
        return f"the number {data.called(data.targets[0])}" if isinstance(data, Tabular) else "a number"
    kind = "classes" if isinstance(run.spec.task, Classification) else "labels"
    return f"which of {run.spec.task.outputs} {kind} a {noun_of(run)} has"


def _quality(run: RunResults) -> Iterator[Sentence]:
    test, intervals, noun = run.test, run.summary.metrics.intervals, noun_of(run)
    if isinstance(run.spec.task, LanguageModel):
        guess = finite(run.summary.metrics.baseline)
        if {"bits_per_byte"} <= guess.keys() & test.keys():
            bits, least = number(test["bits_per_byte"], 2), number(guess["bits_per_byte"], 2)
            beside = f"a guess by how often each token occurs at the hospital needs {least}"
            text = (
                f"A byte of text takes {bits} bits (perplexity of a token {number(test['perplexity'], 2)}); {beside}."
            )
            yield Sentence("bits-per-byte", text)
        return
    name = "mae" if isinstance(run.spec.task, Regression) else "auc"
    if name not in test:
        return
    interval, format_ = intervals.get(name), _short if name == "mae" else number
    within = f"95 % interval {span(interval.low, interval.high, format_)}" if interval else ""
    if name == "mae":
        yield Sentence(
            "mae", f"On average its predictions are {_short(test['mae'])} off{f' ({within})' * bool(within)}."
        )
        return
    pairs = _pairs(test["auc"])
    area = ", ".join(filter(None, (f"AUC {number(test['auc'])}", within, "50 % is chance")))
    if run.only_outcome:
        of_two = f"Of two {noun}s, one with the outcome and one without it, the first gets the higher risk"
        yield Sentence("auc", f"{of_two} in {pairs} of pairs ({area}).")
    else:
        classes = isinstance(run.spec.task, Classification)
        which = "a class above one of the others" if classes else "with a label above one without it"
        mean = f"on average over {run.spec.task.outputs} {'classes' if classes else 'labels'}"
        yield Sentence("auc", f"It ranks a {noun} {'of ' * classes}{which} in {pairs} of pairs, {mean} ({area}).")


def _pairs(area: float) -> str:
    return percent(area, int(area > 0.985))


def _of_hospitals(run: RunResults) -> Iterator[Sentence]:
    """Yield the AUC within hospitals, and that of a guess that knows only the hospital."""
    within, alone = within_hospitals(run, run.summary.metrics.within_sites), run.summary.metrics.site_alone.get("auc")
    if within is not None and alone is not None:
        guess = f"a guess that knows only the hospital reaches {_pairs(alone)} of all pairs (AUC {number(alone)})"
        text = f"Where both are of one hospital: {_pairs(within)} of pairs (AUC within hospitals {number(within)})"
        yield Sentence("auc-within", f"{text}; {guess}.")


def _missed(run: RunResults) -> Iterator[Sentence]:
    """Yield every class or label with a low recall."""
    found, noun = run.recalls, noun_of(run)
    hardly = [
        f"{name} (recall {percent(share)})" for name, share in found.items() if share is not None and share < RARE
    ]
    at = " if risks of 50 % or more are called positive" if run.only_outcome is not None else ""
    if hardly:
        yield Sentence("hardly-found", f"It finds hardly any {noun} of {', '.join(hardly)}{at}.")
    if untested := [name for name, share in found.items() if share is None]:
        yield Sentence("class-untested", f"No {noun} of {', '.join(untested)} was tested.")


def _risk(run: RunResults) -> Iterator[Sentence]:
    """Yield the calibration of risks, and the gain over the base rate."""
    one = run.only_outcome
    if one is None:
        guess, test = finite(run.summary.metrics.baseline), run.test
        if {"accuracy"} <= guess.keys() & test.keys():
            right, guessed = percent(test["accuracy"]), percent(guess["accuracy"])
            of = "cases" if isinstance(run.spec.task, Classification) else "labels"
            yield Sentence("accuracy", f"It is right in {right} of {of}; {baseline_name(run)} is in {guessed}.")
        for name, several in run.outcomes.items():
            yield from calibration_differences(run, several["outcome"], f"the risks of {name}")
            yield from of_one_kind(run, several["outcome"], name)
        return
    yield from list(calibration_differences(run, one["outcome"])) or calibrated(one)
    yield from of_one_kind(run, one["outcome"])
    if list(run.miscalibrated(one["outcome"])) == ["slope"]:
        yield from on_the_whole(one)
    yield from side_by_side(run, one["outcome"])
    if one["brier_skill"] is not None:
        skill, rate = one["brier_skill"], one["events"] / one["samples"]
        better = f"{percent(skill)} smaller" if skill > 0 else "no smaller"
        yield Sentence(
            "brier" if skill > 0 else "brier-no-smaller",
            f"Their squared error is {better} than if all were given the base rate of {percent(rate)} (Brier score "
            f"{number(one['brier'])} against {number(one['brier_of_prevalence'])}).",
        )


def calibrated(one: dict[str, Any]) -> Iterator[Sentence]:
    """Yield the calibration of an outcome's risks if hospitals do not differ in it."""
    if slope := one["recalibration"].get("slope"):
        yield _spread_of_risks(slope)
    yield from on_the_whole(one)


def _spread_of_risks(slope: dict[str, float]) -> Sentence:
    value, low, high = (slope[name] for name in ("value", "low", "high"))
    close, found = abs(value - 1) <= CLOSE, f"calibration slope {number(value, 2)}"
    found += f", 95 % interval {between(low, high, 2)}"
    if high < 0:
        rarer = "the higher they are, the rarer the outcome"
        return Sentence("upside-down", f"Its risks are upside down: {rarer} ({found}).")
    if high < 1 - CLOSE / 2 or (high < 1 and not close):
        return Sentence("too-far-apart", f"High risks are too high and low ones too low ({found}).")
    if low > 1 + CLOSE / 2 or (low > 1 and not close):
        return Sentence("too-close", f"Its risks are too close to the average ({found}).")
    if close and max(1 - low, high - 1) <= FAR:
        return Sentence("spread-right", f"The spread of its risks is about right ({found}).")
    return Sentence("spread-unknown", f"Too few were tested to judge the spread of its risks ({found}).")


def on_the_whole(one: dict[str, Any]) -> Iterator[Sentence]:
    """Yield whether an outcome's risks are too high or too low over all rows."""
    large = one["recalibration"].get("in_the_large")
    if large is None:
        return
    if large["high"] < 0:
        yield Sentence("too-high", "On the whole its risks are too high.")
    elif large["low"] > 0:
        yield Sentence("too-low", "On the whole its risks are too low.")


def _number(run: RunResults) -> Iterator[Sentence]:
    """Yield the gain over predicting the mean, and the range of errors."""
    if "r2" in run.test:
        reached = run.test["r2"]
        less = f"{percent(reached)} smaller" if reached > 0 else "no smaller"
        text = f"Its squared error is {less} than if every {noun_of(run)} were given the mean (R² {number(reached)})."
        yield Sentence("r2" if reached > 0 else "r2-no-smaller", text)
    yield from predictions_between(run)


def predictions_between(run: RunResults) -> Iterator[Sentence]:
    """Yield the range of most errors; nothing for too few rows."""
    if middle := run.summary.metrics.agreement.get("middle"):
        ends = f"{_short(middle['low'])} and {_short(middle['high'])}"
        text = f"{SHARES[middle['share']]} predictions lie between {ends} of the true value."
        yield Sentence("between", text[0].upper() + text[1:])


def _sites(run: RunResults) -> Iterator[Sentence]:
    """Yield the hospitals with a model better or worse than a guess, or near chance, with intervals."""
    yield from _beside_guess(run)
    ranks = {site: (row["auc_low"], row["auc_high"]) for site, row in run.by_site.items() if "auc_low" in row}
    if unsure := [site for site, (low, high) in ranks.items() if low <= 0.5 <= high]:
        text = "It may rank no better than chance (the interval of the AUC includes 0.5) at"
        yield Sentence("chance", f"{text} {_aucs(run, unsure)}.", tuple(unsure))
    if below := [site for site, (_, high) in ranks.items() if high < 0.5]:
        text = "It ranks worse than chance (the interval of the AUC lies below 0.5) at"
        yield Sentence("below-chance", f"{text} {_aucs(run, below)}.", tuple(below))
    if none := [site for site in run.by_site if site not in run.tested_at]:
        yield Sentence("site-untested", f"No {noun_of(run)} of {listed(none)} is in these figures.")


def _aucs(run: RunResults, sites: Sequence[str]) -> str:
    rows = {site: run.by_site[site] for site in sites}
    return listed([f"{site} ({between(row['auc_low'], row['auc_high'])})" for site, row in rows.items()])


def _beside_guess(run: RunResults) -> Iterator[Sentence]:
    """Yield the hospitals with an error significantly smaller or larger than a guess's, and the others."""
    found, name = differences_from_guess(run), error_metric(run)
    known = {site: one for site, one in found.items() if one is not None}
    sites = {sign: [site for site, one in known.items() if significant_sign(name, one) == sign] for sign in (1, 0, -1)}
    members = "hospitals and regions" if run.spec.federation.regions else "hospitals"
    members += " that are compared with it" * (len(found) < len(run.by_site))
    what = "mean error" if name == "mae" else "error (log loss)"
    guess = f"{baseline_name(run)}, on the same {noun_of(run)}s"
    if better := sites[1]:
        of = f"{len(better)} of {len(found)} {members} ({listed(better)})" if len(better) < len(found) else ""
        where = of or (f"each of the {len(found)} {members}" if len(found) > 1 else "the one hospital compared")
        yield Sentence("better-than-guess", f"At {where} its {what} is smaller than that of {guess}.")
    if unsure := sites[0]:
        text = f"These {noun_of(run)}s do not show whether its {what} is smaller than that of {baseline_name(run)} at"
        yield Sentence("guess-undecided", f"{text} {_each(unsure, known)}.", tuple(unsure))
    if worse := sites[-1]:
        text = f"Its {what} is larger than that of {guess}, at {_each(worse, known)}: do not use it there."
        yield Sentence("worse-than-guess", text, tuple(worse))
    if bare := [site for site, one in found.items() if one is None]:
        rows = run.by_site
        fewer = sum(name in rows[site] and rows[site][name] < rows[site][BASELINE + name] for site in bare)
        text = f"At {fewer} of {len(bare)} {members} its {what} is smaller than that of {guess}"
        yield Sentence("guess-without-interval", f"{text}. These differences have no intervals.")


def _each(sites: Sequence[str], known: dict[str, Difference]) -> str:
    return listed([f"{site} (difference {signed(known[site])})" for site in sites])


def _short(value: float) -> str:
    return number(value, decimals("mae", value) if abs(value) < 1 else 2 if abs(value) < 100 else 1)


def cautions(run: RunResults) -> Iterator[Sentence]:
    """Yield the conclusions that a run's test does not support."""
    evaluation, noun = run.spec.evaluation, noun_of(run)
    if isinstance(evaluation, LeaveOneSiteOut):
        text = f"These are only {count(len(run.tested_at), 'hospital')}: another one may lie outside their range."
        yield Sentence("hospitals-vary", text)
    else:
        text = "It was not tested at another hospital, or at a later time: do not expect these figures there."
        yield Sentence("no-other-hospital", text)
    if not isinstance(evaluation, Holdout) and evaluation.refit:
        text = f"The final model was trained once more, on all {noun}s: these are not its own figures."
        yield Sentence("kept-untested", text)
    found = (primary_difference(run, reference) for reference in shown_references(run) if reference != "linear")
    if any(one.low < one.high and not significant_sign(name, one) for name, one in filter(None, found)):
        text = "An interval that includes 0 does not show that a hospital's own model is as good."
        yield Sentence("not-equal", text)
    yield from _hospital_cautions(run)
    if isinstance(run.spec.task, LanguageModel):
        text = "It may repeat passages of its training texts, such as names: give it only to those who may read them."
        yield Sentence("repeats-texts", text)
        return
    text = "This does not show that a column causes the outcome, or that patients benefit from the model."
    yield Sentence("no-cause", text)


def _hospital_cautions(run: RunResults) -> Iterator[Sentence]:
    ends = [(row["auc_low"], row["auc_high"]) for row in run.by_site.values() if {"auc_low", "auc_high"} <= row.keys()]
    if len(ends) > 1 and max(low for low, _ in ends) <= min(high for _, high in ends):
        text = f"The AUCs of the {len(ends)} hospitals are not tested against each other, and their intervals overlap: "
        text += "do not rank the hospitals by them."
        yield Sentence("no-ranking", text)
    one = run.only_outcome
    if one is not None and (differ := run.miscalibrated(one["outcome"])):
        miscalibrated = [site for site in run.by_site if any(site in values for values in differ.values())]
        text = f"Do not read its risks as frequencies at {listed(miscalibrated)} before recalibrating it there."
        yield Sentence("recalibrate", text, tuple(miscalibrated))
