"""How far the model is from others on the same rows, in words and as a table: what a verdict says of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rankdad.common.metrics.paired import WITHIN as AUC_WITHIN
from rankdad.common.metrics.paired_sums import IN_FOLDS, Difference
from rankdad.common.rounds.scores import GUESS
from rankdad.common.spec import Holdout, LeaveOneSiteOut
from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.words import NAMES, Sentence, between, number, with_interval
from rankdad.remote.results.comparison import is_better, is_clear
from rankdad.remote.results.run_results import RunResults

AGAINST_GUESS = ("auc", "accuracy", "mae")
SIGNIFICANT = 2  # digits of half an interval
WITHIN = "95\N{NO-BREAK SPACE}% interval"


def digits(found: Difference) -> int:
    """Return how many digits behind the point say what is known of a difference."""
    half = (found.high - found.low) / 2
    places = 3 if half <= 0 else max(0, min(6, SIGNIFICANT - 1 - math.floor(math.log10(half))))
    while places < 6 and any(end and not round(end, places) for end in (found.low, found.high)):
        places += 1  # an end at 0.000 would not tell on which side of 0 it is
    return places


def ends(found: Difference) -> str:
    """Return a difference with its interval, as a table prints it."""
    places = digits(found)
    return with_interval(found.value, found if found.low < found.high else None, places)


def signed(found: Difference) -> str:
    """Return a difference with its interval, as a sentence has it in brackets."""
    places = digits(found)
    return f"{number(found.value, places)}, {WITHIN} {between(found.low, found.high, places)}"


def apart(name: str, found: Difference) -> str:
    """Return in words how far the model's figure is from another's, and whether the interval leaves out 0."""
    if found.low == found.high:  # no two rows differ in it
        return "as high" if not found.value else f"{number(abs(found.value))} {_direction(found)}"
    sign, places = (-1 if found.value < 0 else 1), digits(found)
    low, high = sorted((sign * found.low, sign * found.high))
    more = f"{number(abs(found.value), places)} {_direction(found)}"
    interval = f"{WITHIN} of the difference {between(low, high, places)}"
    if not is_clear(found):
        return f"{more} ({interval}, which includes 0: these rows do not tell which of the two is better)"
    return f"{more}, which is {'better' if is_better(name, found) else 'worse'} ({interval})"


def _direction(found: Difference) -> str:
    return "lower" if found.value < 0 else "higher"


def against_guess(run: RunResults) -> Iterator[str]:
    """Yield how far the model is from a guess by the site alone; of a run that does not compare, its own interval."""
    metrics, compared = run.summary.metrics, run.differences_from(GUESS)
    for name in (name for name in run.spec.task.metrics if name in AGAINST_GUESS and name in run.test):
        interval = metrics.intervals.get(name)
        if metrics.baseline.get(name) is None or interval is None:
            continue
        reached = f"The model's {NAMES[name]} is {number(run.test[name])}"
        if name in compared:
            where = _where(run, compared[name])
            yield f"{reached}; compared on the same rows{where}, it is {apart(name, compared[name])}."
        else:
            yield f"{reached} ({WITHIN} {between(interval.low, interval.high)})."


def conditions(run: RunResults) -> Iterator[Sentence]:
    """Yield when the intervals of differences are true."""
    known = [one for found in run.summary.metrics.differences.values() for one in found.values()]
    if not known:
        return
    if any(IN_FOLDS in one.method for one in known):
        where = "hospital" if isinstance(run.spec.evaluation, LeaveOneSiteOut) else "fold"
        text = f"AUCs are compared within each {where}, so that their difference need not be that of the figures above."
        yield Sentence("in-folds", text)
    holdout = isinstance(run.spec.evaluation, Holdout)
    folds = "" if holdout else ", fold by fold from rows that folds mostly share"
    others = "" if holdout else " Of models trained on other rows more of them may."
    yield Sentence(
        "conditions",
        f"Intervals of differences hold for the models as they were trained here{folds}: they leave out what other "
        f"training rows would change. One such interval in twenty misses by chance.{others}",
    )


def _where(run: RunResults, found: Difference) -> str:
    if IN_FOLDS not in found.method:
        return ""
    return " of each hospital" if isinstance(run.spec.evaluation, LeaveOneSiteOut) else " of each fold"


def difference_table(run: RunResults, named: dict[str, str]) -> NumberTable | None:
    """Return the differences from every rival, over all samples; None where nothing was compared.

    Args:
        run: whose.
        named: what each rival is called.
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
