"""The model against each hospital's own model and linear models, on the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankdad.common.metrics.intervals import Interval
from rankdad.common.metrics.paired import LEAST, MAX_RANKED, WITHIN
from rankdad.common.metrics.paired_sums import Difference
from rankdad.common.spec.tasks import decimals
from rankdad.remote.report.differences import apart, conditions, ends, signed
from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.narrative import noun_of
from rankdad.remote.report.words import NAMES, Sentence, between, count, listed, number, with_interval
from rankdad.remote.results.comparison import (
    OwnModel,
    better_own_models,
    compared_sites,
    comparison_metric,
    gain,
    reference_value,
    shown_references,
    significant_sign,
    within_hospitals,
)
from rankdad.remote.results.run_results import RunResults

REFERENCES = {
    "local": "each hospital alone",
    "linear": "linear, all hospitals",
    "site": "linear, each hospital alone",
}
MODELS = {
    "local": "The same model, trained at each hospital alone,",
    "linear": "A linear model of all hospitals",
    "site": "A linear model of each hospital alone",
}
MAX_SITES = 40  # in the table; beyond it, those that gain least


def worth(run: RunResults) -> Iterator[Sentence]:
    """Yield the comparison with each reference on the same rows, and the hospitals with a better own model."""
    name = comparison_metric(run)
    known = [reference for reference in shown_references(run) if name in run.test]
    for reference in known:
        reached, interval = reference_value(run, reference)
        had, tested = run.summary.metrics.references[reference].samples, run.test.get("samples")
        if had != tested:
            text = f"{MODELS[reference]} was tested on only {had:,} of {tested:,.0f} rows, and is not compared"
            yield Sentence("reference-in-part", f"{text}: some trainings or hospitals have none.")
        if reached is not None:
            digits = decimals(name, reached)
            ends_of = f" (95 % interval {between(interval.low, interval.high, digits)})" if interval else ""
            within = run.differences_from(reference).get(WITHIN)
            if reference == "linear" or within is None:
                has = f"{MODELS[reference]} has an {NAMES[name]} of {number(reached, digits)}{ends_of}"
                yield Sentence("reference", f"{has}: {_apart(run, reference, reached)}.")
            else:
                against = f"Against {MODELS[reference][0].lower()}{MODELS[reference][1:].removesuffix(',')}"
                text = f"{against}: on the same {noun_of(run)}s, within hospitals, its AUC is {apart(name, within)}."
                yield Sentence("reference-within", text)
                yield _everywhere(run, reference, f"{number(reached)}{ends_of}", within)
        if reference != "linear":
            yield from _where(run, reference)
    if "code" in run.summary.solver and "linear" in run.spec.evaluation.references:
        yield Sentence("no-linear", f"There is no linear model of all hospitals: {run.summary.solver['why']}.")
    if known:
        if "site" in run.summary.metrics.references and "site" not in known:
            yield Sentence("same-model", "A linear model of each hospital alone is that same model, and is shown once.")
        yield from conditions(run)


def _everywhere(run: RunResults, reference: str, reached: str, within: Difference) -> Sentence:
    """Describe a reference's AUC over all rows, and warn if it disagrees with that within hospitals."""
    found = run.differences_from(reference).get("auc")
    less = f", and this model's less it is {ends(found)}" if found else ""
    text = f"{MODELS[reference]} has an AUC of {reached} over all rows together{less}"
    if found is None or significant_sign("auc", found) == significant_sign("auc", within):
        return Sentence("reference-everywhere", f"{text}.")
    ranked = "it compares scores of different models between hospitals"
    text += f": {ranked}, which does not show whether a hospital should take part."
    return Sentence("everywhere-misleads", text)


def _apart(run: RunResults, reference: str, reached: float) -> str:
    """Describe the difference from a reference with its interval, or why it has none."""
    name, found = comparison_metric(run), run.differences_from(reference)
    if name in found:
        return f"on the same rows this model's is {apart(name, found[name])}"
    more = gain(name, run.test[name], reached)
    figures = (
        "as good" if not more else f"{number(abs(more), decimals(name, more))} {'better' if more > 0 else 'worse'}"
    )
    others = [
        f"its {NAMES[other]} is {apart(other, found[other])}" for other in run.spec.task.metrics if other in found
    ]
    if not others:
        return f"this model is {figures}, without an interval of the difference"
    few = f"AUCs are not compared if a fold tests under {LEAST} rows of a class, or over {MAX_RANKED} classes"
    return f"this model is {figures} ({few}); on the same rows {', '.join(others)}"


def _where(run: RunResults, reference: str) -> Iterator[Sentence]:
    """Yield the hospitals whose own model is better, significantly or not, and those without one."""
    name, both, found = comparison_metric(run), compared_sites(run, reference), better_own_models(run, reference)
    what = "its own model" if reference == "local" else "its own linear model"
    significant, other = [one for one in found if one.is_sure], [one for one in found if not one.is_sure]
    of = count(len(both), "hospital")
    better = f"of {of} {what} has the better {NAMES[name]}"
    if significant:
        each = _each(run, significant)
        text = f"At {len(significant)} {better}, and the interval of the difference excludes 0: {each}."
        yield Sentence("own-model-better", text, tuple(one.site for one in significant))
    if other:
        text = f"At {len(other)} {better} on these rows, without an interval that excludes 0: {_each(run, other)}."
        yield Sentence("own-model-better-by-chance", text)
    if both and not found:
        figure, both_ways = f"the {NAMES[name]} of {what}", run.spec.tested_folds > 1
        digits = decimals(name, run.test[name])
        least = number(10**-digits, digits)
        text = f"At the one hospital, {figure} is not" if len(both) == 1 else f"At none of {of} is {figure}"
        text += f" better both by {least} over all rows and by fold." if both_ways else f" better by {least} or more."
        yield Sentence("own-model-no-better", text)
    rows = run.by_site
    if missing := [site for site, row in rows.items() if row.get("samples") and not row.get(f"{reference}_samples")]:
        yield Sentence("no-own-model", f"There is no own model to compare with at {listed(missing)}.")


def _each(run: RunResults, found: Sequence[OwnModel]) -> str:
    less = "this model less its own" + ", by fold" * (run.spec.tested_folds > 1)
    name = comparison_metric(run)
    return listed(
        [
            f"{one.site} ({number(one.own, decimals(name, one.own))} against "
            f"{number(one.shared, decimals(name, one.shared))}"
            + (f"; {less}: {signed(one.difference)})" if one.difference else ")")
            for one in found
        ]
    )


def reference_table(run: RunResults) -> NumberTable | None:
    """Build the table of the model and its references, pooled and by site; None without references."""
    found, name, rows = run.summary.metrics.references, comparison_metric(run), run.by_site
    names = shown_references(run)
    if not names or name not in run.test:
        return None
    pooled, digits = (run.test[name], run.summary.metrics.intervals.get(name)), decimals(name, run.test[name])
    of_all = [pooled, *(reference_value(run, reference) for reference in names)]
    cells = [["all hospitals", *(with_interval(*one, digits) for one in of_all)]]
    within = within_hospitals(run, run.summary.metrics.within_sites)
    if name == "auc" and within is not None:
        others = (
            within_hospitals(run, found[one].within_sites) if reference_value(run, one)[0] is not None else None
            for one in names
        )
        cells.append(["within hospitals", number(within), *map(number, others)])
    shown = list(rows)
    if len(rows) > MAX_SITES:
        theirs = f"{next((one for one in names if one != 'linear'), names[0])}_{name}"
        shown.sort(key=lambda site: gain(name, rows[site].get(name, 0.0), rows[site].get(theirs, 0.0)))
    keys = [name, *(f"{reference}_{name}" for reference in names)]
    for site in shown[:MAX_SITES]:
        figures = [with_interval(rows[site].get(key), _interval(rows[site], key), digits) for key in keys]
        cells.append([site, *figures])
    return NumberTable([NAMES[name], "this model", *(REFERENCES[reference] for reference in names)], cells)


def _interval(row: dict[str, float], key: str) -> Interval | None:
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    return None if low is None or high is None else Interval(low, high, "")
