"""Differences between the model and others on the same rows, in words and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rankdad.common.metrics.paired import WITHIN as AUC_WITHIN
from rankdad.common.metrics.paired_sums import IN_FOLDS, Difference
from rankdad.common.rounds.scores import GUESS
from rankdad.common.spec import Holdout, LeaveOneSiteOut
from rankdad.common.spec.tasks import decimals
from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.words import NAMES, Sentence, between, number, with_interval
from rankdad.remote.results.comparison import excludes_zero, is_better
from rankdad.remote.results.run_results import RunResults

AGAINST_GUESS = ("auc", "accuracy", "mae")
SIGNIFICANT = 2  # digits of half an interval
MOST = 6  # decimals of a difference that is not smaller
WITHIN = "95\N{NO-BREAK SPACE}% interval"


def digits(found: Difference) -> int:
    """Return the number of decimals that the interval's width justifies."""
    half = (found.high - found.low) / 2
    most = max(MOST, decimals("loss", max(abs(found.low), abs(found.high))))  # of an error in a large unit
    places = 3 if half <= 0 else max(0, min(most, SIGNIFICANT - 1 - math.floor(math.log10(half))))
    while places < most and any(end and not round(end, places) for end in (found.low, found.high)):
        places += 1  # an end of 0.000 would hide its sign
    return places


def ends(found: Difference) -> str:
    """Format a difference with its interval for a table."""
    places = digits(found)
    return with_interval(found.value, found if found.low < found.high else None, places)


def signed(found: Difference) -> str:
    """Format a difference with its interval for brackets in a sentence."""
    places = digits(found)
    return f"{number(found.value, places)}, {WITHIN} {between(found.low, found.high, places)}"


def apart(name: str, found: Difference) -> str:
    """Describe how far the model's metric is from another's, and whether the interval excludes 0."""
    if found.low == found.high:  # no two rows differ in it
        return "as high" if not found.value else f"{number(abs(found.value), digits(found))} {_direction(found)}"
    places = digits(found)
    more = f"{number(abs(found.value), places)} {_direction(found)}"
    interval = f"{WITHIN} of the difference {between(found.low, found.high, places)}"
    if not excludes_zero(found):
        return f"{more} ({interval}, which includes 0: these rows do not show which of the two is better)"
    return f"{more}, which is {'better' if is_better(name, found) else 'worse'} ({interval})"


def _direction(found: Difference) -> str:
    return "lower" if found.value < 0 else "higher"


def against_guess(run: RunResults) -> Iterator[str]:
    """Yield comparisons with the site-only guess; without a paired comparison, the model's own interval."""
    metrics, compared = run.summary.metrics, run.differences_from(GUESS)
    for name in (name for name in run.spec.task.metrics if name in AGAINST_GUESS and name in run.test):
        interval = metrics.intervals.get(name)
        if metrics.baseline.get(name) is None or interval is None:
            continue
        places = decimals(name, run.test[name])
        reached = f"The model's {NAMES[name]} is {number(run.test[name], places)}"
        if name in compared:
            where = _where(run, compared[name])
            yield f"{reached}; compared on the same rows{where}, it is {apart(name, compared[name])}."
        else:
            yield f"{reached} ({WITHIN} {between(interval.low, interval.high, places)})."


def conditions(run: RunResults) -> Iterator[Sentence]:
    """Yield the conditions under which intervals of differences hold."""
    known = [one for found in run.summary.metrics.differences.values() for one in found.values()]
    if not known:
        return
    if any(IN_FOLDS in one.method for one in known):
        where = "hospital" if isinstance(run.spec.evaluation, LeaveOneSiteOut) else "fold"
        text = f"AUCs are compared within each {where}, so their difference may not equal that of the figures above."
        yield Sentence("in-folds", text)
    holdout = isinstance(run.spec.evaluation, Holdout)
    folds = "" if holdout else ", fold by fold on largely the same rows"
    others = "" if holdout else " For models trained on other rows, more may."
    yield Sentence(
        "conditions",
        f"Intervals of differences hold for the models as trained here{folds}; they exclude the variation from other "
        f"training rows. One such interval in twenty misses by chance.{others}",
    )


def _where(run: RunResults, found: Difference) -> str:
    if IN_FOLDS not in found.method:
        return ""
    return " of each hospital" if isinstance(run.spec.evaluation, LeaveOneSiteOut) else " of each fold"


def difference_table(run: RunResults, named: dict[str, str]) -> NumberTable | None:
    """Build the table of differences from each rival over all samples; None if nothing was compared.

    Args:
        run: the run.
        named: labels by rival.
    """
    rivals = {rival: found for rival in named if (found := run.differences_from(rival))}
    if not rivals:
        return None
    metrics = [name for metric in run.spec.task.metrics for name in (metric, *[AUC_WITHIN] * (metric == "auc"))]
    names = [name for name in metrics if any(name in found for found in rivals.values())]
    rows = [
        [named[rival], *(ends(found[name]) if name in found else "–" for name in names)]
        for rival, found in rivals.items()
    ]
    return NumberTable(["this model less", *(NAMES[name] for name in names)], rows)
